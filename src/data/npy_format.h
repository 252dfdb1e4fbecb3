// The formats of numpy.save and numpy.savez:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/array_source.h"

namespace saturate {

// A prefix of this many bytes holds every header that is read (numpy's own limit is 10,000).
constexpr size_t kNpyHeaderBytes = 12 << 10;

struct NpyHeader {
  ArrayLayout layout;
  uint64_t values_at = 0;  // bytes from the start
};

// Parses the start of a .npy file of `size` bytes. Fails with kData naming `where`: not such a
// file, truncated, continuing after the array, or of a type that is not numbers (objects are
// pickles, which are never read).
NpyHeader parse_npy_header(std::span<const std::byte> begin, uint64_t size,
                           const std::string& where);

}  // namespace saturate
