#include "store/object_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/cancel.h"
#include "base/network_wait.h"
#include "base/printable.h"
#include "saturate/data/error.h"
#include "store/cache_names.h"

namespace saturate {
namespace {

// Fetched to open an object, and kept: the header of any format.
constexpr uint64_t kHeadBytes = 512;

}  // namespace

std::string checked_cache_folder(const std::string& folder) {
  const auto refuse = [&](const char* what, const char* remedy) {
    fail(ErrorKind::kUsage, std::string("data.cache_dir ") + what, store_name(folder), remedy);
  };
  if (folder.find("://") != std::string::npos) refuse("is a URL", "Give a folder on a local disk");
  if (folder.starts_with('~'))
    refuse("begins with ~, which only a shell expands", "Write the whole path");
  if (!folder.empty() && folder.find_first_not_of("/.") == std::string::npos)
    refuse("must be a folder for the cache alone", "Give one below it, such as /scratch/cache");
  return folder;
}

ObjectStore::ObjectStore(Env& env, const StoreOptions& options, const StoreTuning& tuning)
    : options_(options),
      tuning_(tuning),
      env_(env),
      credentials_(std::make_shared<CredentialSource>(env, options, tuning)),
      cache_(options.cache_dir.empty()
                 ? nullptr
                 : std::make_unique<ExtentCache>(env, checked_cache_folder(options.cache_dir),
                                                 options.cache_gb, tuning)),
      client_(env, options, tuning, *credentials_) {}

HttpCalls& ObjectStore::calls() {
  const MutexLock lock(mutex_);
  if (!calls_) calls_ = std::make_unique<HttpCalls>(env_, options_, tuning_, credentials_);
  return *calls_;
}

ObjectStore::ObjectPtr ObjectStore::known(const std::string& name, const StoreLocation& location,
                                          uint64_t size, const std::string& etag,
                                          const std::string& group) const {
  auto object = std::make_shared<StoreObject>();
  object->name = name;
  object->location = location;
  object->size = size;
  object->etag = etag;
  object->group = group;
  object->is_open = true;
  return object;
}

void ObjectStore::use_group(const std::string& group) {
  if (cache_) cache_->use(StoreObject::identity_of_group(group));
}

void ObjectStore::keep_only(const std::string& group, size_t count,
                            const std::function<ObjectPtr(size_t)>& object) {
  if (!cache_) return;
  std::vector<uint64_t> numbers;
  for (size_t i = 0; i < count; ++i) {
    const ObjectPtr one = object(i);
    const std::string identity = one->identity();
    for (uint64_t at = 0; at < one->size; at += tuning_.read_bytes)
      numbers.push_back(entry_number(identity, at));
  }
  std::ranges::sort(numbers);
  cache_->keep_only(StoreObject::identity_of_group(group), numbers);
}

void ObjectStore::use_list(const std::string& name) {
  if (cache_) cache_->use_list(name);
}

void ObjectStore::keep_list(const std::string& name, std::span<const std::byte> bytes) {
  if (cache_) cache_->keep_list(name, bytes);
}

ObjectStore::ObjectPtr ObjectStore::open(const std::string& url) {
  auto object = std::make_shared<StoreObject>();
  object->name = store_name(url);
  object->location = locate_object(env_, url);
  const auto piece = std::make_shared<Piece>(Piece{object, 0, kHeadBytes});
  {
    MutexLock lock(mutex_);
    ++piece->waiting;
    load({piece}, For::kReader);
    if (!wait_for(*piece, lock)) fail_cancelled(object->name);
    if (piece->error) std::rethrow_exception(piece->error);
  }
  if (object->identity().empty() && object->size > 0) warn_unknown(*object);
  if (cache_ && !object->identity().empty()) cache_->use(object->identity());
  return object;
}

void ObjectStore::warn_unknown(const StoreObject& object) {
  has_unknown_ = true;
  const bool has_weak = !object.etag.empty();
  if ((has_weak && !cache_) || has_warned_[has_weak].exchange(true)) return;
  print_warning(object.name +
                (has_weak ? ": the server sends only a weak ETag (W/) and no Last-Modified"
                          : ": the server sends neither ETag nor Last-Modified, so that only its "
                            "size tells whether the object changes") +
                (cache_ ? ", and data.cache_dir keeps nothing of it" : ""));
}

void ObjectStore::read(const ObjectPtr& object, uint64_t offset, std::span<std::byte> out) {
  if (offset > object->size || out.size() > object->size - offset)
    fail(ErrorKind::kData,
         "read of " + std::to_string(out.size()) + " bytes at " + std::to_string(offset) +
             " goes past the end: it has " + std::to_string(object->size) + " bytes",
         object->name, "It is truncated or damaged: upload it again");
  if (offset + out.size() <= object->head.size()) {
    if (!out.empty()) std::memcpy(out.data(), object->head.data() + offset, out.size());
    return;
  }
  while (!out.empty()) {
    const size_t size = size_t(std::min<uint64_t>(out.size(), tuning_.read_bytes));
    read_piece(object, offset, out.first(size));
    offset += size;
    out = out.subspan(size);
  }
}

// False if the thread is cancelled while the piece is loading.
bool ObjectStore::wait_for(const Piece& piece, MutexLock& lock) {
  if (piece.state != Piece::State::kLoading) return true;
  const NetworkWait wait;
  while (piece.state == Piece::State::kLoading && !is_cancelled())
    progress_.wait_until(lock, std::chrono::steady_clock::now() + kCancelLook);
  return piece.state != Piece::State::kLoading;
}

void ObjectStore::read_piece(const ObjectPtr& object, uint64_t offset, std::span<std::byte> out) {
  const std::string identity = cached_identity(*object);
  PiecePtr piece;
  MutexLock lock(mutex_);
  auto found = announced_.find({object.get(), offset});
  if (found != announced_.end() && found->second->length == out.size() &&
      !waits_for_disk(*found->second)) {
    piece = found->second;
  } else {
    lock.unlock();
    const bool is_kept = !identity.empty() && cache_->read(identity, offset, out);
    lock.lock();
    found = announced_.find({object.get(), offset});
    if (found != announced_.end() && waits_for_disk(*found->second)) {
      drop(found);
      found = announced_.end();
    }
    if (is_kept) return;
    // Else it may be loading for the disk since then.
    const bool is_loading = found != announced_.end() && found->second->length == out.size();
    piece = is_loading ? found->second : std::make_shared<Piece>(Piece{object, offset, out.size()});
  }
  ++piece->waiting;
  if (piece->state == Piece::State::kQueued) {  // late: it goes before all others
    unqueue(*piece);
    load({piece}, For::kReader);
  }
  ++waiting_;
  const bool has_come = wait_for(*piece, lock);
  --waiting_;
  --piece->waiting;
  found = announced_.find({object.get(), offset});
  if (found != announced_.end() && found->second == piece) drop(found);
  load_announced();
  lock.unlock();
  if (!has_come) fail_cancelled(object->name);
  if (piece->error) std::rethrow_exception(piece->error);
  std::memcpy(out.data(), piece->bytes->data(), out.size());
}

void ObjectStore::keep(const StoreObject& object, uint64_t offset,
                       std::span<const std::byte> bytes) {
  if (!cache_ || object.identity().empty() || bytes.size() > tuning_.read_bytes) return;
  cache_->write_later(object.identity(), offset,
                      std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()));
}

void ObjectStore::drop_copies(const ObjectPtr& object, uint64_t offset, uint64_t length) {
  if (offset > object->size || length > object->size - offset) return;
  forget(object, offset, length);
  if (cache_ && !object->identity().empty()) cache_->remove(object->identity(), offset, length);
}

void ObjectStore::load(std::vector<PiecePtr> pieces, For whom) {
  for (const PiecePtr& piece : pieces) piece->state = Piece::State::kLoading;
  const ObjectPtr object = pieces.front()->object;
  const uint64_t first = pieces.front()->offset;
  uint64_t end = first;
  for (const PiecePtr& piece : pieces) end = std::max(end, piece->offset + piece->length);
  client_.fetch(object, first, end - first,
                [this, pieces = std::move(pieces), whom](std::vector<std::byte>&& bytes,
                                                         const std::exception_ptr& error) {
                  take(pieces, whom, std::move(bytes), error);
                });
}

void ObjectStore::take(const std::vector<PiecePtr>& pieces, For whom,
                       std::vector<std::byte>&& bytes, std::exception_ptr error) {
  const StoreObject& object = *pieces.front()->object;
  std::vector<ExtentCache::Bytes> parts(pieces.size());
  try {
    if (!error) parts = divide(pieces, std::move(bytes));
  } catch (...) {  // no memory
    error = std::current_exception();
  }
  const std::string identity = error ? "" : cached_identity(object);
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < pieces.size(); ++i) {
    Piece& piece = *pieces[i];
    piece.state = error ? Piece::State::kFailed : Piece::State::kReady;
    piece.error = error;
    piece.bytes = parts[i];
    const auto found = announced_.find({piece.object.get(), piece.offset});
    const bool is_announced = found != announced_.end() && found->second == pieces[i];
    if (!is_announced && std::exchange(piece.held, false)) held_ -= piece.length;
    if (piece.held && !error) ready_ += piece.length;
    // Before the piece can be read, so that its reader finds the next one announced. It takes the
    // turn of the piece, which has left the queue.
    if (is_announced && !error && piece.next) {
      const ByteRange next = piece.next(*piece.bytes);
      if (is_ahead(object, next.offset, next.length)) {
        piece.after = std::make_shared<Piece>(Piece{piece.object, next.offset, next.length});
        enqueue(piece.after, piece.order);
      }
    }
    // A later reader asks for itself, and gets the whole time limit.
    if (is_announced && error && piece.waiting == 0) drop(found);
    const bool only_for_disk = is_announced && is_for_disk(piece) && piece.waiting == 0;
    if (!identity.empty() && piece.offset + piece.length > object.head.size())
      cache_->write_later(identity, piece.offset, parts[i], only_for_disk);
    if (whom == For::kDisk) disk_room_ -= room_of_entry(piece.length);
    if (only_for_disk && !error) drop(found);
  }
  if (whom == For::kDisk) --disk_loading_;
  if (whom != For::kReader) --loading_;
  load_announced();
  progress_.notify_all();
}

// The bytes of each piece in separate memory, which is freed when it has been read.
std::vector<ExtentCache::Bytes> ObjectStore::divide(const std::vector<PiecePtr>& pieces,
                                                    std::vector<std::byte>&& bytes) {
  using Block = const std::vector<std::byte>;
  if (pieces.size() == 1) return {std::make_shared<Block>(std::move(bytes))};
  std::vector<ExtentCache::Bytes> parts;
  for (const PiecePtr& piece : pieces) {
    const auto begin = bytes.begin() + ptrdiff_t(piece->offset - pieces.front()->offset);
    parts.push_back(std::make_shared<Block>(begin, begin + ptrdiff_t(piece->length)));
  }
  return parts;
}

StoreCounts ObjectStore::counts() const {
  StoreCounts counts;
  client_.add_counts(counts);
  if (cache_) cache_->add_counts(counts);
  counts.has_unknown = has_unknown_;
  counts.ahead_bytes = tuning_.ahead_bytes;
  return counts;
}

uint64_t ObjectStore::request_bytes(const StoreObject& object) const {
  // A cache serves whole samples again, and parts hardly ever.
  if (!cached_identity(object).empty()) return UINT64_MAX;
  if (tuning_.request_bytes) return *tuning_.request_bytes;
  {
    // Bytes that have come and are not read yet: the link is faster than the readers.
    const MutexLock lock(mutex_);
    if (2 * ready_ > tuning_.ahead_bytes) return UINT64_MAX;
  }
  return client_.pace().bytes_while_waiting;
}

void ObjectStore::flush() {
  if (cache_) cache_->flush();
}

}  // namespace saturate
