// tar:PATH[,PATH...]: images in class folders inside archives, read at their offsets. The class is
// the folder an image lies in, whatever leads to it; samples are in archive order.
#include <algorithm>
#include <map>
#include <utility>

#include "data/sources.h"
#include "data/tar_format.h"
#include "saturate/error.h"

namespace saturate {
namespace {

struct TarEntry {
  uint64_t offset;      // of the payload, bytes
  uint64_t size;        // bytes
  uint64_t name_start;  // in names_
  uint32_t name_length;
  uint32_t archive;
  uint32_t label;
};

// The last component before the file's own name that says something, or "".
std::string_view parent_name(std::string_view path) {
  auto slash = path.rfind('/');
  while (slash != std::string_view::npos) {
    path = path.substr(0, slash);
    slash = path.rfind('/');
    const std::string_view part = slash == std::string_view::npos ? path : path.substr(slash + 1);
    if (!part.empty() && part != "." && part != "..") return part;
  }
  return {};
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

class TarSource : public Dataset {
 public:
  TarSource(Env& env, std::vector<std::string> paths) : paths_(std::move(paths)) {
    std::map<std::string, uint32_t, std::less<>> labels;  // in order of appearance at first
    for (size_t i = 0; i < paths_.size(); ++i) scan(env, uint32_t(i), labels);
    if (entries_.empty())
      fail(ErrorKind::kData, "archive holds no .jpg, .jpeg or .png file", paths_.front(),
           "Check data.source");
    std::vector<uint32_t> sorted_label(labels.size());
    for (const auto& [name, appeared] : labels) {
      sorted_label[appeared] = uint32_t(classes_.size());
      classes_.push_back(name);
    }
    for (TarEntry& entry : entries_) entry.label = sorted_label[entry.label];
  }

  size_t size() const override { return entries_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }

  void read(size_t index, Sample& out) const override {
    const TarEntry& entry = entries_[index];
    const std::string_view name(names_.data() + entry.name_start, entry.name_length);
    out.name.assign(paths_[entry.archive]).append(":").append(name);
    out.label = entry.label;
    out.encoding = SampleEncoding::kEncoded;
    out.bytes.resize(size_t(entry.size));
    files_[entry.archive]->read_at(entry.offset, out.bytes);
  }

 private:
  void scan(Env& env, uint32_t archive, std::map<std::string, uint32_t, std::less<>>& labels) {
    TarScanner scanner(env, paths_[archive]);
    TarMember member;
    while (scanner.next(member)) {
      if (!is_image_name(base_name(member.name))) continue;
      const std::string where = paths_[archive] + ":" + member.name;
      if (member.type != '0') fail_not_stored(member, where);
      const std::string_view parent = parent_name(member.name);
      if (parent.empty())
        fail(ErrorKind::kData, "image lies in no class folder of the archive", where,
             "Put the images of each class in a folder named after the class");
      auto found = labels.find(parent);
      if (found == labels.end())
        found = labels.emplace(std::string(parent), uint32_t(labels.size())).first;
      entries_.push_back({member.offset, member.size, names_.size(), uint32_t(member.name.size()),
                          archive, found->second});
      names_ += member.name;
    }
    files_.push_back(scanner.release());
  }

  [[noreturn]] static void fail_not_stored(const TarMember& member, const std::string& where) {
    const bool sparse = member.type == 'S';
    fail(ErrorKind::kData,
         sparse ? "member is stored as a sparse file" : "member is a link, not a file", where,
         sparse ? "Create the archive without --sparse"
                : "Create the archive with tar --dereference --hard-dereference");
  }

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<ReadableFile>> files_;  // one per path
  std::string names_;                                 // of all entries, end to end
  std::vector<std::string> classes_;
  std::vector<TarEntry> entries_;
};

}  // namespace

std::unique_ptr<Dataset> open_tar(Env& env, const std::string& rest) {
  std::vector<std::string> paths;
  for (size_t start = 0; start <= rest.size();) {
    const size_t comma = std::min(rest.find(',', start), rest.size());
    if (comma == start)
      fail(ErrorKind::kUsage, "tar: has an empty path", "data.source", "Write tar:PATH[,PATH...]");
    paths.push_back(rest.substr(start, comma - start));
    start = comma + 1;
  }
  return std::make_unique<TarSource>(env, std::move(paths));
}

}  // namespace saturate
