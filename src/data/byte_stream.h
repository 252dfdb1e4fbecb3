// A file read sequentially, decompressed if it is gzip.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "saturate/data/env.h"

namespace saturate {

// Not for concurrent use.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out`, or fails with kData if the data ends before or is damaged.
  virtual void read(std::span<std::byte> out) = 0;
  // Whether all has been read; for a gzip file its checksum must match.
  virtual bool at_end() = 0;
  // Upper bound of the remaining bytes, to check a header's claims before allocating memory.
  virtual uint64_t most_left() const = 0;
};

std::unique_ptr<ByteStream> open_byte_stream(Env& env, const std::string& path);

}  // namespace saturate
