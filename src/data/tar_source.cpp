// tar:PATH[,PATH...]: images inside archives, read at their offsets, in archive order.
//
// The layout is detected from the contents. If an image shares its key with a .cls file, or a .json
// file with a "label", the archives hold WebDataset pairs (KEY.jpg, KEY.cls) and every image needs
// a label; else the class is the image's folder, whatever its parents.
#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "data/far_members.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "data/tar_format.h"
#include "data/tar_labels.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

struct TarEntry {
  uint64_t offset;      // of the payload, bytes
  uint64_t size;        // bytes
  uint64_t name_start;  // in names_
  uint32_t name_length;
  uint32_t archive;
  uint32_t label;  // while scanning: from folders
  uint32_t pair;   // while scanning: from pairs
};

// The last meaningful component before the file name, or "".
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

class TarSource : public IndexedSource {
 public:
  TarSource(Env& env, std::vector<std::string> paths) : paths_(std::move(paths)) {
    const int threads = opening_threads(paths_);
    if (threads > 1) {
      list(env, threads);
      return;
    }
    LabelTable folders, pairs;
    for (size_t i = 0; i < paths_.size(); ++i) scan(env, uint32_t(i), folders, pairs);
    settle(folders, pairs);
  }

  size_t size() const override { return entries_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }

  void read(size_t index, Sample& out) const override { read_start(index, SIZE_MAX, out); }

  uint64_t read_start(size_t index, size_t most, Sample& out) const override {
    const TarEntry& entry = entries_[index];
    out.name.assign(paths_[entry.archive]).append(":").append(name_of(entry));
    out.label = entry.label;
    out.encoding = SampleEncoding::kEncoded;
    const uint64_t size = std::min<uint64_t>(most, entry.size);
    require_memory(size, out.name);
    out.bytes.resize(size_t(size));
    files_[entry.archive]->read_at(entry.offset, out.bytes);
    return entry.size;
  }

  int64_t label(size_t index) const override { return entries_[index].label; }

  uint64_t bytes(size_t index) const override { return entries_[index].size; }

  uint64_t look_ahead() const override { return look_ahead_; }

  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    for (const size_t end = first + count; first < end;) {
      const TarEntry& from = entries_[first];
      size_t last = first;
      while (last + 1 < end && entries_[last + 1].archive == from.archive) ++last;
      const TarEntry& to = entries_[last];
      files_[from.archive]->advise(advice, from.offset, to.offset + to.size - from.offset);
      first = last + 1;
    }
  }

 private:
  void scan(Env& env, uint32_t archive, LabelTable& folders, LabelTable& pairs) {
    TarScanner scanner(env, paths_[archive]);
    add_members(
        archive, [&](TarMember& member) { return scanner.next(member); },
        [&](const TarMember& member) { return scanner.text(member); }, folders, pairs);
    files_.push_back(scanner.release());
  }

  // The same for archives in a store, or many: several are listed at a time, since the headers of
  // one are read one after the other.
  void list(Env& env, int threads) {
    std::vector<FarArchive> archives(paths_.size());
    const size_t at_once = 4 * size_t(threads);  // archives whose members are in memory
    try {
      LabelTable folders, pairs;
      for (size_t first = 0; first < archives.size(); first += at_once) {
        const size_t end = std::min(first + at_once, archives.size());
        in_question_ = archives.size();  // none
        parallel_for(end - first, threads, [&](size_t i) {
          archives[first + i] = open_far_archive(env, paths_[first + i]);
        });
        for (size_t i = first; i < end; ++i)
          add_listed(uint32_t(i), std::exchange(archives[i].members, {}), folders, pairs);
      }
      settle(folders, pairs);
    } catch (const Error&) {
      for (size_t i = 0; i < archives.size(); ++i)
        if (i == in_question_.value_or(i)) forget_members(env, archives[i]);
      throw;
    }
    for (FarArchive& far : archives) {
      look_ahead_ = std::max(look_ahead_, far.file->look_ahead());
      files_.push_back(std::move(far.file));
    }
  }

  void add_listed(uint32_t archive, const std::vector<FarMember>& members, LabelTable& folders,
                  LabelTable& pairs) {
    paths_[archive] = store_name(paths_[archive]);
    in_question_ = archive;
    size_t next = 0;
    add_members(
        archive,
        [&](TarMember& member) {
          if (next == members.size()) return false;
          member = members[next++];
          return true;
        },
        [&](const TarMember&) { return members[next - 1].label; }, folders, pairs);
  }

  // `next` and `text` as TarScanner's.
  template <class Next, class Text>
  void add_members(uint32_t archive, const Next& next, const Text& text_of, LabelTable& folders,
                   LabelTable& pairs) {
    PairGroup group;
    size_t part = entries_.size();  // the first of this archive, or of one that is joined to it
    group.start("", part);
    TarMember member;
    for (int joined = 0; next(member);) {
      const SplitName split = split_name(member.name);
      const bool is_another = std::exchange(joined, member.archive) != member.archive;
      if (split.key != group.key || is_another) {
        finish_group(group, archive, pairs);
        group.start(split.key, entries_.size());
      }
      if (is_another) refuse_repeated(std::exchange(part, entries_.size()));
      if (is_image_name(split.base)) {
        if (member.type != '0') fail_not_stored(member, paths_[archive] + ":" + member.name);
        const std::string_view parent = parent_name(member.name);
        entries_.push_back({member.offset, member.size, names_.size(), uint32_t(member.name.size()),
                            archive, parent.empty() ? kNoLabel : folders.add(parent), kNoLabel});
        names_ += member.name;
      } else if (is_label_ending(split.ending) && member.type == '0') {
        group.add_label(split.ending, text_of(member));
      }
    }
    finish_group(group, archive, pairs);
    refuse_repeated(part);
  }

  // Only KEY.jpg, KEY.png and so on belong to a pair: KEY.seg.png is additional data.
  void finish_group(const PairGroup& group, uint32_t archive, LabelTable& pairs) {
    if (!group.has_members()) return;
    const std::string where = paths_[archive] + ":" + group.key;
    TarEntry* image = nullptr;
    for (size_t i = group.first_entry; i < entries_.size(); ++i) {
      if (!is_plain_image(entries_[i])) continue;
      if (image != nullptr)
        fail(ErrorKind::kData, "two images with the same key", where,
             "Give each image a unique key");
      image = &entries_[i];
    }
    if (image == nullptr) {
      if (group.cls) alone_.emplace(group.key);
      if (group.has_label()) alone_in_part_.emplace(group.key);
      return;
    }
    if (const auto label = group.label(where)) image->pair = pairs.add(*label);
  }

  // At the end of an archive, whose images are those from `first` on. Of two members with one name
  // the last one counts, as tar -r and -u add them; here both would be samples, or the first label
  // would stay.
  void refuse_repeated(size_t first) {
    const std::set<std::string, std::less<>> alone = std::exchange(alone_in_part_, {});
    for (size_t i = first; i < entries_.size() && !alone.empty(); ++i)
      if (entries_[i].pair != kNoLabel && alone.contains(split_name(name_of(entries_[i])).key))
        fail_repeated("the image's label", entries_[i]);
    const auto name = [&](const TarEntry& entry) { return name_of(entry); };
    const auto images = std::span(entries_).subspan(first);
    if (std::ranges::adjacent_find(images, std::ranges::greater_equal(), name) == images.end())
      return;
    std::vector<std::pair<uint64_t, size_t>> hashes;
    for (size_t i = first; i < entries_.size(); ++i)
      hashes.emplace_back(hash_text(name_of(entries_[i])), i);
    std::ranges::sort(hashes);
    for (size_t i = 1; i < hashes.size(); ++i) {
      const TarEntry& entry = entries_[hashes[i].second];
      if (hashes[i].first == hashes[i - 1].first &&
          name_of(entry) == name_of(entries_[hashes[i - 1].second]))
        fail_repeated("the image", entry);
    }
  }

  // Sets the label of each entry.
  void settle(LabelTable& folders, LabelTable& pairs) {
    const bool paired = pairs.size() > 0;
    in_question_.reset();
    if (paired)
      std::erase_if(entries_, [&](const TarEntry& entry) { return !is_plain_image(entry); });
    else
      require_labels_nearby();
    if (entries_.empty())
      fail(ErrorKind::kData, "archive holds no .jpg, .png, .webp or .avif file", paths_.front(),
           "Give an archive of images");
    const auto labels = paired ? pairs.settle_numbers_or_names(paths_.front(), classes_)
                               : folders.settle_names(classes_);
    for (TarEntry& entry : entries_) {
      in_question_ = entry.archive;
      const uint32_t appeared = paired ? entry.pair : entry.label;
      if (appeared == kNoLabel) fail_unlabelled(entry, paired);
      entry.label = labels[appeared];
    }
  }

  // Without pairs each image would get its folder as class.
  void require_labels_nearby() const {
    for (const TarEntry& entry : entries_)
      if (!alone_.empty() && alone_.contains(split_name(name_of(entry)).key))
        fail(ErrorKind::kData, "the image's label is not next to it",
             paths_[entry.archive] + ":" + std::string(name_of(entry)),
             "Put KEY.cls right after KEY.jpg in the archive, as tar --sort=name does");
  }

  bool is_plain_image(const TarEntry& entry) const {
    return split_name(name_of(entry)).ending.find('.') == std::string_view::npos;
  }

  std::string_view name_of(const TarEntry& entry) const {
    return {names_.data() + entry.name_start, entry.name_length};
  }

  [[noreturn]] void fail_unlabelled(const TarEntry& entry, bool paired) const {
    const std::string where = paths_[entry.archive] + ":" + std::string(name_of(entry));
    if (paired)
      fail(ErrorKind::kData, "image has no label with its key, and others have", where,
           "Put KEY.cls, or KEY.json with a \"label\", next to each KEY.jpg");
    fail(ErrorKind::kData, "image is not in a class folder of the archive", where,
         "Put the images of each class in a folder named after the class, or KEY.cls next to each "
         "KEY.jpg");
  }

  [[noreturn]] void fail_repeated(const std::string& what, const TarEntry& entry) const {
    fail(ErrorKind::kData, what + " is in the archive twice",
         paths_[entry.archive] + ":" + std::string(name_of(entry)),
         "Make the archive again with tar -c, as tar -r and -u keep the members that they replace; "
         "join archives by cat, not by tar -A");
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
  std::string names_;                                 // of all entries, concatenated
  std::vector<std::string> classes_;
  std::vector<TarEntry> entries_;
  // Keys of labels that have no image next to them: those of .cls, and all of the archive that is
  // being read.
  std::set<std::string, std::less<>> alone_, alone_in_part_;
  uint64_t look_ahead_ = 0;
  // The archive whose labels are looked at; behind the last: none; else all.
  std::optional<size_t> in_question_;
};

}  // namespace

std::unique_ptr<Dataset> open_tar(Env& env, const std::string& rest) {
  return std::make_unique<TarSource>(env, find_files(env, rest, "tar"));
}

}  // namespace saturate
