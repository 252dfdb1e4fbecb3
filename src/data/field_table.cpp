#include "data/field_table.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "data/elements.h"
#include "data/volume_fields.h"
#include "saturate/data/loader.h"

namespace saturate {
namespace {

constexpr uint32_t kTargetFlag = 1, kVolumeFlag = 2, kSequenceFlag = 4;
constexpr uint32_t kMaxDimensions = 32;
constexpr int64_t kMaxValues = std::numeric_limits<int32_t>::max();

std::string quoted(const TensorField& field) {
  return "field \"" + field.name + "\" ";
}

// Whether the values take no more bytes than a sample may have, which is `most`.
bool is_sized(const TensorField& field, uint64_t most, uint64_t& bytes) {
  bytes = bytes_of(field.type);
  for (const int64_t size : field.shape)
    if (size <= 0 || __builtin_mul_overflow(bytes, uint64_t(size), &bytes) || bytes > most)
      return false;
  return true;
}

std::string problem_of_field(const TensorField& field) {
  if (field.shape.size() > kMaxDimensions)
    return "has " + std::to_string(field.shape.size()) + " dimensions";
  const int64_t most = field.type == ElementType::kBool ? 2 : kMaxValues;
  if (field.values < 0 || field.values > most || (field.values > 0 && !is_whole(field.type)))
    return "cannot have values below " + std::to_string(field.values);
  if (!field.symbols.empty() && field.symbols.size() != size_t(field.values))
    return "has " + std::to_string(field.symbols.size()) + " symbols for " +
           std::to_string(field.values) + " values";
  if (const char* reason = field.is_volume ? why_no_volume(field) : nullptr)
    return std::string("is marked as a volume, and ") + reason;
  return {};
}

}  // namespace

void put_fields(std::vector<std::byte>& out, std::span<const TensorField> fields) {
  for (const TensorField& field : fields) {
    put_sized(out, field.name);
    put_sized(out, element_name(field.type));
    put_number(out, (field.is_target ? kTargetFlag : 0) | (field.is_volume ? kVolumeFlag : 0) |
                        (field.is_sequence ? kSequenceFlag : 0));
    put_number(out, uint64_t(field.values));
    put_number(out, uint32_t(field.shape.size()));
    for (const int64_t size : field.shape) put_number(out, uint64_t(size));
    put_sized(out, field.symbols);
  }
}

std::string take_fields(ByteReader& reader, uint32_t count, std::vector<TensorField>& fields) {
  for (uint32_t i = 0; i < count; ++i) {
    TensorField field;
    field.name = take_sized(reader);
    const std::string type = take_sized(reader);
    const auto flags = reader.number<uint32_t>();
    field.values = int64_t(reader.number<uint64_t>());
    const auto dimensions = reader.number<uint32_t>();
    if (dimensions > kMaxDimensions)
      return quoted(field) + "has " + std::to_string(dimensions) + " dimensions";
    for (uint32_t d = 0; d < dimensions; ++d)
      field.shape.push_back(int64_t(reader.number<uint64_t>()));
    field.symbols = take_sized(reader);
    if (!reader.ok()) return "the fields end beyond the index";
    const ElementRow* const element = find_element(&ElementRow::name, type);
    if (!element) return quoted(field) + "is of type \"" + type + "\"";
    field.type = element->type;
    field.is_target = (flags & kTargetFlag) != 0;
    field.is_volume = (flags & kVolumeFlag) != 0;
    field.is_sequence = (flags & kSequenceFlag) != 0;
    fields.push_back(std::move(field));
  }
  return {};
}

std::string problem_of(std::span<const TensorField> fields, size_t classes) {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();  // bytes of a sample
  uint64_t total = 0;
  const TensorField* target = nullptr;
  std::vector<std::string_view> names;
  for (const TensorField& field : fields) {
    uint64_t bytes = 0;
    if (field.name.empty()) return "a field has no name";
    names.push_back(field.name);
    const bool fits = is_sized(field, kMost, bytes);
    total += bytes;
    if (!fits || total > kMost)
      return quoted(field) + "has no values, or makes a sample larger than 4 GiB";
    if (const std::string problem = problem_of_field(field); !problem.empty())
      return quoted(field) + problem;
    if (!field.is_target) continue;
    if (target) return "there are two targets";
    target = &field;
  }
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    return "field \"" + std::string(*twice) + "\" is there twice";
  if (const char* reason = why_no_sequences(fields)) return std::string("it ") + reason;
  if (classes == 0) return {};
  if (!target || target->values < 1 || size_t(target->values) > classes)
    return "there are " + std::to_string(classes) + " classes, and no target of as many values";
  return {};
}

std::string problem_of_values(std::span<const TensorField> fields, size_t length,
                              std::span<const std::byte> bytes) {
  const bool has_voxels = labelled_volume(fields) != nullptr;
  for (const TensorField& field : fields) {
    auto values = bytes.first(field.bytes());
    bytes = bytes.subspan(values.size());
    if (field.is_sequence) values = values.first(values.size() / size_t(field.shape[0]) * length);
    if (field.values == 0 && field.type != ElementType::kBool) continue;
    const int64_t limit = field.values > 0 ? field.values : 2;
    const auto exceeds = element_row(field.type).exceeds;
    if (exceeds && exceeds(values, uint64_t(limit), has_voxels && field.is_target))
      return quoted(field) + "has a number that is not from 0 to " + std::to_string(limit - 1);
  }
  return {};
}

}  // namespace saturate
