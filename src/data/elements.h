// Values of tensors as stored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "saturate/data/dataset.h"

namespace saturate {

inline bool is_whole(ElementType type) {
  return type < ElementType::kFloat16;
}

// REQUIRES: is_whole(type). Those from 2^63 on are -1.
int64_t whole_number(ElementType type, const std::byte* from);

double as_number(ElementType type, const std::byte* from);

}  // namespace saturate
