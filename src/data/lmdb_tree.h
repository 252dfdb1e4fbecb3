// The B+ tree of an LMDB file's unnamed database, as stored on disk: structs MDB_meta, MDB_page and
// MDB_node of OpenLDAP's libraries/liblmdb/mdb.c, 0.9.x, on a 64-bit little-endian machine. LMDB
// trusts its pages, and damage trips an assertion that aborts the process: here each page is read
// through Env and checked, so that damage is an error.
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

#include "saturate/data/env.h"

namespace saturate {

// The location of a record's value in the file, bytes.
struct LmdbValue {
  uint64_t offset = 0, size = 0;
};

// A view of one commit. Safe for concurrent use, except select().
class LmdbTree {
 public:
  // Selects the newest commit. Fails with kData naming `path` if the file is not an LMDB, or is
  // shorter than that commit requires.
  LmdbTree(std::unique_ptr<ReadableFile> file, std::string path);

  const ReadableFile& file() const { return *file_; }
  // Selects the commit of that number. False if it is no longer in the file: each is overwritten by
  // the second commit after it.
  bool select(uint64_t transaction);

  using Visit = std::function<void(std::string_view key, const LmdbValue& value)>;
  // Calls visit() for every record, in key order. Fails with kData on a damaged page.
  void walk(const Visit& visit) const;
  // Calls visit() for the record of the greatest key. False if there is none. Errors as above.
  bool visit_last(const Visit& visit) const;

 private:
  struct Meta {
    uint32_t magic, version, page_bytes;
    uint16_t depth;  // levels of the tree
    uint64_t root, last_page, transaction;
  };
  // A branch's nodes refer to pages one level below, a leaf's hold the records.
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
