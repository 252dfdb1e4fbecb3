#include "data/index_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "data/atomic_file.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr char kMagic[8] = {'S', 'A', 'T', 'P', 'O', 'I', 'N', 'T'};
constexpr uint32_t kVersion = 1;

struct IndexHeader {
  char magic[8];
  uint32_t version;
  uint32_t zero;
};
struct IndexTrailer {
  uint64_t files;      // records
  uint64_t directory;  // offset of the first
  uint32_t crc;        // CRC-32 of the directory
  uint32_t version;
  char magic[8];
};
static_assert(sizeof(IndexHeader) == 16 && sizeof(IndexTrailer) == 32);

uint32_t crc_of(const ScanKey& key, std::span<const uint8_t> coded) {
  return checksum_of(std::as_bytes(coded), checksum_of(std::as_bytes(std::span(&key, 1))));
}

template <class T>
void read_struct(const ReadableFile& file, uint64_t offset, T& out) {
  file.read_at(offset, std::as_writable_bytes(std::span(&out, 1)));
}

}  // namespace

// Returns what is wrong with it.
std::string IndexFile::load(std::unique_ptr<ReadableFile> file) {
  file_ = std::move(file);
  bytes_ = file_->size();
  if (bytes_ < sizeof(IndexHeader) + sizeof(IndexTrailer)) return "it is truncated";
  IndexHeader header;
  IndexTrailer trailer;
  read_struct(*file_, 0, header);
  std::string other =
      "it has version " + std::to_string(header.version) + ", not " + std::to_string(kVersion);
  if (header.version > kVersion)  // must not be replaced
    fail(ErrorKind::kData, other, "data.index", "Use the version of saturate that wrote it");
  if (header.version < kVersion) return other;
  const uint64_t end = bytes_ - sizeof trailer;
  read_struct(*file_, end, trailer);
  if (std::memcmp(trailer.magic, kMagic, sizeof kMagic) != 0 || trailer.version != kVersion)
    return "it is truncated or damaged";
  // The directory fills the file up to the trailer, which limits its size.
  if (trailer.directory < sizeof header || trailer.directory > end ||
      (end - trailer.directory) / sizeof(IndexRecord) != trailer.files ||
      (end - trailer.directory) % sizeof(IndexRecord) != 0)
    return "its directory has a wrong size";
  records_.resize(size_t(trailer.files));
  const auto bytes = std::as_writable_bytes(std::span(records_));
  file_->read_at(trailer.directory, bytes);
  crc_ = trailer.crc;
  if (checksum_of(bytes) != crc_) return "its directory is damaged";
  for (size_t i = 0; i < records_.size(); ++i) {
    const IndexRecord& record = records_[i];
    const bool in_order = i == 0 || records_[i - 1].key < record.key;
    if (!in_order || record.offset < sizeof header || record.offset > trailer.directory ||
        record.size > trailer.directory - record.offset)
      return "its directory is wrong";
  }
  use_ = std::vector<std::atomic<uint8_t>>(records_.size());
  return "";
}

std::unique_ptr<IndexFile> IndexFile::open(Env& env, const std::string& path, IndexState& state,
                                           std::string& problem) {
  state = IndexState::kAbsent;
  problem.clear();
  try {
    if (!env.exists(path)) return nullptr;
    auto file = env.open_readable(path);
    state = IndexState::kUnreadable;
    char magic[sizeof kMagic] = {};
    const size_t known = size_t(std::min<uint64_t>(file->size(), sizeof magic));
    file->read_at(0, std::as_writable_bytes(std::span(magic)).first(known));
    if (std::memcmp(magic, kMagic, known) != 0) {
      state = IndexState::kOtherFile;
      problem = "it is not an index of saturate";
      return nullptr;
    }
    std::unique_ptr<IndexFile> index(new IndexFile);
    problem = index->load(std::move(file));
    state = problem.empty() ? IndexState::kSound : IndexState::kDamaged;
    if (!problem.empty()) return nullptr;
    return index;
  } catch (const Error& error) {
    problem = error.reason();
    if (error.kind() == ErrorKind::kRun)
      state = IndexState::kUnreadable;
    else if (state == IndexState::kAbsent)
      state = IndexState::kOtherFile;
  }
  return nullptr;
}

bool IndexFile::is_current(Env& env, const std::string& path) const {
  try {
    const auto file = env.open_readable(path);
    if (file->size() != bytes_) return false;
    IndexTrailer trailer;
    read_struct(*file, bytes_ - sizeof trailer, trailer);
    return trailer.crc == crc_;
  } catch (const Error&) {
    return true;
  }
}

size_t IndexFile::position(const ScanKey& key) const {
  const auto at = std::lower_bound(
      records_.begin(), records_.end(), key,
      [](const IndexRecord& record, const ScanKey& wanted) { return record.key < wanted; });
  return at == records_.end() || at->key != key ? records_.size() : size_t(at - records_.begin());
}

bool IndexFile::fetch(size_t i, std::vector<uint8_t>& coded) const {
  coded.resize(records_[i].size);
  try {
    file_->read_at(records_[i].offset, std::as_writable_bytes(std::span(coded)));
    return true;
  } catch (const Error&) {
    return false;  // a file that was shortened meanwhile, or replaced on another machine
  }
}

bool IndexFile::is_sound(size_t i, std::span<const uint8_t> coded) const {
  return crc_of(records_[i].key, coded) == records_[i].crc;
}

bool IndexFile::read(size_t i, std::vector<uint8_t>& coded) const {
  return fetch(i, coded) && is_sound(i, coded);
}

bool IndexFile::find(const ScanKey& key, std::vector<uint8_t>& coded) const {
  const size_t i = position(key);
  if (i == size() || is_removed(i)) return false;
  if (!fetch(i, coded)) return false;
  const bool sound = is_sound(i, coded);
  uint8_t before = kNotUsed;  // another thread may have removed it meanwhile
  if (sound)
    use_[i].compare_exchange_strong(before, kUsed);
  else
    mark_removed(i);
  return sound;
}

bool IndexFile::has(const ScanKey& key, size_t bytes) const {
  const size_t i = position(key);
  return i < size() && !is_removed(i) && records_[i].size >= bytes;
}

void IndexFile::remove(const ScanKey& key) const {
  const size_t i = position(key);
  if (i < size()) mark_removed(i);
}

void IndexFile::mark_removed(size_t i) const {
  use_[i] = kRemoved;
  has_wrong_ = true;
}

IndexTotals write_index(Env& env, const std::string& path, const ScanIndex& index,
                        const IndexFile* old, const std::function<bool(const IndexRecord&)>& keep) {
  AtomicFile file(env, path, AtomicFile::Existing::kReplace);
  IndexHeader header{{}, kVersion, 0};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  file.append(std::as_bytes(std::span(&header, 1)));
  std::vector<IndexRecord> records;
  const auto add = [&](const ScanKey& key, std::span<const uint8_t> coded) {
    records.push_back({key, file.size(), uint32_t(coded.size()), crc_of(key, coded)});
    file.append(std::as_bytes(coded));
  };
  const auto by_key = [](const IndexRecord& a, const IndexRecord& b) { return a.key < b.key; };
  index.visit([&](const ScanKey& key, std::span<const uint8_t> coded) {
    const size_t i = old ? old->position(key) : 0;
    const bool has_more = old && i < old->size() && old->record(i).size > coded.size();
    if (!has_more || !keep(old->record(i))) add(key, coded);
  });
  std::sort(records.begin(), records.end(), by_key);
  const size_t from_memory = records.size();
  std::vector<uint8_t> coded;
  for (size_t i = 0; old && i < old->size(); ++i) {
    const IndexRecord& record = old->record(i);
    const auto end = records.begin() + ptrdiff_t(from_memory);
    if (std::binary_search(records.begin(), end, record, by_key) || !keep(record) ||
        !old->read(i, coded))
      continue;
    add(record.key, coded);
  }
  std::sort(records.begin(), records.end(), by_key);
  IndexTrailer trailer{records.size(), file.size(), 0, kVersion, {}};
  std::memcpy(trailer.magic, kMagic, sizeof kMagic);
  const auto directory = std::as_bytes(std::span(records));
  trailer.crc = checksum_of(directory);
  file.append(directory);
  file.append(std::as_bytes(std::span(&trailer, 1)));
  file.commit();
  return {records.size(), file.size()};
}

}  // namespace saturate
