// shard:PATH[,PATH...]: the project's own format, docs/shard_format.md. A folder means all .shard
// files in it, by name. Several shards of images share their classes, by name or, if all of them
// number theirs, by number; those of tensors must have the same fields and classes.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/thread_pool.h"
#include "data/bytes.h"
#include "data/field_table.h"
#include "data/path_list.h"
#include "data/shard_format.h"
#include "data/sources.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

struct Shard {
  std::string path;
  std::unique_ptr<ReadableFile> file;
  ShardIndex index;
  std::vector<uint32_t> labels;  // by the shard's own label; empty: the same
  size_t end = 0;                // samples of this shard and those before it
  size_t first() const { return end - index.records.size(); }
  const ShardRecord& record(size_t sample) const { return index.records[sample - first()]; }
  uint32_t label_of(const ShardRecord& record) const {
    return labels.empty() ? record.label : labels[record.label];
  }
};

class ShardSource : public IndexedSource {
 public:
  ShardSource(Env& env, const std::vector<std::string>& paths) {
    shards_.resize(paths.size());
    parallel_for(paths.size(), opening_threads(paths), [&](size_t i) {
      Shard& shard = shards_[i];
      shard.path = store_name(paths[i]);
      shard.file = env.open_readable(paths[i]);
      shard.index = read_shard_index(*shard.file, shard.path);
    });
    size_t end = 0;
    for (Shard& shard : shards_) {
      shard.end = end += shard.index.records.size();
      look_ahead_ = std::max(look_ahead_, shard.file->look_ahead());
      if (is_far(shard))
        for (const ShardRecord& record : shard.index.records)
          check_far_size(record.size, shard.path);
    }
    require_same_fields();
    if (tensors().empty())
      share_classes();
    else
      classes_ = first().classes;  // the values of the target are positions in it
    for (Shard& shard : shards_) shard.index.classes = std::vector<std::string>();  // in classes_
    has_sequences_ = std::ranges::any_of(tensors(), &TensorField::is_sequence);
  }

  size_t size() const override { return shards_.empty() ? 0 : shards_.back().end; }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<TensorField>& tensors() const override { return first().fields; }
  std::string note() const override { return first().note; }

  void read(size_t index, Sample& out) const override { read_start(index, SIZE_MAX, out); }

  // No checksum check: it covers the whole sample.
  uint64_t read_start(size_t index, size_t most, Sample& out) const override {
    const auto shard = holder_of(index);
    const ShardRecord& record = describe(*shard, index, out);
    const bool whole = out.encoding != SampleEncoding::kEncoded || record.size <= most;
    out.bytes.resize(whole ? record.size : most);
    shard->file->read_at(record.offset, out.bytes);
    if (whole) check(record, out);
    const std::string problem = problem_of_values(tensors(), record.width, out.bytes);
    if (!problem.empty())
      fail(ErrorKind::kData, problem, out.name,
           "Create the shard again with saturate data pack, or set data.on_error=skip");
    return record.size;
  }

  void read_rows(size_t index, ImageRows rows, Sample& out) const override {
    const auto shard = holder_of(index);
    const ShardRecord& record = describe(*shard, index, out);
    if (out.encoding != SampleEncoding::kSegmented) return read(index, out);
    out.bytes.assign(record.size, {});
    const std::span bytes(out.bytes);
    const std::span head = bytes.first(head_bytes(record));
    shard->file->read_at(record.offset, head);
    const ByteRange part = bytes_of_rows(head, record.size, out.height, rows);
    shard->file->read_at(record.offset + part.offset, bytes.subspan(part.offset, part.length));
    if (head.size() + part.length == record.size)
      check(record, out);
    else
      put_markers(bytes, out.height, rows);
  }

  void advise_rows(ReadAdvice advice, size_t index, ImageRows rows) const override {
    const auto shard = holder_of(index);
    const ShardRecord& record = shard->record(index);
    shard->file->advise_next(
        advice, record.offset, head_bytes(record), [record, rows](std::span<const std::byte> head) {
          ByteRange part = bytes_of_rows(head, record.size, int(record.height), rows);
          part.offset += record.offset;
          return part;
        });
  }

  ImageSize size_of_parts(size_t index) const override {
    const auto shard = holder_of(index);
    const ShardRecord& record = shard->record(index);
    // A local shard beside far ones is read whole, so that its checksums are checked.
    if (!is_far(*shard) || record.kind != uint16_t(PayloadKind::kSegmented)) return {};
    return {int(record.height), int(record.width)};
  }

  uint64_t request_bytes() const override {
    const auto far = std::ranges::find_if(shards_, is_far);
    return far == shards_.end() ? UINT64_MAX : far->file->request_bytes();
  }

  int64_t label(size_t index) const override {
    const auto shard = holder_of(index);
    return shard->label_of(shard->record(index));
  }

  size_t length(size_t index) const override {
    return has_sequences_ ? holder_of(index)->record(index).width : 0;
  }

  uint64_t bytes(size_t index) const override { return holder_of(index)->record(index).size; }

  uint64_t look_ahead() const override { return look_ahead_; }

  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    for (const size_t end = first + count; first < end;) {
      const auto shard = holder_of(first);
      const size_t last = std::min(end, shard->end);
      const ShardRecord& from = shard->record(first);
      const ShardRecord& to = shard->record(last - 1);
      shard->file->advise(advice, from.offset, to.offset + to.size - from.offset);
      first = last;
    }
  }

 private:
  static bool is_far(const Shard& shard) { return shard.file->look_ahead() > 0; }

  // Sets all of `out` but its bytes.
  static const ShardRecord& describe(const Shard& shard, size_t index, Sample& out) {
    const ShardRecord& record = shard.record(index);
    out.name.assign(shard.path).append(":").append(shard.index.name(index - shard.first()));
    out.label = shard.label_of(record);
    set_encoding(out, record.kind, record.channels, record.width, record.height);
    return record;
  }

  static void check(const ShardRecord& record, const Sample& sample) {
    if (checksum_of(sample.bytes) == record.crc) return;
    fail(ErrorKind::kData, "sample is damaged: wrong checksum", sample.name,
         "Copy or upload the shard again, or set data.on_error=skip to skip such samples");
  }

  static uint64_t head_bytes(const ShardRecord& record) {
    return segment_head_bytes(int(record.width), int(record.height), record.size);
  }

  const ShardIndex& first() const { return shards_.front().index; }

  void require_same_fields() const {
    for (const Shard& shard : shards_) {
      const bool same_classes = first().fields.empty() || shard.index.classes == first().classes;
      const bool same_note = shard.index.note == first().note;  // how a table was normalised
      if (shard.index.fields == first().fields && same_classes && same_note) continue;
      fail(ErrorKind::kData,
           "shard has other fields, class names or normalisation than " + shards_.front().path,
           shard.path,
           "Give shards that were packed from parts of one source, and either images or tensors");
    }
  }

  // Whether number_classes() has named them: the zeros depend on the shard's largest number.
  static bool is_numbered(const Shard& shard) {
    return are_numbered(shard.index.classes) && std::ranges::is_sorted(shard.index.classes);
  }

  // Those of all shards, sorted.
  void share_classes() {
    if (std::ranges::all_of(shards_, is_numbered)) {
      const auto count = [](const Shard& shard) { return shard.index.classes.size(); };
      classes_ = std::ranges::max_element(shards_, {}, count)->index.classes;
      return;  // a label is the number
    }
    std::set<std::string> names;
    for (const Shard& shard : shards_)
      names.insert(shard.index.classes.begin(), shard.index.classes.end());
    classes_.assign(names.begin(), names.end());
    if (std::ranges::any_of(shards_, is_numbered)) refuse_equal_numbers();
    for (Shard& shard : shards_) {
      if (shard.index.classes == classes_) continue;
      for (const std::string& name : shard.index.classes)
        shard.labels.push_back(
            uint32_t(std::ranges::lower_bound(classes_, name) - classes_.begin()));
    }
  }

  // "7" may be the number that is "07" where a shard has more classes, or another class.
  void refuse_equal_numbers() const {
    std::map<std::string_view, std::string_view> names;  // by their digits
    for (const std::string& name : classes_) {
      const std::string_view digits = digits_of(name);
      if (digits.empty()) continue;
      const std::string_view other = names.try_emplace(digits, name).first->second;
      if (other == name) continue;
      const auto holder = std::ranges::find_if(shards_, [&](const Shard& shard) {
        return std::ranges::count(shard.index.classes, name) > 0;
      });
      fail(ErrorKind::kData,
           "class \"" + name + "\" and class \"" + std::string(other) +
               "\" of the shards differ only in zeros, and not all shards number their classes",
           holder->path,
           "Pack the parts again as one source (tar:A,B), or with labels that are all numbers or "
           "all names");
    }
  }

  std::vector<Shard>::const_iterator holder_of(size_t index) const {
    return std::ranges::upper_bound(shards_, index, {}, &Shard::end);
  }

  std::vector<Shard> shards_;
  std::vector<std::string> classes_;
  bool has_sequences_ = false;
  uint64_t look_ahead_ = 0;
};

}  // namespace

std::unique_ptr<Dataset> open_shard(Env& env, const std::string& rest) {
  return std::make_unique<ShardSource>(env, find_files(env, rest, "shard"));
}

}  // namespace saturate
