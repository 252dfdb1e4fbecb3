// Values of tensors as stored, and their types in the formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "saturate/data/dataset.h"

namespace saturate {

struct ElementRow {
  ElementType type;
  std::string_view name;  // as numpy and torch; a literal
  size_t bytes;
  std::string_view npy, safetensors;  // its names there, the first without the byte order; or ""
  int64_t (*whole_number)(const std::byte* from);  // null for fractions; from 2^63 on: -1
  double (*number)(const std::byte* from);
  // Whether a value is not in [0, limit); labels of voxels may also be negative, or kIgnoredClass.
  // Null for fractions.
  bool (*exceeds)(std::span<const std::byte> values, uint64_t limit, bool are_voxels);
};
const ElementRow& element_row(ElementType type);
// The type of that name in a format, or with ElementRow::name; null if there is none.
const ElementRow* find_element(std::string_view ElementRow::*format, std::string_view name);

inline bool is_whole(ElementType type) {
  return type < ElementType::kFloat16;
}
// Without bool: such a column is int64 for a model, all others float32.
inline bool is_integer(ElementType type) {
  return is_whole(type) && type != ElementType::kBool;
}

}  // namespace saturate
