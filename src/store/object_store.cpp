#include "store/object_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/cancel.h"
#include "base/network_wait.h"
#include "base/printable.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// Fetched to open an object, and kept: the header of any format.
constexpr uint64_t kHeadBytes = 512;
// Turns of what was announced for later.
constexpr uint64_t kLaterTurns = uint64_t{1} << 63;

std::string checked_folder(const std::string& folder) {
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

}  // namespace

ObjectStore::ObjectStore(Env& env, const StoreOptions& options, const StoreTuning& tuning)
    : options_(options),
      tuning_(tuning),
      env_(env),
      credentials_(std::make_shared<CredentialSource>(env, options, tuning)),
      cache_(options.cache_dir.empty()
                 ? nullptr
                 : std::make_unique<ExtentCache>(env, checked_folder(options.cache_dir),
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
    load({piece}, false);
    if (!wait_for(*piece, lock)) fail_cancelled(object->name);
    if (piece->error) std::rethrow_exception(piece->error);
  }
  if (object->identity().empty() && object->size > 0) warn_unknown(*object);
  if (cache_ && !object->identity().empty()) cache_->use(object->identity());
  return object;
}

void ObjectStore::warn_unknown(const StoreObject& object) {
  if (has_unknown_.exchange(true)) return;
  print_warning(object.name +
                ": the server sends neither ETag nor Last-Modified, so that only its size tells "
                "whether the object changes" +
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
  const std::string identity = cache_ ? object->identity() : "";
  PiecePtr piece;
  MutexLock lock(mutex_);
  auto found = announced_.find({object.get(), offset});
  if (found != announced_.end() && found->second->length == out.size()) {
    piece = found->second;
  } else {
    lock.unlock();
    const int64_t begin = env_.now_ns();
    if (!identity.empty() && cache_->read(identity, offset, out)) {
      disk_ns_ += env_.now_ns() - begin;
      return;
    }
    lock.lock();
    piece = std::make_shared<Piece>(Piece{object, offset, out.size()});
  }
  ++piece->waiting;
  if (piece->state == Piece::State::kQueued) {  // late: it goes before all others
    unqueue(*piece);
    load({piece}, false);
  }
  const bool has_come = wait_for(*piece, lock);
  --piece->waiting;
  found = announced_.find({object.get(), offset});
  if (found != announced_.end() && found->second == piece) {
    drop(found);
    load_announced();
  }
  lock.unlock();
  if (!has_come) fail_cancelled(object->name);
  if (piece->error) std::rethrow_exception(piece->error);
  std::memcpy(out.data(), piece->bytes->data(), out.size());
}

bool ObjectStore::is_ahead(const StoreObject& object, uint64_t offset, uint64_t length) const {
  const bool valid = offset <= object.size && length <= object.size - offset && length > 0;
  return valid && length <= tuning_.read_bytes && offset + length > object.head.size();
}

void ObjectStore::enqueue(const PiecePtr& piece, uint64_t turn) {
  if (!announced_.try_emplace({piece->object.get(), piece->offset}, piece).second) return;
  piece->turn = piece->order = turn;
  queue_.emplace(turn, piece);
}

void ObjectStore::announce(const ObjectPtr& object, uint64_t offset, uint64_t length,
                           uint64_t next_use, const ReadableFile::NextRange& next, bool later) {
  if (!is_ahead(*object, offset, length)) return;
  const std::string identity = cache_ ? object->identity() : "";
  if (!identity.empty() && cache_->plan(identity, offset, length, next_use)) return;
  const auto piece = std::make_shared<Piece>(Piece{object, offset, length});
  piece->next = next;
  const MutexLock lock(mutex_);
  const uint64_t turn = turns_++;
  const auto found = announced_.find({object.get(), offset});
  if (found == announced_.end())
    enqueue(piece, later ? kLaterTurns + turn : turn);
  else if (!later)
    hasten(*found->second, turn);
  load_announced();
}

void ObjectStore::hasten(Piece& piece, uint64_t turn) {
  if (piece.order < kLaterTurns) return;
  piece.order = turn;
  if (piece.turn) {
    auto queued = queue_.extract(*piece.turn);
    piece.turn = queued.key() = turn;
    queue_.insert(std::move(queued));
  }
  if (piece.after) hasten(*piece.after, turn);  // then the piece itself has left the queue
}

// Half is left to samples that come soon, of another loader too.
uint64_t ObjectStore::budget_for(const Piece& piece) const {
  return piece.order < kLaterTurns ? tuning_.ahead_bytes : tuning_.ahead_bytes / 2;
}

void ObjectStore::forget(const ObjectPtr& object, uint64_t offset, uint64_t length) {
  const MutexLock lock(mutex_);
  const auto end = announced_.lower_bound({object.get(), offset + length});
  for (auto at = announced_.lower_bound({object.get(), offset}); at != end;) {
    const auto found = at++;
    if (found->second->waiting == 0) drop(found);
  }
  load_announced();
}

void ObjectStore::forget_all(const ObjectPtr& object) {
  const MutexLock lock(mutex_);
  auto at = announced_.lower_bound({object.get(), 0});
  while (at != announced_.end() && at->first.first == object.get()) drop(at++);
  load_announced();
}

void ObjectStore::drop_copies(const ObjectPtr& object, uint64_t offset, uint64_t length) {
  if (offset > object->size || length > object->size - offset) return;
  forget(object, offset, length);
  if (cache_ && !object->identity().empty()) cache_->remove(object->identity(), offset, length);
}

void ObjectStore::unqueue(Piece& piece) {
  if (piece.turn) queue_.erase(*std::exchange(piece.turn, std::nullopt));
}

void ObjectStore::drop(std::map<Key, PiecePtr>::iterator at) {
  Piece& piece = *at->second;
  unqueue(piece);
  // The memory of a range that is still loading is in use until it has come.
  if (piece.state != Piece::State::kLoading && std::exchange(piece.held, false)) {
    held_ -= piece.length;
    if (piece.state == Piece::State::kReady) ready_ -= piece.length;
  }
  announced_.erase(at);
}

void ObjectStore::load_announced() {
  while (!queue_.empty()) {
    const PiecePtr first = queue_.begin()->second;
    if (loading_ >= most_loading(first->length)) return;
    if (held_ > 0 && held_ + first->length > budget_for(*first)) return;
    std::vector<PiecePtr> pieces = with_neighbours(first);
    for (const PiecePtr& piece : pieces) {
      unqueue(*piece);
      piece->held = true;
      held_ += piece->length;
    }
    ++loading_;
    load(std::move(pieces), true);
  }
}

// The ranges that one request may fetch with this one: queued, right before or after it, up to the
// merged size and the budget. Sorted by offset.
std::vector<ObjectStore::PiecePtr> ObjectStore::with_neighbours(const PiecePtr& piece) {
  std::vector<PiecePtr> found{piece};
  const uint64_t held = held_, merged = most_merged(), budget = budget_for(*piece);
  uint64_t first = piece->offset, end = piece->offset + piece->length, sum = piece->length;
  const auto fits = [&](const Piece& other) {
    const uint64_t low = std::min(first, other.offset);
    const uint64_t high = std::max(end, other.offset + other.length);
    const uint64_t gap = other.offset >= end ? other.offset - end
                                             : first - std::min(first, other.offset + other.length);
    const bool apart = other.offset >= end || other.offset + other.length <= first;
    return other.object == piece->object && other.state == Piece::State::kQueued && apart &&
           gap <= tuning_.merged_gap && high - low <= merged && held + sum + other.length <= budget;
  };
  const auto self = announced_.find({piece->object.get(), piece->offset});
  for (auto at = std::next(self); at != announced_.end() && fits(*at->second); ++at) {
    found.push_back(at->second);
    end = at->second->offset + at->second->length;
    sum += at->second->length;
  }
  for (auto at = self; at != announced_.begin() && fits(*std::prev(at)->second);) {
    --at;
    found.push_back(at->second);
    first = at->second->offset;
    sum += at->second->length;
  }
  std::ranges::sort(found, {}, &Piece::offset);
  return found;
}

void ObjectStore::load(std::vector<PiecePtr> pieces, bool ahead) {
  for (const PiecePtr& piece : pieces) piece->state = Piece::State::kLoading;
  const ObjectPtr object = pieces.front()->object;
  const uint64_t first = pieces.front()->offset;
  const uint64_t end = pieces.back()->offset + pieces.back()->length;
  client_.fetch(object, first, end - first,
                [this, pieces = std::move(pieces), ahead](std::vector<std::byte>&& bytes,
                                                          const std::exception_ptr& error) {
                  take(pieces, ahead, std::move(bytes), error);
                });
}

void ObjectStore::take(const std::vector<PiecePtr>& pieces, bool ahead,
                       std::vector<std::byte>&& bytes, std::exception_ptr error) {
  const StoreObject& object = *pieces.front()->object;
  std::vector<ExtentCache::Bytes> parts(pieces.size());
  try {
    if (!error) parts = divide(pieces, std::move(bytes));
  } catch (...) {  // no memory
    error = std::current_exception();
  }
  const std::string identity = cache_ && !error ? object.identity() : "";
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
    if (!identity.empty() && piece.offset + piece.length > object.head.size())
      cache_->write_later(identity, piece.offset, parts[i]);
  }
  if (ahead) --loading_;
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
  counts.disk_s = double(disk_ns_) * 1e-9;
  counts.has_unknown = has_unknown_;
  return counts;
}

uint64_t ObjectStore::request_bytes() const {
  if (cache_) return UINT64_MAX;  // it serves whole samples again, and parts hardly ever
  if (tuning_.request_bytes) return *tuning_.request_bytes;
  {
    // Bytes that have come and are not read yet: the link is faster than the readers.
    const MutexLock lock(mutex_);
    if (2 * ready_ > tuning_.ahead_bytes) return UINT64_MAX;
  }
  return client_.pace().bytes_while_waiting;
}

int ObjectStore::most_loading(uint64_t length) const {
  constexpr double kNear = 0.001;  // seconds until a first byte
  constexpr int kLeast = 8, kMost = 256;
  if (!tuning_.adapts) return tuning_.ahead_requests;
  const LinkPace pace = client_.pace();
  if (pace.bytes_while_waiting == UINT64_MAX) return tuning_.ahead_requests;
  const double usual = tuning_.ahead_requests;
  return int(std::clamp(usual * double(pace.bytes_while_waiting) / double(length),
                        pace.least_first_byte_s < kNear ? std::min<double>(kLeast, usual) : usual,
                        std::max<double>(kMost, usual)));
}

uint64_t ObjectStore::most_merged() const {
  constexpr uint64_t kLeast = 64 << 10;
  if (!tuning_.adapts) return tuning_.merged_bytes;
  const uint64_t worth = std::min(client_.pace().bytes_while_waiting, tuning_.merged_bytes);
  return std::clamp(4 * worth, std::min(kLeast, tuning_.merged_bytes), tuning_.merged_bytes);
}

void ObjectStore::flush() {
  if (cache_) cache_->flush();
}

}  // namespace saturate
