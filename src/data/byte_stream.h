// A file read from its start to its end, unpacked on the way where it is compressed with gzip.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "saturate/env.h"

namespace saturate {

// Not for concurrent use.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out`, or fails with kData where the data ends before or is damaged.
  virtual void read(std::span<std::byte> out) = 0;
  // Whether all has been read and, of a gzip file, its checksum is right.
  virtual bool at_end() = 0;
  // The most bytes that can still come: a bound to hold against what a header claims, before any
  // memory is taken for it.
  virtual uint64_t most_left() const = 0;
};

std::unique_ptr<ByteStream> open_byte_stream(Env& env, const std::string& path);

}  // namespace saturate
