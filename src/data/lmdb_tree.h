// The B+ tree of an LMDB file as it lies on disk, of the unnamed database: structs MDB_meta,
// MDB_page and MDB_node of OpenLDAP's libraries/liblmdb/mdb.c, 0.9.x, on a 64-bit little-endian
// machine. LMDB itself trusts its pages, and where they are damaged an assertion of its ends the
// process: here each page is read through Env and checked, so that damage is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/env.h"

namespace saturate {

// Where a record's value lies in the file, bytes.
struct LmdbValue {
  uint64_t offset = 0, size = 0;
};

// Shows one commit. Safe for concurrent use but for select().
class LmdbTree {
 public:
  // Shows the newest commit. Fails with kData naming `path` where the file is no LMDB, or shorter
  // than that commit says.
  LmdbTree(std::unique_ptr<ReadableFile> file, std::string path);

  const ReadableFile& file() const { return *file_; }
  // Shows the commit of that number. False where the file holds it no longer: each is written over
  // by the second one after it.
  bool select(uint64_t transaction);

  using Visit = std::function<void(std::string_view key, const LmdbValue& value)>;
  // Calls visit() for every record, in the order of keys. Fails with kData on a damaged page.
  void walk(const Visit& visit) const;
  // Calls visit() for the record of the greatest key. False where there is none. Errors as above.
  bool visit_last(const Visit& visit) const;

 private:
  struct Meta {
    uint32_t magic, version, page_bytes;
    uint16_t depth;  // levels of the tree
    uint64_t root, last_page, transaction;
  };
  // A branch's nodes lead to pages a level further down, a leaf's hold the records.
  struct Page {
    uint64_t number = 0;
    std::vector<std::byte> bytes;
    size_t nodes = 0;
  };

  Meta read_meta(uint64_t offset) const;
  void use(const Meta& meta);
  [[noreturn]] void fail_page(uint64_t number) const;
  Page read_page(uint64_t number, bool is_leaf) const;
  std::span<const std::byte> node(const Page& page, size_t i) const;
  uint64_t child(const Page& page, size_t i) const;
  void visit_record(const Page& leaf, size_t i, const Visit& visit) const;
  void walk_below(uint64_t number, int levels, uint64_t& pages_left, const Visit& visit) const;

  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  Meta meta_{};
};

}  // namespace saturate
