// The shard format, docs/shard_format.md: a header page, the samples' bytes, an index, a trailer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/env.h"

namespace saturate {

constexpr std::string_view kShardMagic = "SATSHARD";
constexpr std::string_view kShardTrailerMagic = "SATINDEX";
// Written for images; version 1, without kind 3, can be read too.
constexpr uint32_t kShardVersion = 2;
constexpr uint32_t kTensorShardVersion = 3;  // for tensors: it has their fields
constexpr uint64_t kShardPage = 4096;        // size of the header page; the index is page-aligned
                                             // too
constexpr uint64_t kShardAlignment = 64;     // of a sample's bytes
constexpr uint64_t kShardHeaderBytes = 64;   // the rest of its page is zero
constexpr uint64_t kShardTrailerBytes = 64;

// The encoding of a sample's bytes.
enum class PayloadKind : uint16_t { kEncoded = 1, kRaw = 2, kSegmented = 3, kTensors = 4 };

// A sample's entry in the index, in file layout.
struct ShardRecord {
  uint64_t offset;    // of its bytes, from the start of the file
  uint32_t size;      // bytes
  uint32_t crc;       // CRC-32 of them
  uint32_t label;     // position in the class table
  uint16_t kind;      // PayloadKind
  uint16_t channels;  // kRaw: 1 or 3; else 0
  // Pixels; kEncoded: 0. kTensors: the width is the length of the sample's sequences, else 0.
  uint32_t width, height;
  uint64_t name_end;  // in the names; the name starts where the previous one ends
};
static_assert(sizeof(ShardRecord) == 40);

struct ShardIndex {
  std::vector<ShardRecord> records;
  std::vector<std::string> classes;
  std::vector<TensorField> fields;  // empty: of images
  std::string note;                 // Dataset::note() of the source; not of images
  std::string names;                // of all samples, concatenated

  std::string_view name(size_t record) const {
    const uint64_t begin = record == 0 ? 0 : records[record - 1].name_end;
    return std::string_view(names).substr(begin, records[record].name_end - begin);
  }
};

// Reads and checks header, index and trailer; every record then lies within the file and after the
// previous one. Fails with kData.
ShardIndex read_shard_index(const ReadableFile& file, const std::string& path);

// Checks the kind, size and label of a stored image against `classes` and its byte count: returns
// the problem, or "". `last`: the last kind that the container supports. Shared with lmdb:.
std::string check_payload(PayloadKind last, uint16_t kind, uint16_t channels, uint32_t width,
                          uint32_t height, uint64_t size, uint32_t label, size_t classes);

// Sets the fields implied by a stored sample's kind. REQUIRES: check_payload() passed.
void set_encoding(Sample& sample, uint16_t kind, uint16_t channels, uint32_t width,
                  uint32_t height);
PayloadKind kind_of(const Sample& sample);

}  // namespace saturate
