// folder:PATH, the layout of torchvision's ImageFolder: one folder per class, searched recursively,
// classes and samples in ImageFolder's order. Hidden entries are ignored.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

// Deeper nesting is a symbolic link to a parent folder.
constexpr int kMaxDepth = 32;

// Usual names of the parts of a dataset.
constexpr std::array<std::string_view, 7> kParts = {"train",      "training", "val", "valid",
                                                    "validation", "test",     "eval"};

// A class's folder, or one below it.
struct ClassFolder {
  std::string path;  // relative to the root
  int64_t label;
};

// An image takes these 16 bytes and its name: there may be tens of millions.
struct FolderEntry {
  size_t name;  // where it begins in names_
  uint32_t folder;
};

class FolderSource : public IndexedSource {
 public:
  FolderSource(Env& env, std::string root) : env_(env), root_(std::move(root)) {
    find_classes();
    for (size_t label = 0; label < classes_.size(); ++label) find_images(int64_t(label));
    entries_.shrink_to_fit();
    names_.shrink_to_fit();
    require_classes();
  }

  size_t size() const override { return entries_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }

  void read(size_t index, Sample& out) const override {
    put_path(entries_[index], out.name);
    out.label = label(index);
    out.encoding = SampleEncoding::kEncoded;
    env_.read_into(out.name, out.bytes);
  }

  std::string warning() const override {
    return warning_of_outside(outside_, root_ + "/" + first_outside_);
  }

  int64_t label(size_t index) const override { return folder_of(entries_[index]).label; }

  uint64_t read_start(size_t index, size_t most, Sample& out) const override {
    put_path(entries_[index], out.name);
    out.label = label(index);
    out.encoding = SampleEncoding::kEncoded;
    const auto file = env_.open_readable(out.name);
    out.bytes.resize(size_t(std::min<uint64_t>(most, file->size())));
    file->read_at(0, out.bytes);
    return file->size();
  }

  // kSoon would have to open each file, which costs as much as reading ahead would save.
  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    if (advice != ReadAdvice::kNotAgain) return;
    for (size_t i = first; i < first + count; ++i) {
      const auto file = open(i);
      file->advise(advice, 0, file->size());
    }
  }

  uint64_t bytes(size_t index) const override { return open(index)->size(); }

 private:
  const ClassFolder& folder_of(const FolderEntry& entry) const { return folders_[entry.folder]; }
  const char* name_of(const FolderEntry& entry) const { return names_.c_str() + entry.name; }

  void put_path(const FolderEntry& entry, std::string& out) const {
    out.assign(root_).append("/").append(folder_of(entry).path).append("/").append(name_of(entry));
  }

  std::unique_ptr<ReadableFile> open(size_t index) const {
    std::string path;
    put_path(entries_[index], path);
    return env_.open_readable(path);
  }

  void find_classes() {
    if (!env_.is_directory(root_))
      fail(ErrorKind::kData, "no such folder", root_, "Check the path");
    for (const FileInfo& info : env_.list(root_)) {
      if (!info.is_directory && is_image_name(info.name) && outside_++ == 0)
        first_outside_ = info.name;
      if (info.is_directory && info.name.front() != '.') classes_.push_back(info.name);
    }
    if (classes_.empty())
      fail(ErrorKind::kData, "folder holds no class folders", root_,
           "Put the images of each class in a sub-folder named after the class");
  }

  void find_images(int64_t label) {
    const std::string& name = classes_[size_t(label)];
    const size_t first = entries_.size();
    search(name, label, 0);
    // Silently skipping a class would shift the labels of all that follow it.
    if (entries_.size() == first)
      fail(ErrorKind::kData, "class folder holds no .jpg, .png, .webp or .avif file",
           root_ + "/" + name, "Add images of the class, or remove its folder");
    std::sort(entries_.begin() + ptrdiff_t(first), entries_.end(),
              [this](const FolderEntry& a, const FolderEntry& b) {
                if (a.folder != b.folder) return folder_of(a).path < folder_of(b).path;
                return std::strcmp(name_of(a), name_of(b)) < 0;
              });
  }

  void require_classes() const {
    const auto lies_in_class = [this](const FolderEntry& entry) {
      const ClassFolder& folder = folder_of(entry);
      return folder.path == classes_[size_t(folder.label)];
    };
    if (std::none_of(entries_.begin(), entries_.end(), lies_in_class))
      refuse_parts(classes_, root_);
  }

  void search(const std::string& folder, int64_t label, int depth) {
    const std::string path = root_ + "/" + folder;
    if (depth > kMaxDepth)
      fail(ErrorKind::kData, "folders are nested more than 32 deep", path,
           "Look for a symbolic link that leads back to its own parent");
    const auto own = uint32_t(folders_.size());
    folders_.push_back({folder, label});
    for (const FileInfo& info : env_.list(path)) {
      if (info.is_directory) {
        if (info.name.front() != '.') search(folder + "/" + info.name, label, depth + 1);
      } else if (is_image_name(info.name)) {
        entries_.push_back({names_.size(), own});
        names_.append(info.name).push_back('\0');
      }
    }
  }

  Env& env_;
  std::string root_;
  std::vector<std::string> classes_;
  std::vector<ClassFolder> folders_;
  std::vector<FolderEntry> entries_;
  std::string names_;   // each with a zero at its end
  size_t outside_ = 0;  // images in root_ itself
  std::string first_outside_;
};

}  // namespace

void refuse_parts(const std::vector<std::string>& classes, const std::string& root) {
  const auto is_part = [](const std::string& name) {
    return std::find(kParts.begin(), kParts.end(), name) != kParts.end();
  };
  if (std::all_of(classes.begin(), classes.end(), is_part))
    fail(ErrorKind::kData, "its folders are parts of a set (" + classes.front() + "), not classes",
         root, "Name one part, as folder:" + root + "/" + classes.front());
}

// ImageFolder says nothing of them.
std::string warning_of_outside(uint64_t count, const std::string& first) {
  if (count == 0) return {};
  if (count == 1) return "an image beside the class folders is not read: " + first;
  return std::to_string(count) + " images beside the class folders are not read, such as " + first;
}

std::unique_ptr<Dataset> open_folder(Env& env, const std::string& rest) {
  if (is_store_url(rest)) return open_far_folder(env, rest);
  return std::make_unique<FolderSource>(env, take_folder(rest, "folder"));
}

}  // namespace saturate
