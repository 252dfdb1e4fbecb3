#include "data/array_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/files.h"
#include "data/elements.h"
#include "data/path_list.h"
#include "data/volume_fields.h"
#include "saturate/data/error.h"
#include "saturate/data/loader.h"

namespace saturate {
namespace {

constexpr uint64_t kReadAtOnce = 64 << 20;  // bytes
constexpr int64_t kMaxClassNumbers = 1 << 16;
constexpr size_t kMaxVocabulary = INT32_MAX;

// [first index fastest] to [last index fastest].
std::vector<std::byte> in_c_order(const std::vector<std::byte>& values, const ArrayLayout& layout) {
  const size_t size = bytes_of(layout.type), rank = layout.shape.size();
  std::vector<size_t> strides(rank), index(rank);  // in `values`
  size_t stride = size;
  for (size_t i = 0; i < rank; ++i) {
    strides[i] = stride;
    stride *= size_t(layout.shape[i]);
  }
  std::vector<std::byte> out(values.size());
  size_t from = 0;
  for (size_t at = 0; at < out.size(); at += size) {
    std::memcpy(out.data() + at, values.data() + from, size);
    for (size_t i = rank; i-- > 0;) {
      from += strides[i];
      if (++index[i] < size_t(layout.shape[i])) break;
      from -= index[i] * strides[i];
      index[i] = 0;
    }
  }
  return out;
}

void swap_bytes(std::vector<std::byte>& values, size_t size) {
  for (auto at = values.begin(); at != values.end(); at += ptrdiff_t(size))
    std::reverse(at, at + ptrdiff_t(size));
}

// Files may store any byte; in memory, a bool is 0 or 1.
void limit_bools(ElementType type, std::span<std::byte> values) {
  if (type != ElementType::kBool) return;
  for (std::byte& value : values) value = std::byte(value != std::byte{0});
}

StoredArray described(const std::string& name, const ArrayLayout& layout) {
  StoredArray array;
  array.field.name = name;
  array.field.type = layout.type;
  array.field.shape.assign(layout.shape.begin() + 1, layout.shape.end());
  array.samples = size_t(layout.shape[0]);
  return array;
}

std::string listed(const std::vector<StoredArray>& arrays) {
  std::string names;
  for (const StoredArray& array : arrays) names += (names.empty() ? "" : ", ") + array.field.name;
  return names;
}

std::vector<StoredArray>::iterator find_array(std::vector<StoredArray>& arrays,
                                              const std::string& name, const std::string& path) {
  const auto found = std::ranges::find_if(
      arrays, [&](const StoredArray& array) { return array.field.name == name; });
  if (found != arrays.end()) return found;
  fail(ErrorKind::kUsage, "there is no array \"" + name + "\"", path, "It has " + listed(arrays));
}

class ArraySource : public IndexedSource {
 public:
  // `lengths`: the name of their array; empty if no field is a sequence.
  ArraySource(std::vector<StoredArray> arrays, std::string path, const std::string& lengths)
      : arrays_(std::move(arrays)), path_(std::move(path)) {
    read_lengths(lengths);
    find_classes();
    find_voxel_classes();
    for (const StoredArray& array : arrays_) fields_.push_back(array.field);
    bytes_ = bytes_of(std::span(fields_));
    for (const StoredArray& array : arrays_)
      if (array.file) look_ahead_ = std::max(look_ahead_, array.file->look_ahead());
    if (look_ahead_ > 0) check_far_size(bytes_, path_);
  }

  size_t size() const override { return arrays_.front().samples; }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  size_t length(size_t index) const override { return lengths_.empty() ? 0 : lengths_[index]; }
  uint64_t bytes(size_t) const override { return bytes_; }
  std::string warning() const override { return warning_; }
  int64_t label(size_t index) const override {
    if (!has_labels_) return 0;
    const StoredArray& target = arrays_[target_];
    const ElementRow& element = element_row(target.field.type);
    return element.whole_number(target.values.data() + index * element.bytes);
  }
  uint64_t look_ahead() const override { return look_ahead_; }
  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    for (const StoredArray& array : arrays_) {
      const uint64_t bytes = array.field.bytes();
      if (array.file) array.file->advise(advice, array.offset + first * bytes, count * bytes);
    }
  }
  void read(size_t index, Sample& out) const override {
    out.name.assign(path_).append(":").append(std::to_string(index));
    out.encoding = SampleEncoding::kTensors;
    out.label = label(index);
    out.bytes.resize(bytes_);
    std::byte* to = out.bytes.data();
    for (const StoredArray& array : arrays_) {
      array.read(index, to);
      to += array.field.bytes();
    }
  }

 private:
  void read_lengths(const std::string& name) {
    if (name.empty()) return;
    const auto longest = std::ranges::find_if(arrays_, [](const StoredArray& array) {
                           return array.field.is_sequence;
                         })->field.shape[0];
    const StoredArray& array = *find_array(arrays_, name, path_);
    const ElementRow& element = element_row(array.field.type);
    for (size_t i = 0; i < array.samples; ++i) {
      const std::byte* const from = array.values.data() + i * element.bytes;
      const int64_t length = element.whole_number(from);
      if (length < 1 || length > longest)
        fail(
            ErrorKind::kData,
            "array \"" + name + "\": sample " + std::to_string(i) + " has the length " +
                (length < 0 && element.number(from) > 0 ? "2^63 or more" : std::to_string(length)) +
                ", and the sequences have places for 1 to " + std::to_string(longest),
            path_, "Correct the lengths, or remove samples of length 0");
      lengths_.push_back(uint32_t(length));
    }
  }

  // A target of small whole numbers, one for each sample, is a class.
  void find_classes() {
    const auto found = std::ranges::find_if(
        arrays_, [](const StoredArray& array) { return array.field.is_target; });
    if (found == arrays_.end() || found->file || !found->field.shape.empty() ||
        !is_whole(found->field.type))
      return;
    target_ = size_t(found - arrays_.begin());
    const ElementRow& element = element_row(found->field.type);
    int64_t most = 0;
    for (size_t i = 0; i < found->samples; ++i) {
      const int64_t value = element.whole_number(found->values.data() + i * element.bytes);
      if (value < 0 || value >= kMaxClassNumbers) return;
      most = std::max(most, value);
    }
    found->field.values = most + 1;
    classes_ = number_classes(size_t(most) + 1);
    has_labels_ = true;
  }

  // The same for a target that is the labels of a volume's voxels, if it is in memory.
  void find_voxel_classes() {
    std::vector<TensorField> fields;
    fields.reserve(arrays_.size());
    for (const StoredArray& array : arrays_) fields.push_back(array.field);
    if (!labelled_volume(fields)) return;
    StoredArray& target = *std::ranges::find_if(
        arrays_, [](const StoredArray& array) { return array.field.is_target; });
    if (target.file) return;
    const ElementRow& element = element_row(target.field.type);
    int64_t most = 0;
    bool has_ignored = false;
    for (size_t at = 0; at < target.values.size(); at += element.bytes) {
      const int64_t value = element.whole_number(target.values.data() + at);
      has_ignored |= value == kIgnoredClass;
      if (value != kIgnoredClass) most = std::max(most, value);
    }
    if (has_ignored && most > kIgnoredClass)
      warning_ = path_ + ": voxels of class 255 are ignored, and the classes go up to " +
                 std::to_string(most) + ". Give class 255 another number";
    if (most >= kMaxClassNumbers) return;
    target.field.values = most + 1;
    classes_ = number_classes(size_t(most) + 1);
  }

  std::vector<StoredArray> arrays_;
  const std::string path_;
  std::vector<TensorField> fields_;
  std::vector<std::string> classes_;
  std::string warning_;
  std::vector<uint32_t> lengths_;  // of samples; empty: no field is a sequence
  bool has_labels_ = false;        // a sample has a class
  size_t target_ = 0;              // if so: the array of labels
  size_t bytes_ = 0;               // of a sample
  uint64_t look_ahead_ = 0;
};

// Moves the chosen arrays to the front, in the chosen order, and removes the others.
void choose(std::vector<StoredArray>& arrays, const ArrayChoice& choice, const std::string& path) {
  if (choice.fields.empty()) return;
  auto end = arrays.begin();
  for (const std::string& name : choice.fields) {
    const auto found = find_array(arrays, name, path);
    if (found < end)
      fail(ErrorKind::kUsage, "fields names the array \"" + name + "\" twice", path,
           "Name each once");
    std::rotate(end, found, found + 1);
    ++end;
  }
  arrays.erase(end, arrays.end());
}

void mark_target(std::vector<StoredArray>& arrays, const ArrayChoice& choice,
                 const std::string& path) {
  if (!choice.target.empty()) {
    find_array(arrays, choice.target, path)->field.is_target = true;
    return;
  }
  if (choice.vocabulary > 0) return;
  for (const char* usual : {"y", "target", "label", "labels"})
    for (StoredArray& array : arrays)
      if (array.field.name == usual) {
        array.field.is_target = true;
        return;
      }
}

void mark_volumes(std::vector<StoredArray>& arrays, const ArrayChoice& choice,
                  const std::string& path) {
  for (const std::string& name : choice.volumes) {
    TensorField& field = find_array(arrays, name, path)->field;
    if (const char* reason = why_no_volume(field))
      fail(ErrorKind::kUsage, "array \"" + name + "\" " + reason, path,
           "Name an array of [samples, depth, height, width] or [..., channels] with volume=");
    field.is_volume = true;
  }
}

// Marks the arrays whose samples have the lengths that an array gives.
void mark_sequences(std::vector<StoredArray>& arrays, const ArrayChoice& choice,
                    const std::string& path) {
  if (choice.lengths.empty() && !choice.sequences.empty())
    fail(ErrorKind::kUsage, "sequence= names sequences, and lengths= is missing", path,
         "Name the array of the samples' lengths with lengths=NAME");
  if (choice.lengths.empty()) return;
  const TensorField& lengths = find_array(arrays, choice.lengths, path)->field;
  if (!lengths.shape.empty() || !is_integer(lengths.type) || lengths.is_target)
    fail(ErrorKind::kUsage, "array \"" + choice.lengths + "\" is not one of lengths", path,
         "Name an array [samples] of whole numbers, which is not the target, with lengths=NAME");
  for (const std::string& name : choice.sequences)
    find_array(arrays, name, path)->field.is_sequence = true;
  std::vector<TensorField> fields;
  for (StoredArray& array : arrays) {
    TensorField& field = array.field;
    if (choice.sequences.empty()) field.is_sequence = !field.is_target && !field.shape.empty();
    fields.push_back(field);
  }
  if (const char* reason = why_no_sequences(fields))
    fail(
        ErrorKind::kUsage, std::string("the source ") + reason, path,
        "Name arrays [samples, length, ...] of one length with sequence=NAME+NAME, and others with "
        "fields=NAME+NAME");
  if (std::ranges::none_of(fields, &TensorField::is_sequence))
    fail(ErrorKind::kUsage, "there is no array of sequences beside the lengths", path,
         "Name it with sequence=NAME");
}

}  // namespace

void measure(ArrayLayout& layout, const std::string& where) {
  const auto refuse = [&](const char* what) {
    fail(ErrorKind::kData, what, where, "Write arrays of [samples, ...]");
  };
  if (layout.shape.empty()) refuse("the array is a single value, without samples");
  uint64_t bytes = bytes_of(layout.type);
  for (const int64_t size : layout.shape) {
    if (size <= 0) refuse(size < 0 ? "the array has a negative size" : "the array has no values");
    if (__builtin_mul_overflow(bytes, uint64_t(size), &bytes))
      refuse("the array has more values than can be counted");
  }
  layout.bytes = bytes;
}

void StoredArray::read(size_t index, std::byte* out) const {
  const size_t bytes = field.bytes();
  if (!file) {
    std::memcpy(out, values.data() + index * bytes, bytes);
    return;
  }
  file->read_at(offset + uint64_t(index) * bytes, {out, bytes});
  limit_bools(field.type, {out, bytes});
}

StoredArray stored_in_memory(std::vector<std::byte> values, const std::string& name,
                             const ArrayLayout& layout) {
  StoredArray array = described(name, layout);
  if (layout.is_big_endian) swap_bytes(values, bytes_of(layout.type));
  if (layout.is_fortran && layout.shape.size() > 1) values = in_c_order(values, layout);
  limit_bools(layout.type, values);
  array.values = std::move(values);
  return array;
}

StoredArray stored_in(std::shared_ptr<const ReadableFile> file, uint64_t offset,
                      const std::string& name, const ArrayLayout& layout,
                      const std::string& where) {
  const bool may_be_classes = layout.shape.size() == 1 && is_whole(layout.type);
  const bool in_order = !layout.is_fortran || layout.shape.size() == 1;
  const bool as_is = !layout.is_big_endian && in_order;
  if (as_is && !may_be_classes && layout.bytes > kReadAtOnce) {
    StoredArray array = described(name, layout);
    array.file = std::move(file);
    array.offset = offset;
    return array;
  }
  if (file->look_ahead() > 0) check_far_size(layout.bytes, where);
  require_memory(in_order ? layout.bytes : 2 * layout.bytes, where, "the array takes");
  std::vector<std::byte> values(layout.bytes);
  file->read_at(offset, values);
  return stored_in_memory(std::move(values), name, layout);
}

ArrayChoice take_array_choice(std::string& rest) {
  ArrayChoice choice;
  choice.target = take_option(rest, "target");
  choice.fields = take_names(rest, "fields");
  choice.volumes = take_names(rest, "volume");
  choice.lengths = take_option(rest, "lengths");
  choice.sequences = take_names(rest, "sequence");
  constexpr const char* kRemedy = "Write npz:FILE,lengths=NAME,vocabulary=50257";
  choice.vocabulary = take_number(rest, "vocabulary", 1, kMaxVocabulary, kRemedy).value_or(0);
  return choice;
}

std::unique_ptr<Dataset> make_array_source(std::vector<StoredArray> arrays,
                                           const ArrayChoice& choice, const std::string& path) {
  choose(arrays, choice, path);
  mark_target(arrays, choice, path);
  mark_volumes(arrays, choice, path);
  mark_sequences(arrays, choice, path);
  for (const StoredArray& array : arrays)
    if (array.samples != arrays.front().samples)
      fail(ErrorKind::kData,
           "array " + arrays.front().field.name + " has " + std::to_string(arrays.front().samples) +
               " samples, and array " + array.field.name + " has " + std::to_string(array.samples),
           path, "Name those that belong together with ,fields=NAME+NAME");
  auto source = std::make_unique<ArraySource>(std::move(arrays), path, choice.lengths);
  if (choice.vocabulary > 0) return split_tokens(std::move(source), choice, path);
  return source;
}

}  // namespace saturate
