// The layout of a dataset in an LMDB (http://www.lmdb.tech/doc/), docs/lmdb_format.md: one record
// per sample under its number, and one for the whole dataset.
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/dataset.h"

namespace saturate {

constexpr std::string_view kLmdbMetaKey = "saturate";  // sorts after all numbers
constexpr std::string_view kLmdbMagic = "SATLMDB1";
constexpr uint32_t kLmdbVersion = 1;

struct LmdbMeta {
  uint64_t samples = 0;
  std::vector<std::string> classes;
};
std::vector<std::byte> encode_meta(const LmdbMeta& meta);
// Fails with kData naming `path`.
LmdbMeta parse_meta(std::span<const std::byte> bytes, const std::string& path);

// The sample's number with ten digits, so that keys sort numerically.
std::string lmdb_key(uint64_t number);

// The fields before a sample's bytes.
struct LmdbRecord {
  uint32_t label = 0;
  uint16_t kind = 0, channels = 0;  // as in a shard
  uint32_t width = 0, height = 0;
  uint32_t crc = 0;  // CRC-32 of the bytes
  std::string_view name;
  std::span<const std::byte> bytes;
};
std::vector<std::byte> encode_record(const Sample& sample);
// Fields that point into `bytes` live as long as it. Fails with kData naming `where`.
LmdbRecord parse_record(std::span<const std::byte> bytes, const std::string& where);

// Owners of LMDB's handles. Destroying a transaction aborts it.
struct LmdbClose {
  void operator()(MDB_env* env) const { mdb_env_close(env); }
  void operator()(MDB_txn* txn) const { mdb_txn_abort(txn); }
};
using LmdbEnvPtr = std::unique_ptr<MDB_env, LmdbClose>;
using LmdbTxnPtr = std::unique_ptr<MDB_txn, LmdbClose>;

}  // namespace saturate
