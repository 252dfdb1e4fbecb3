// The element types common to safetensors and torch, by safetensors' names.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace saturate {

struct SafetensorsType {
  std::string_view name;
  at::ScalarType type;
};

inline constexpr std::array<SafetensorsType, 13> kSafetensorsTypes{{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"U64", at::kUInt64},
    {"I32", at::kInt},
    {"U32", at::kUInt32},
    {"I16", at::kShort},
    {"U16", at::kUInt16},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

// Any other value in a bool would be undefined behaviour.
inline bool are_bools(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte value) { return value <= std::byte{1}; });
}

}  // namespace saturate
