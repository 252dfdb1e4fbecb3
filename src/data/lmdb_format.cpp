#include "data/lmdb_format.h"

#include <fmt/format.h>

#include "data/bytes.h"
#include "data/shard_format.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char* kPackAgain =
    "It is damaged: fetch it again, or create it again with saturate data pack";

}  // namespace

std::vector<std::byte> encode_meta(const LmdbMeta& meta) {
  std::vector<std::byte> bytes;
  put_text(bytes, kLmdbMagic);
  put_number(bytes, kLmdbVersion);
  put_number(bytes, uint32_t(meta.classes.size()));
  put_number(bytes, meta.samples);
  put_classes(bytes, meta.classes);
  return bytes;
}

LmdbMeta parse_meta(std::span<const std::byte> bytes, const std::string& path) {
  ByteReader reader(bytes);
  if (reader.text(kLmdbMagic.size()) != kLmdbMagic)
    fail(ErrorKind::kData,
         "LMDB was not written by saturate: its record \"saturate\" has other contents", path,
         "Create it with saturate data pack SOURCE --out lmdb:FOLDER");
  const auto version = reader.number<uint32_t>();
  if (reader.ok() && version != kLmdbVersion)
    fail(ErrorKind::kData,
         "LMDB holds data of version " + std::to_string(version) +
             ", and this saturate reads version " + std::to_string(kLmdbVersion),
         path, "Use the saturate that wrote it, or a newer one");
  const auto classes = reader.number<uint32_t>();
  LmdbMeta meta;
  meta.samples = reader.number<uint64_t>();
  meta.classes = take_classes(reader, classes);
  if (!reader.ok() || reader.left() != 0)
    fail(ErrorKind::kData, "LMDB has a damaged record \"saturate\"", path, kPackAgain);
  return meta;
}

std::string lmdb_key(uint64_t number) {
  return fmt::format("{:010}", number);
}

std::vector<std::byte> encode_record(const Sample& sample) {
  const bool raw = sample.encoding == SampleEncoding::kRaw;
  std::vector<std::byte> bytes;
  bytes.reserve(24 + sample.name.size() + sample.bytes.size());
  put_number(bytes, uint32_t(sample.label));
  put_number(bytes, uint16_t(raw ? PayloadKind::kRaw : PayloadKind::kEncoded));
  put_number(bytes, raw ? uint16_t(sample.channels) : uint16_t{0});
  put_number(bytes, raw ? uint32_t(sample.width) : 0u);
  put_number(bytes, raw ? uint32_t(sample.height) : 0u);
  put_number(bytes, checksum_of(sample.bytes));
  put_number(bytes, uint32_t(sample.name.size()));
  put_text(bytes, sample.name);
  put_bytes(bytes, sample.bytes);
  return bytes;
}

LmdbRecord parse_record(std::span<const std::byte> bytes, const std::string& where) {
  ByteReader reader(bytes);
  LmdbRecord record;
  record.label = reader.number<uint32_t>();
  record.kind = reader.number<uint16_t>();
  record.channels = reader.number<uint16_t>();
  record.width = reader.number<uint32_t>();
  record.height = reader.number<uint32_t>();
  record.crc = reader.number<uint32_t>();
  record.name = reader.text(reader.number<uint32_t>());
  if (!reader.ok()) fail(ErrorKind::kData, "record ends within its header", where, kPackAgain);
  record.bytes = reader.take(reader.left());
  return record;
}

}  // namespace saturate
