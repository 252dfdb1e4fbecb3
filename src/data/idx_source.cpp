// idx:IMAGES[,LABELS] or idx:FOLDER[,split=train|test]: the format of MNIST and its family (EMNIST,
// Fashion-MNIST, KMNIST), http://yann.lecun.com/exdb/mnist/: a magic number that tells type and
// rank, the sizes as big-endian uint32, the values. Files may be compressed with gzip. Everything
// is kept in memory: the largest of the family has 0.6 GB.
#include <algorithm>
#include <limits>
#include <utility>

#include "data/byte_stream.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;
constexpr const char* kFormats = "Give the MNIST family's image and label files, plain or .gz";

struct IdxFile {
  std::vector<uint32_t> sizes;
  std::vector<std::byte> values;
};

void check_magic(std::span<const std::byte, 4> magic, size_t rank, const std::string& path) {
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0} || magic[3] == std::byte{0})
    fail(ErrorKind::kData, "not an IDX file: wrong magic number", path, kFormats);
  if (magic[2] != std::byte{kUnsignedByte})
    fail(ErrorKind::kData, "IDX file holds values that are no unsigned bytes", path, kFormats);
  if (size_t(magic[3]) != rank)
    fail(ErrorKind::kData,
         "IDX file has " + std::to_string(int(magic[3])) + " dimensions where " +
             std::to_string(rank) + " belong",
         path, "Give the images first, then the labels");
}

IdxFile read_idx(Env& env, const std::string& path, size_t rank) {
  const auto stream = open_byte_stream(env, path);
  std::byte magic[4];
  stream->read(magic);
  check_magic(magic, rank, path);
  IdxFile idx;
  uint64_t total = 1;
  std::string claimed;
  for (size_t i = 0; i < rank; ++i) {
    std::byte digits[4];
    stream->read(digits);
    uint32_t size = 0;
    for (std::byte b : digits) size = size << 8 | uint32_t(b);
    idx.sizes.push_back(size);
    claimed += (i == 0 ? "" : " x ") + std::to_string(size);
    if (size != 0 && total > std::numeric_limits<uint64_t>::max() / size)
      total = std::numeric_limits<uint64_t>::max();
    else
      total *= size;
  }
  if (total == 0) fail(ErrorKind::kData, "IDX file claims " + claimed + " values", path, kFormats);
  if (total > stream->most_left())
    fail(ErrorKind::kData, "IDX file is truncated: it claims " + claimed + " values", path,
         "Fetch it again");
  idx.values.resize(total);
  stream->read(idx.values);
  if (!stream->at_end())
    fail(ErrorKind::kData, "IDX file continues after the " + claimed + " values it claims", path,
         "Fetch it again");
  return idx;
}

class IdxSource : public IndexedSource {
 public:
  IdxSource(Env& env, std::string images, const std::string& labels)
      : path_(std::move(images)),
        images_(read_idx(env, path_, 3)),
        labels_(read_idx(env, labels, 1).values) {
    if (images_.sizes[0] != labels_.size())
      fail(ErrorKind::kData,
           std::to_string(images_.sizes[0]) + " images, and " + std::to_string(labels_.size()) +
               " labels",
           path_ + " and " + labels, "Give files that belong together, as idx:IMAGES,LABELS");
    if (uint64_t{images_.sizes[1]} * images_.sizes[2] > uint64_t(Decoder::kDefaultMaxPixels))
      fail(ErrorKind::kData, "IDX file claims images of too many pixels", path_, kFormats);
    classes_ = number_classes(size_t(*std::max_element(labels_.begin(), labels_.end())) + 1);
  }

  size_t size() const override { return labels_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }

  int64_t label(size_t index) const override { return int64_t(labels_[index]); }

  void read(size_t index, Sample& out) const override {
    out.name = path_ + ":" + std::to_string(index);
    out.label = int64_t(labels_[index]);
    out.encoding = SampleEncoding::kRaw;
    out.height = int(images_.sizes[1]);
    out.width = int(images_.sizes[2]);
    out.channels = 1;
    const size_t bytes = size_t(out.height) * size_t(out.width);
    const auto from = images_.values.begin() + ptrdiff_t(index * bytes);
    out.bytes.assign(from, from + ptrdiff_t(bytes));
  }

 private:
  std::string path_;
  IdxFile images_;  // [count, height, width]
  std::vector<std::byte> labels_;
  std::vector<std::string> classes_;
};

// "train-images-idx3-ubyte.gz" goes with "train-labels-idx1-ubyte", compressed or not.
std::string find_labels(Env& env, const std::string& images) {
  const size_t base = images.rfind('/') + 1;
  std::string name = images.substr(base);
  const auto swap = [&](const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
    return at != std::string::npos;
  };
  if (swap("images", "labels")) {
    swap("idx3", "idx1");
    const std::string same = images.substr(0, base) + name;
    const std::string other =
        same.ends_with(".gz") ? same.substr(0, same.size() - 3) : same + ".gz";
    for (const std::string& path : {same, other})
      if (env.exists(path)) return path;
  }
  fail(ErrorKind::kData, "no label file found next to the images", images,
       "Name it: idx:IMAGES,LABELS");
}

// The one image file of a split in a folder; of a file plain and compressed, the plain one.
std::string find_images(Env& env, const std::string& folder, const std::string& split) {
  std::vector<std::string> found;
  for (const FileInfo& info : env.list(folder)) {
    const std::string& name = info.name;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const bool test = has("t10k") || has("test");
    if (info.is_directory || !has("images") || !has("idx3") || test != (split == "test")) continue;
    if (!found.empty() && name == found.back() + ".gz") continue;
    found.push_back(name);
  }
  if (found.size() == 1) return folder + "/" + found.front();
  fail(ErrorKind::kData,
       found.empty() ? "folder holds no image file of split " + split
                     : "folder holds several image files: " + found[0] + ", " + found[1],
       folder, "Name the file: idx:IMAGES");
}

}  // namespace

std::unique_ptr<Dataset> open_idx(Env& env, const std::string& rest) {
  std::string list = rest;
  const std::string split = take_split(list, "idx");
  std::vector<std::string> paths = expand_paths(env, list, "idx");
  if (paths.size() > 2)
    fail(ErrorKind::kUsage, "idx: takes one image file and one label file", "data.source",
         "Write idx:IMAGES,LABELS");
  if (env.is_directory(paths[0]))
    paths[0] = find_images(env, paths[0], split.empty() ? "train" : split);
  else if (!split.empty())
    fail(ErrorKind::kUsage, "split is given, and the path is not a folder", "data.source",
         "Remove split, or name the folder");
  const std::string labels = paths.size() == 2 ? paths[1] : find_labels(env, paths[0]);
  return std::make_unique<IdxSource>(env, std::move(paths[0]), labels);
}

}  // namespace saturate
