#include "data/lmdb_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "data/bytes.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr uint32_t kLmdbFileMagic = 0xBEEFC0DE;
constexpr uint32_t kLmdbFileVersion = 1;
constexpr size_t kMetaBytes = 152;
constexpr size_t kPageHeaderBytes = 16, kNodeHeaderBytes = 8;
constexpr uint16_t kBranchPage = 1, kLeafPage = 2, kPageKinds = 0x2f;  // page flags
constexpr uint16_t kElsewhere = 1;  // record flag: the value has its own pages
constexpr int kMostLevels = 32;     // as LMDB's cursors
constexpr uint64_t kNoPage = UINT64_MAX;
constexpr const char* kFetchLmdbAgain =
    "It is truncated or damaged: fetch it again, or create it again with saturate data pack";

// A number at `offset`, which must be in range.
template <class T>
T lmdb_number_at(std::span<const std::byte> bytes, size_t offset) {
  return ByteReader(bytes.subspan(offset)).number<T>();
}

}  // namespace

LmdbTree::LmdbTree(std::unique_ptr<ReadableFile> file, std::string path)
    : file_(std::move(file)), path_(std::move(path)) {
  const Meta meta = file_->size() >= kMetaBytes ? read_meta(0) : Meta{};
  const uint64_t page = meta.page_bytes;
  if (meta.magic != kLmdbFileMagic || meta.version != kLmdbFileVersion ||
      !std::has_single_bit(page) || page < 512 || page > (1 << 16))
    fail(ErrorKind::kData, "not an LMDB", path_,
         "Check the path; saturate data pack SOURCE --out lmdb:FOLDER writes one");
  if (file_->size() < 2 * page) fail(ErrorKind::kData, "LMDB is truncated", path_, kFetchLmdbAgain);
  const Meta second = read_meta(page);
  if (second.magic != meta.magic || second.version != meta.version || second.page_bytes != page)
    fail_page(1);
  use(second.transaction > meta.transaction ? second : meta);
}

// One of the two meta pages at the start, which commits write alternately.
LmdbTree::Meta LmdbTree::read_meta(uint64_t offset) const {
  std::vector<std::byte> bytes(kMetaBytes);
  file_->read_at(offset, bytes);
  ByteReader reader(bytes);
  Meta meta{};
  reader.skip(kPageHeaderBytes);
  meta.magic = reader.number<uint32_t>();
  meta.version = reader.number<uint32_t>();
  reader.skip(16);  // address and size of the map
  meta.page_bytes = reader.number<uint32_t>();
  reader.skip(44 + 6);  // the rest of the root record of free pages, and flags
  meta.depth = reader.number<uint16_t>();
  reader.skip(32);  // counts
  meta.root = reader.number<uint64_t>();
  meta.last_page = reader.number<uint64_t>();
  meta.transaction = reader.number<uint64_t>();
  return meta;
}

void LmdbTree::use(const Meta& meta) {
  const uint64_t pages = file_->size() / meta.page_bytes;
  if (meta.last_page >= pages)
    fail(ErrorKind::kData,
         "LMDB is truncated: it has " + std::to_string(pages) + " pages of " +
             std::to_string(meta.last_page + 1),
         path_, kFetchLmdbAgain);
  meta_ = meta;
}

bool LmdbTree::select(uint64_t transaction) {
  const Meta meta = read_meta((transaction & 1) * meta_.page_bytes);
  if (meta.page_bytes != meta_.page_bytes || meta.transaction != transaction) return false;
  use(meta);
  return true;
}

void LmdbTree::fail_page(uint64_t number) const {
  fail(ErrorKind::kData, "LMDB is damaged: its page " + std::to_string(number), path_,
       kFetchLmdbAgain);
}

LmdbTree::Page LmdbTree::read_page(uint64_t number, bool is_leaf) const {
  if (number < 2 || number > meta_.last_page) fail_page(number);
  Page page{number, std::vector<std::byte>(meta_.page_bytes)};
  file_->read_at(number * meta_.page_bytes, page.bytes);
  ByteReader reader(page.bytes);
  const auto own_number = reader.number<uint64_t>();
  reader.skip(2);
  const auto flags = reader.number<uint16_t>(), low = reader.number<uint16_t>();
  const bool fits = low > kPageHeaderBytes && low % 2 == 0 && low <= meta_.page_bytes;
  if (own_number != number || (flags & kPageKinds) != (is_leaf ? kLeafPage : kBranchPage) || !fits)
    fail_page(number);
  page.nodes = (low - kPageHeaderBytes) / 2;
  return page;
}

// From the node's header to the page's end; at least a header and a key are in range.
std::span<const std::byte> LmdbTree::node(const Page& page, size_t i) const {
  const std::span bytes(page.bytes);
  const size_t at = lmdb_number_at<uint16_t>(bytes, kPageHeaderBytes + 2 * i);
  if (at < kPageHeaderBytes + 2 * page.nodes || at + kNodeHeaderBytes > bytes.size())
    fail_page(page.number);
  const auto node = bytes.subspan(at);
  if (kNodeHeaderBytes + lmdb_number_at<uint16_t>(node, 6) > node.size()) fail_page(page.number);
  return node;
}

uint64_t LmdbTree::child(const Page& page, size_t i) const {
  const auto header = node(page, i);
  return uint64_t{lmdb_number_at<uint32_t>(header, 0)} |
         uint64_t{lmdb_number_at<uint16_t>(header, 4)} << 32;
}

void LmdbTree::visit_record(const Page& leaf, size_t i, const Visit& visit) const {
  const auto whole = node(leaf, i);
  const auto flags = lmdb_number_at<uint16_t>(whole, 4),
             key_bytes = lmdb_number_at<uint16_t>(whole, 6);
  const auto rest = whole.subspan(kNodeHeaderBytes + key_bytes);
  LmdbValue value{0, lmdb_number_at<uint32_t>(whole, 0)};
  if (flags == kElsewhere && rest.size() >= 8) {
    const auto first = lmdb_number_at<uint64_t>(rest, 0);
    if (first < 2 || first > meta_.last_page) fail_page(leaf.number);
    const uint64_t room = (meta_.last_page + 1 - first) * meta_.page_bytes - kPageHeaderBytes;
    if (value.size > room) fail_page(leaf.number);
    value.offset = first * meta_.page_bytes + kPageHeaderBytes;
  } else {
    if (flags != 0 || value.size > rest.size()) fail_page(leaf.number);
    value.offset = leaf.number * meta_.page_bytes + (leaf.bytes.size() - rest.size());
  }
  visit(as_text(whole.subspan(kNodeHeaderBytes, key_bytes)), value);
}

// `pages_left`: a damaged branch may refer to one page a thousand times.
void LmdbTree::walk_below(uint64_t number, int levels, uint64_t& pages_left,
                          const Visit& visit) const {
  if (pages_left-- == 0) fail_page(number);
  const Page page = read_page(number, levels == 1);
  for (size_t i = 0; i < page.nodes; ++i) {
    if (levels == 1)
      visit_record(page, i, visit);
    else
      walk_below(child(page, i), levels - 1, pages_left, visit);
  }
}

void LmdbTree::walk(const Visit& visit) const {
  if (meta_.root == kNoPage) return;
  if (meta_.depth == 0 || meta_.depth > kMostLevels) fail_page(meta_.root);
  uint64_t pages_left = meta_.last_page;
  walk_below(meta_.root, meta_.depth, pages_left, visit);
}

bool LmdbTree::visit_last(const Visit& visit) const {
  if (meta_.root == kNoPage) return false;
  if (meta_.depth == 0 || meta_.depth > kMostLevels) fail_page(meta_.root);
  uint64_t number = meta_.root;
  for (int level = meta_.depth; level > 1; --level) {
    const Page page = read_page(number, false);
    number = child(page, page.nodes - 1);
  }
  const Page leaf = read_page(number, true);
  visit_record(leaf, leaf.nodes - 1, visit);
  return true;
}

}  // namespace saturate
