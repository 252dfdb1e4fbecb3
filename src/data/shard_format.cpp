#include "data/shard_format.h"

#include <algorithm>
#include <cstring>

#include "data/bytes.h"
#include "data/field_table.h"
#include "data/read_in_steps.h"
#include "data/read_undamaged.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

[[noreturn]] void fail_shard(const std::string& what, const std::string& path) {
  fail(ErrorKind::kData, "shard " + what, path,
       "It is truncated or damaged: fetch it again, or create it again with saturate data pack");
}

// The last four bytes of a header or trailer are the CRC-32 of all preceding ones.
bool has_checksum(std::span<const std::byte> block) {
  ByteReader crc(block.last(4));
  return crc.number<uint32_t>() == checksum_of(block.first(block.size() - 4));
}

uint32_t read_version(const ReadableFile& file, const std::string& path) {
  std::vector<std::byte> header(kShardHeaderBytes);
  if (file.size() >= header.size()) file.read_at(0, header);
  if (file.size() < header.size() || !as_text(header).starts_with(kShardMagic))
    fail(ErrorKind::kData, "not a shard of saturate", path,
         "Check the path; saturate data pack SOURCE --out shard:FILE writes shards");
  if (!has_checksum(header)) fail_shard("has a damaged header: wrong checksum", path);
  ByteReader reader(header);
  reader.skip(kShardMagic.size());
  const auto version = reader.number<uint32_t>();
  if (version < 1 || version > kTensorShardVersion)
    fail(ErrorKind::kData,
         "shard is of version " + std::to_string(version) +
             ", and this saturate reads versions 1 to " + std::to_string(kTensorShardVersion),
         path, "Use the saturate that wrote it, or a newer one");
  return version;
}

struct Trailer {
  uint64_t index_offset, index_size, samples;
  uint32_t classes, index_crc, fields;  // fields: from version 3 on, else reserved
};

Trailer read_trailer(const ReadableFile& file, const std::string& path) {
  if (file.size() < kShardPage + kShardTrailerBytes) fail_shard("is truncated", path);
  std::vector<std::byte> bytes(kShardTrailerBytes);
  file.read_at(file.size() - bytes.size(), bytes);
  ByteReader reader(bytes);
  if (reader.text(kShardTrailerMagic.size()) != kShardTrailerMagic)
    fail_shard("is truncated: its end is missing", path);
  if (!has_checksum(bytes)) fail_shard("has a damaged trailer: wrong checksum", path);
  const auto size = reader.number<uint64_t>();
  if (size != file.size())
    fail_shard("has " + std::to_string(file.size()) + " bytes, and " + std::to_string(size) +
                   " were written",
               path);
  Trailer trailer;
  trailer.index_offset = reader.number<uint64_t>();
  trailer.index_size = reader.number<uint64_t>();
  trailer.samples = reader.number<uint64_t>();
  trailer.classes = reader.number<uint32_t>();
  trailer.index_crc = reader.number<uint32_t>();
  trailer.fields = reader.number<uint32_t>();
  const uint64_t end = size - kShardTrailerBytes;
  if (trailer.index_offset < kShardPage || trailer.index_offset > end ||
      trailer.index_size != end - trailer.index_offset)
    fail_shard("has an index outside the file", path);
  if (trailer.samples > trailer.index_size / sizeof(ShardRecord))
    fail_shard("has an index too small for its " + std::to_string(trailer.samples) + " samples",
               path);
  if (trailer.samples == 0) fail(ErrorKind::kData, "shard holds no sample", path, "Remove it");
  return trailer;
}

// As check_payload(), for tensors. `bytes`: of all fields; `longest`: of sequences, 0 without.
std::string check_tensors(const ShardRecord& record, uint64_t bytes, uint64_t longest,
                          size_t classes) {
  if (record.kind != uint16_t(PayloadKind::kTensors))
    return "is of kind " + std::to_string(record.kind) + " in a shard of tensors";
  if (record.label >= std::max<size_t>(classes, 1))
    return "is of class " + std::to_string(record.label) + " of " + std::to_string(classes);
  if (longest > 0 && (record.width < 1 || record.width > longest))
    return "is of length " + std::to_string(record.width) + ", and not from 1 to " +
           std::to_string(longest);
  if (record.size == bytes) return {};
  return "has " + std::to_string(record.size) + " bytes, and its fields take " +
         std::to_string(bytes);
}

void check_records(const ShardIndex& index, PayloadKind last_kind, uint64_t data_end,
                   const std::string& path) {
  const uint64_t tensor_bytes = bytes_of(std::span(index.fields));
  const auto sequence = std::ranges::find_if(index.fields, &TensorField::is_sequence);
  const uint64_t longest = sequence == index.fields.end() ? 0 : uint64_t(sequence->shape[0]);
  uint64_t end = kShardPage, name_end = 0;
  for (size_t i = 0; i < index.records.size(); ++i) {
    const ShardRecord& record = index.records[i];
    const std::string which = "sample " + std::to_string(i);
    if (record.offset < end || record.offset > data_end || record.size > data_end - record.offset)
      fail_shard(
          "has an index that places " + which + " outside the data or over the sample before it",
          path);
    if (record.name_end < name_end || record.name_end > index.names.size())
      fail_shard("has an index that places the name of " + which + " outside the names", path);
    const std::string problem =
        tensor_bytes > 0
            ? check_tensors(record, tensor_bytes, longest, index.classes.size())
            : check_payload(last_kind, record.kind, record.channels, record.width, record.height,
                            record.size, record.label, index.classes.size());
    if (!problem.empty()) fail_shard("has an index where " + which + " " + problem, path);
    end = record.offset + record.size;
    name_end = record.name_end;
  }
}

// The fields, their checks, and the note.
void take_tensors(ByteReader& reader, uint32_t count, ShardIndex& index, const std::string& path) {
  if (count == 0) fail_shard("is of tensors, and has no field", path);
  std::string problem = take_fields(reader, count, index.fields);
  if (problem.empty()) problem = problem_of(index.fields, index.classes.size());
  if (!problem.empty()) fail_shard("has an index that cannot be right: " + problem, path);
  index.note = take_sized(reader);
  if (!reader.ok()) fail_shard("has a note beyond the end of its index", path);
}

}  // namespace

std::string check_payload(PayloadKind last, uint16_t kind, uint16_t channels, uint32_t width,
                          uint32_t height, uint64_t size, uint32_t label, size_t classes) {
  if (label >= classes)
    return "is of class " + std::to_string(label) + " of " + std::to_string(classes);
  if (kind == uint16_t(PayloadKind::kEncoded)) return {};
  if (kind < 1 || kind > uint16_t(last))
    return "is of kind " + std::to_string(kind) + ", which this saturate does not read";
  if (kind == uint16_t(PayloadKind::kSegmented)) {
    constexpr uint32_t kMaxJpegSide = 65535;
    const auto possible = [](uint32_t side) { return side > 0 && side <= kMaxJpegSide; };
    if (possible(width) && possible(height)) return {};
    return "is a JPEG of " + std::to_string(width) + " x " + std::to_string(height) + " pixels";
  }
  constexpr uint32_t kMaxSide = 1 << 20;  // keeps the product below from overflowing
  const bool sized = (channels == 1 || channels == 3) && width > 0 && width <= kMaxSide &&
                     height > 0 && height <= kMaxSide &&
                     uint64_t{width} * height * channels == size;
  if (sized) return {};
  return "has " + std::to_string(size) + " bytes for " + std::to_string(width) + " x " +
         std::to_string(height) + " pixels of " + std::to_string(channels) + " channels";
}

void set_encoding(Sample& sample, uint16_t kind, uint16_t channels, uint32_t width,
                  uint32_t height) {
  constexpr SampleEncoding kEncodings[] = {SampleEncoding::kEncoded, SampleEncoding::kRaw,
                                           SampleEncoding::kSegmented,
                                           SampleEncoding::kTensors};  // by PayloadKind, from 1
  sample.encoding = kEncodings[kind - 1];
  sample.channels = channels;
  sample.width = int(width);
  sample.height = int(height);
}

PayloadKind kind_of(const Sample& sample) {
  return sample.encoding == SampleEncoding::kRaw         ? PayloadKind::kRaw
         : sample.encoding == SampleEncoding::kSegmented ? PayloadKind::kSegmented
         : sample.encoding == SampleEncoding::kTensors   ? PayloadKind::kTensors
                                                         : PayloadKind::kEncoded;
}

ShardIndex read_shard_index(const ReadableFile& file, const std::string& path) {
  const uint32_t version = read_version(file, path);
  const Trailer trailer =
      read_undamaged(file, file.size() - std::min(file.size(), kShardTrailerBytes),
                     kShardTrailerBytes, [&] { return read_trailer(file, path); });
  const auto bytes = read_undamaged(file, trailer.index_offset, trailer.index_size, [&] {
    auto index = read_in_steps(file, trailer.index_offset, trailer.index_size);
    if (checksum_of(index) != trailer.index_crc)
      fail_shard("has a damaged index: wrong checksum", path);
    return index;
  });
  ByteReader reader(bytes);
  ShardIndex index;
  const auto records = reader.take(trailer.samples * sizeof(ShardRecord));
  index.records.resize(trailer.samples);
  std::memcpy(index.records.data(), records.data(), records.size());
  index.classes = take_classes(reader, trailer.classes);
  if (!reader.ok()) fail_shard("has class names beyond the end of its index", path);
  if (version == kTensorShardVersion) take_tensors(reader, trailer.fields, index, path);
  index.names = reader.text(reader.left());
  check_records(index, version == 1 ? PayloadKind::kRaw : PayloadKind::kSegmented,
                trailer.index_offset, path);
  return index;
}

}  // namespace saturate
