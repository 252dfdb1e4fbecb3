// masks:PATH, a folder with images/ and masks/: the class numbers of images/NAME.jpg's pixels are
// in masks/NAME.png. classes.txt names the classes, one per line, or ",classes=N" gives their
// number. Samples are in the order of their images' names; hidden files are ignored.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/files.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kMostClasses = kIgnoredClass;  // 0 to 254
constexpr const char* kClassesRemedy =
    "Name the classes in classes.txt beside images/, one a line, or write masks:PATH,classes=N";

class MaskSource : public Dataset {
 public:
  MaskSource(Env& env, std::string root, std::optional<size_t> count)
      : env_(env), root_(std::move(root)) {
    for (const char* part : {"images", "masks"})
      if (!env_.is_directory(root_ + "/" + part))
        fail(ErrorKind::kData, std::string("no folder ") + part + "/", root_,
             "masks:PATH takes a folder with images/ and masks/");
    name_classes(count);
    find_images();
  }

  size_t size() const override { return images_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }
  bool has_masks() const override { return true; }

  void read(size_t index, Sample& out) const override {
    out.name = root_ + "/images/" + images_[index];
    out.label = 0;
    out.encoding = SampleEncoding::kEncoded;
    out.mask.is_raw = false;
    out.mask.name = mask_path(images_[index]);
    env_.read_into(out.name, out.bytes);
    env_.read_into(out.mask.name, out.mask.bytes);
  }

  uint64_t bytes(size_t index) const override {
    return env_.open_readable(root_ + "/images/" + images_[index])->size() +
           env_.open_readable(mask_path(images_[index]))->size();
  }

 private:
  std::string mask_path(const std::string& image) const {
    return root_ + "/masks/" + image.substr(0, image.rfind('.')) + ".png";
  }

  void name_classes(std::optional<size_t> count) {
    const std::string path = root_ + "/classes.txt";
    if (count) {
      classes_ = number_classes(*count);
    } else if (env_.exists(path)) {
      read_classes(path);
    } else {
      fail(ErrorKind::kData, "the classes are not specified", root_, kClassesRemedy);
    }
  }

  void read_classes(const std::string& path) {
    std::set<std::string> seen;
    for (std::string& line : split_text(text_of_file(env_, path), '\n')) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty()) continue;
      if (!seen.insert(line).second)
        fail(ErrorKind::kData, "class \"" + line + "\" occurs twice", path, "Name each class once");
      classes_.push_back(std::move(line));
    }
    if (classes_.size() < 2 || classes_.size() > kMostClasses)
      fail(ErrorKind::kData,
           "it names " + std::to_string(classes_.size()) + " classes, not 2 to 255", path,
           kClassesRemedy);
  }

  void find_images() {
    const std::string folder = root_ + "/images";
    for (const FileInfo& info : env_.list(folder))
      if (!info.is_directory && is_image_name(info.name)) images_.push_back(info.name);
    if (images_.empty())
      fail(ErrorKind::kData, "folder holds no .jpg, .png, .webp or .avif file", folder,
           "Put the images there");
    std::sort(images_.begin(), images_.end());
    std::set<std::string> masks;
    for (const FileInfo& info : env_.list(root_ + "/masks"))
      if (!info.is_directory) masks.insert(info.name);
    std::map<std::string, std::string> seen;  // mask, image
    for (const std::string& image : images_) {
      const std::string path = mask_path(image);
      if (!masks.contains(path.substr(path.rfind('/') + 1)))
        fail(ErrorKind::kData, "image " + folder + "/" + image + " has no mask", path,
             "Add the mask, or remove the image");
      if (const auto [other, is_new] = seen.try_emplace(path, image); !is_new)
        fail(ErrorKind::kData, "images " + other->second + " and " + image + " have the same mask",
             path, "Give each image a name of its own before its ending");
    }
  }

  Env& env_;
  std::string root_;
  std::vector<std::string> classes_;
  std::vector<std::string> images_;  // names within images/
};

}  // namespace

std::unique_ptr<Dataset> open_masks(Env& env, const std::string& rest) {
  std::string root = rest;
  const auto count = take_number(root, "classes", 2, kMostClasses, "Write masks:PATH,classes=N");
  return std::make_unique<MaskSource>(env, take_folder(root, "masks"), count);
}

}  // namespace saturate
