// cifar:FOLDER[,split=train|test][,labels=fine|coarse] or cifar:FILE.bin: the binary versions of
// CIFAR-10 and CIFAR-100, https://www.cs.toronto.edu/~kriz/cifar.html. A record is one label byte
// (CIFAR-100: coarse, then fine) and 32 x 32 pixels in planes red, green, blue.
#include <algorithm>
#include <utility>

#include "base/files.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kSide = 32;
constexpr size_t kPlane = kSide * kSide;
constexpr size_t kPixels = 3 * kPlane;

struct Layout {
  size_t label_bytes, label_at;  // how many, and which of them is used
  size_t classes;
  const char* names;  // the file of the class names
  size_t record() const { return label_bytes + kPixels; }
};
constexpr Layout kCifar10 = {1, 0, 10, "batches.meta.txt"};
constexpr Layout kCifar100Fine = {2, 1, 100, "fine_label_names.txt"};
constexpr Layout kCifar100Coarse = {2, 0, 20, "coarse_label_names.txt"};

struct CifarFile {
  std::string path;
  std::unique_ptr<ReadableFile> file;
  size_t end = 0;  // samples of this file and those before it
};

// The lines of the file of class names; empty if there is none.
std::vector<std::string> read_names(Env& env, const std::string& path, size_t count) {
  std::vector<std::string> names;
  if (!env.exists(path)) return names;
  for (std::string& line : split_text(text_of_file(env, path), '\n')) {
    std::erase(line, '\r');
    if (!line.empty()) names.push_back(std::move(line));
  }
  if (names.size() == count) return names;
  fail(ErrorKind::kData,
       "file has " + std::to_string(names.size()) + " class names, not " + std::to_string(count),
       path, "Fetch it again, or remove it: classes are then numbered");
}

class CifarSource : public IndexedSource {
 public:
  CifarSource(Env& env, const std::vector<std::string>& paths, const Layout& layout)
      : layout_(layout) {
    for (const std::string& path : paths) {
      CifarFile file{path, env.open_readable(path), 0};
      const uint64_t bytes = file.file->size(), record = layout_.record();
      if (bytes == 0 || bytes % record != 0)
        fail(ErrorKind::kData,
             "file of " + std::to_string(bytes) +
                 " bytes holds no whole number of CIFAR records (" + std::to_string(record) +
                 " bytes each)",
             path, "It is truncated, or not of the binary version: fetch it again");
      file.end = size() + size_t(bytes / record);
      files_.push_back(std::move(file));
    }
    const std::string folder = paths[0].substr(0, paths[0].rfind('/') + 1);
    const auto names = read_names(env, folder + layout_.names, layout_.classes);
    classes_ = names.empty() ? number_classes(layout_.classes) : names;
    labels_ = sort_classes(classes_);
  }

  size_t size() const override { return files_.empty() ? 0 : files_.back().end; }
  const std::vector<std::string>& classes() const override { return classes_; }

  int64_t label(size_t index) const override {
    const auto [file, local] = place_of(index);
    std::byte own{};
    file.file->read_at(local * layout_.record() + layout_.label_at, std::span(&own, 1));
    return size_t(own) < layout_.classes ? labels_[size_t(own)] : -1;
  }

  void read(size_t index, Sample& out) const override {
    const auto [file, local] = place_of(index);
    out.name = file.path + ":" + std::to_string(local);
    std::byte record[2 + kPixels];
    file.file->read_at(local * layout_.record(), std::span(record, layout_.record()));
    const auto label = size_t(record[layout_.label_at]);
    if (label >= layout_.classes)
      fail(ErrorKind::kData,
           "label " + std::to_string(label) + " is not one of the " +
               std::to_string(layout_.classes) + " classes",
           out.name, "The file is damaged, or not of the binary version: fetch it again");
    out.label = labels_[label];
    out.encoding = SampleEncoding::kRaw;
    out.width = out.height = int(kSide);
    out.channels = 3;
    out.bytes.resize(kPixels);
    const std::byte* planes = record + layout_.label_bytes;
    for (size_t i = 0; i < kPlane; ++i)
      for (size_t c = 0; c < 3; ++c) out.bytes[i * 3 + c] = planes[c * kPlane + i];
  }

  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    size_t begin = 0;
    for (const CifarFile& file : files_) {
      const size_t from = std::max(first, begin), to = std::min(first + count, file.end);
      if (from < to)
        file.file->advise(advice, (from - begin) * layout_.record(),
                          (to - from) * layout_.record());
      begin = file.end;
    }
  }

 private:
  // The file of a sample, and its record in that file.
  std::pair<const CifarFile&, size_t> place_of(size_t index) const {
    const auto file = std::ranges::upper_bound(files_, index, {}, &CifarFile::end);
    return {*file, index - (file == files_.begin() ? 0 : std::prev(file)->end)};
  }

  const Layout layout_;
  std::vector<CifarFile> files_;
  std::vector<std::string> classes_;
  std::vector<int64_t> labels_;  // by the file's own label
};

// data_batch_1.bin, data_batch_2.bin, ... without gaps, so that a missing file is noticed.
std::vector<std::string> find_batches(Env& env, const std::string& folder) {
  size_t listed = 0;
  for (const FileInfo& info : env.list(folder))
    listed += info.name.starts_with("data_batch_") && info.name.ends_with(".bin");
  std::vector<std::string> paths;
  for (size_t i = 1; i <= listed; ++i) {
    paths.push_back(folder + "/data_batch_" + std::to_string(i) + ".bin");
    if (!env.exists(paths.back()))
      fail(ErrorKind::kData, "a file of the training set is missing", paths.back(),
           "Unpack the archive again");
  }
  return paths;
}

struct Found {
  std::vector<std::string> paths;
  bool cifar100;
};

Found find_cifar(Env& env, const std::string& folder, const std::string& split) {
  const std::string hundred = folder + (split == "test" ? "/test.bin" : "/train.bin");
  if (env.exists(hundred)) return {{hundred}, true};
  std::vector<std::string> paths;
  if (split != "test")
    paths = find_batches(env, folder);
  else if (env.exists(folder + "/test_batch.bin"))
    paths.push_back(folder + "/test_batch.bin");
  if (paths.empty())
    fail(ErrorKind::kData, "folder holds no CIFAR files of split " + split, folder,
         "Unpack cifar-10-binary.tar.gz or cifar-100-binary.tar.gz, and give the folder in it");
  return {paths, false};
}

}  // namespace

std::unique_ptr<Dataset> open_cifar(Env& env, const std::string& rest) {
  std::string path = rest;
  const std::string split = take_word(path, "split", "train", "test"),
                    labels = take_word(path, "labels", "fine", "coarse");
  path = take_folder(path, "cifar");
  Found found;
  if (env.is_directory(path)) {
    found = find_cifar(env, path, split.empty() ? "train" : split);
  } else {
    if (!split.empty())
      fail(ErrorKind::kUsage, "split is given, and the path is not a folder", "cifar:" + rest,
           "Remove split, or name the folder");
    const uint64_t bytes = env.open_readable(path)->size();
    const bool fits10 = bytes % kCifar10.record() == 0;
    found = {{path}, bytes % kCifar100Fine.record() == 0 && (!fits10 || !labels.empty())};
  }
  if (!found.cifar100 && !labels.empty())
    fail(ErrorKind::kUsage, "labels is given, and the data is CIFAR-10", "cifar:" + rest,
         "Leave labels out");
  const Layout& hundred = labels == "coarse" ? kCifar100Coarse : kCifar100Fine;
  return std::make_unique<CifarSource>(env, found.paths, found.cifar100 ? hundred : kCifar10);
}

}  // namespace saturate
