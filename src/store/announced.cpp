// Announced ranges: in which order, and how far ahead, they are fetched.
#include <algorithm>
#include <utility>

#include "store/cache_names.h"
#include "store/object_store.h"

namespace saturate {
namespace {

// Turns of what was announced for later, and of what is for the disk.
constexpr uint64_t kLaterTurns = uint64_t{2} << 62, kDiskTurns = uint64_t{3} << 62;
// Requests for the disk at a time, so that they delay those of a reader little; for the same reason
// at most half of all, and none while a reader waits.
constexpr int kMostForDisk = 8;

}  // namespace

bool ObjectStore::is_for_disk(const Piece& piece) {
  return piece.order >= kDiskTurns;
}

bool ObjectStore::waits_for_disk(const Piece& piece) {
  return is_for_disk(piece) && piece.state == Piece::State::kQueued;
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
                           ReadAdvice advice, const ReadableFile::NextRange& next) {
  const uint64_t most = tuning_.read_bytes;
  if (length <= most) return announce_piece(object, offset, length, advice, next);
  for (uint64_t at = 0; at < length; at += most)  // as read() reads it
    announce_piece(object, offset + at, std::min(most, length - at), advice, {});
}

void ObjectStore::announce_piece(const ObjectPtr& object, uint64_t offset, uint64_t length,
                                 ReadAdvice advice, const ReadableFile::NextRange& next) {
  if (!is_ahead(*object, offset, length)) return;
  const std::string identity = cached_identity(*object);
  if (advice == ReadAdvice::kToDisk && identity.empty()) return;
  const Key key(object.get(), offset);
  MutexLock lock(mutex_);
  auto found = announced_.find(key);
  while (!identity.empty() && (found == announced_.end() || is_for_disk(*found->second))) {
    const bool was_announced = found != announced_.end();
    lock.unlock();
    const bool is_there = cache_->plan(identity, offset, length, advice.next_use);
    lock.lock();
    found = announced_.find(key);
    if (is_there && (found == announced_.end() || waits_for_disk(*found->second))) {
      if (found != announced_.end()) drop(found);
      return load_announced();  // the disk may have room again
    }
    if (!was_announced || found != announced_.end()) break;  // else it has come meanwhile
  }
  const uint64_t turn = turns_++ + (advice == ReadAdvice::kToDisk  ? kDiskTurns
                                    : advice == ReadAdvice::kLater ? kLaterTurns
                                                                   : 0);
  if (found == announced_.end()) {
    const auto piece = std::make_shared<Piece>(Piece{object, offset, length});
    piece->next = next;
    enqueue(piece, turn);
  } else {
    hasten(*found->second, turn);
  }
  load_announced();
}

void ObjectStore::hasten(Piece& piece, uint64_t turn) {
  if (piece.order < kLaterTurns || turn > piece.order) return;
  if (is_for_disk(piece) && piece.state != Piece::State::kQueued && turn < kDiskTurns) {
    piece.held = true;
    held_ += piece.length;
    if (piece.state == Piece::State::kReady) ready_ += piece.length;
  }
  piece.order = turn;
  if (piece.turn) {
    auto queued = queue_.extract(*piece.turn);
    piece.turn = queued.key() = turn;
    queue_.insert(std::move(queued));
  }
  if (piece.after) hasten(*piece.after, turn);  // then the piece itself has left the queue
}

uint64_t ObjectStore::room_for(const Piece& piece) {
  return is_for_disk(piece) ? room_of_entry(piece.length) : piece.length;
}

bool ObjectStore::has_room(const Piece& piece, uint64_t room) {
  if (is_for_disk(piece)) return cache_->has_room(disk_room_ + room);
  // Half is left to samples that come soon, of another loader too.
  const bool later = piece.order >= kLaterTurns;
  return held_ + room <= (later ? tuning_.ahead_bytes / 2 : tuning_.ahead_bytes);
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
    auto at = queue_.begin();
    // If there is no memory for the next ones, those for the disk may be fetched.
    if (held_ > 0 && !has_room(*at->second, room_for(*at->second)))
      at = queue_.lower_bound(kDiskTurns);
    if (at == queue_.end()) return;
    const PiecePtr first = at->second;
    const bool to_disk = is_for_disk(*first);
    const int most = most_loading(first->length);
    if (loading_ >= (to_disk ? std::max(1, most / 2) : most)) return;
    if (to_disk && (waiting_ > 0 || disk_loading_ >= kMostForDisk)) return;
    if (to_disk && !has_room(*first, room_for(*first))) return;
    std::vector<PiecePtr> pieces = with_neighbours(first);
    for (const PiecePtr& piece : pieces) {
      unqueue(*piece);
      piece->held = !to_disk;
      (to_disk ? disk_room_ : held_) += room_for(*piece);
    }
    ++loading_;
    if (to_disk) ++disk_loading_;
    load(std::move(pieces), to_disk ? For::kDisk : For::kMemory);
  }
}

// The ranges that one request may fetch with this one: queued, right before or after it, or partly
// the same, as samples of tokens are by one; up to the merged size and the budget. Sorted by
// offset.
std::vector<ObjectStore::PiecePtr> ObjectStore::with_neighbours(const PiecePtr& piece) {
  std::vector<PiecePtr> found{piece};
  const uint64_t merged = most_merged();
  uint64_t first = piece->offset, end = piece->offset + piece->length, room = room_for(*piece);
  const auto fits = [&](const Piece& other) {
    const uint64_t low = std::min(first, other.offset);
    const uint64_t high = std::max(end, other.offset + other.length);
    const uint64_t gap = other.offset >= end ? other.offset - end
                                             : first - std::min(first, other.offset + other.length);
    return other.object == piece->object && other.state == Piece::State::kQueued &&
           is_for_disk(other) == is_for_disk(*piece) && gap <= tuning_.merged_gap &&
           high - low <= merged;
  };
  const auto self = announced_.find({piece->object.get(), piece->offset});
  for (auto at = std::next(self); at != announced_.end() && fits(*at->second); ++at) {
    room += room_for(*at->second);
    if (!has_room(*piece, room)) break;
    found.push_back(at->second);
    end = std::max(end, at->second->offset + at->second->length);
  }
  for (auto at = self; at != announced_.begin() && fits(*std::prev(at)->second);) {
    --at;
    room += room_for(*at->second);
    if (!has_room(*piece, room)) break;
    found.push_back(at->second);
    first = at->second->offset;
    end = std::max(end, first + at->second->length);
  }
  std::ranges::sort(found, {}, &Piece::offset);
  return found;
}

int ObjectStore::most_loading(uint64_t length) const {
  constexpr double kNear = 0.001;  // seconds until a first byte
  constexpr int kLeast = 8;
  if (!tuning_.adapts) return tuning_.ahead_requests;
  const LinkPace pace = client_.pace();
  if (pace.bytes_while_waiting == UINT64_MAX) return tuning_.ahead_requests;
  const double usual = tuning_.ahead_requests;
  return int(std::clamp(usual * double(pace.bytes_while_waiting) / double(length),
                        pace.least_first_byte_s < kNear ? std::min<double>(kLeast, usual) : usual,
                        std::max<double>(tuning_.most_ahead_requests, usual)));
}

uint64_t ObjectStore::most_merged() const {
  constexpr uint64_t kLeast = 64 << 10;
  if (!tuning_.adapts) return tuning_.merged_bytes;
  const uint64_t worth = std::min(client_.pace().bytes_while_waiting, tuning_.merged_bytes);
  return std::clamp(4 * worth, std::min(kLeast, tuning_.merged_bytes), tuning_.merged_bytes);
}

}  // namespace saturate
