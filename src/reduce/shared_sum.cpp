#include "reduce/shared_sum.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>
#include <ctime>
#include <functional>
#include <utility>

namespace saturate {
namespace {

using std::chrono::milliseconds;

constexpr size_t kPage = 4096, kLine = 128;  // two cache lines, as adjacent ones are prefetched
constexpr int kSpins = 200;                  // some microseconds of spinning before a system call
constexpr milliseconds kLook{50};            // between liveness checks

// Why and for which rank the first waiter failed, as 2 rank + 1 or + 2; 0: none has.
enum : uint32_t { kEnded = 1, kLate = 2 };

constexpr size_t rounded_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

void pause_shortly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void wait_while(const std::atomic<uint32_t>& word, uint32_t value, milliseconds at_most) {
  const timespec limit{at_most.count() / 1000, at_most.count() % 1000 * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

// Layout: Header, a Rank each, then each rank's part: staging, and its arena.
struct alignas(kLine) SharedSum::Header {
  std::atomic<uint32_t> why;
};

struct alignas(kLine) SharedSum::Rank {
  std::atomic<uint32_t> phase;
  // The present round; read by others only between its two phases.
  uint32_t kind;
  uint64_t offset;    // in its part
  uint64_t proposed;  // bytes available there
  uint64_t left;      // remaining bytes of the call
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);

size_t SharedSum::bytes_for(int ranks, size_t arena, size_t staging) {
  const size_t head = rounded_up(sizeof(Header) + sizeof(Rank) * size_t(ranks), kPage);
  return head + size_t(ranks) * (staging + arena);
}

SharedSum::SharedSum(const Layout& layout, std::function<bool(int)> has, milliseconds timeout)
    : layout_(layout),
      has_(std::move(has)),
      timeout_(timeout),
      arena_(part_of(layout.rank) + layout.staging, layout.arena) {}

SharedSum::Header& SharedSum::header() const {
  return *reinterpret_cast<Header*>(layout_.memory);
}

SharedSum::Rank& SharedSum::state(int rank) const {
  return reinterpret_cast<Rank*>(layout_.memory + sizeof(Header))[rank];
}

std::byte* SharedSum::part_of(int rank) const {
  return layout_.memory + bytes_for(layout_.ranks, 0, 0) +
         size_t(rank) * (layout_.staging + layout_.arena);
}

void SharedSum::combine(void* values, size_t bytes, const Combination& how) {
  if (!failed_.empty()) throw RankMissing(failed_);
  std::byte* next = static_cast<std::byte*>(values);
  const bool in_place = arena_.holds(values);
  std::byte* const staging = part_of(layout_.rank);
  do {
    std::byte* const own = in_place ? next : staging;
    const size_t proposed = in_place ? bytes : std::min(bytes, layout_.staging);
    if (!in_place && proposed > 0) std::memcpy(staging, next, proposed);
    const size_t combined = combine_some(own, proposed, bytes, how);
    if (!in_place && combined > 0) std::memcpy(next, staging, combined);
    next += combined;
    bytes -= combined;
  } while (bytes > 0);
}

// Reduces as many bytes as the smallest proposal; returns how many. One rank may have its values in
// place while another copies them.
size_t SharedSum::combine_some(std::byte* own, size_t proposed, size_t left,
                               const Combination& how) {
  Rank& mine = state(layout_.rank);
  mine.kind = how.kind;
  mine.offset = uint64_t(own - part_of(layout_.rank));
  mine.proposed = proposed;
  mine.left = left;
  advance();
  wait_for_all();
  std::array<std::byte*, kMostRanks> parts{};
  size_t combined = proposed;
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    const Rank& other = state(rank);
    if (other.left != left || other.kind != how.kind) {
      failed_ = fmt::format("rank {} called a different all-reduce, of {} bytes, not {}", rank,
                            other.left, left);
      throw RankMissing(failed_);
    }
    parts[size_t(rank)] = part_of(rank) + other.offset;
    combined = std::min(combined, size_t(other.proposed));
  }
  // Slices begin at whole cache lines, so that no two ranks write the same line.
  const size_t slice =
      rounded_up((combined + size_t(layout_.ranks) - 1) / size_t(layout_.ranks), kLine);
  const size_t begin = std::min(combined, slice * size_t(layout_.rank));
  const size_t end = std::min(combined, begin + slice);
  for (int rank = 0; rank < layout_.ranks; ++rank) parts[size_t(rank)] += begin;
  how.apply(parts.data(), layout_.ranks, (end - begin) / how.value_size);
  advance();
  wait_for_all();
  return combined;
}

void SharedSum::advance() {
  std::atomic<uint32_t>& phase = state(layout_.rank).phase;
  phase.store(++phase_, std::memory_order_release);
  wake_all(phase);
}

void SharedSum::wait_for_all() {
  for (int rank = 0; rank < layout_.ranks; ++rank)
    if (rank != layout_.rank) wait_for(rank);
}

void SharedSum::wait_for(int rank) {
  const std::atomic<uint32_t>& phase = state(rank).phase;
  const auto reached = [&](uint32_t seen) { return int32_t(seen - phase_) >= 0; };  // wraps around
  for (int i = 0; i < kSpins; ++i) {
    if (reached(phase.load(std::memory_order_acquire))) return;
    pause_shortly();
  }
  // Counts looks, not time, which goes on while all ranks are stopped, as by `docker pause`.
  for (milliseconds waited{0};;) {
    // Check before reading the phase: a rank that has ended may have arrived first.
    const bool gone = !has_(rank);
    const uint32_t why = header().why.load(std::memory_order_acquire);
    const uint32_t seen = phase.load(std::memory_order_acquire);
    if (reached(seen)) return;
    if (why != 0) fail_with(why);
    if (stopped_) throw RankMissing("this rank is ending");
    if (gone) fail_all(2 * uint32_t(rank) + kEnded);
    if (waited >= timeout_) fail_all(2 * uint32_t(rank) + kLate);
    const auto begin = std::chrono::steady_clock::now();
    wait_while(phase, seen, std::min(kLook, timeout_ - waited));
    const auto taken = std::chrono::steady_clock::now() - begin;  // little after a signal
    waited += std::min(kLook, std::chrono::ceil<milliseconds>(taken));
  }
}

void SharedSum::fail_all(uint32_t why) {
  uint32_t first = 0;
  header().why.compare_exchange_strong(first, why);
  fail_with(first == 0 ? why : first);
}

void SharedSum::fail_with(uint32_t why) {
  const int rank = int((why - 1) / 2);
  if (why % 2 == kEnded)
    failed_ = fmt::format("rank {} has ended", rank);
  else if (rank == layout_.rank)
    failed_ = fmt::format("the other ranks timed out waiting for rank {}, this one", rank);
  else
    failed_ =
        fmt::format("rank {} did not arrive within {:g} s", rank, double(timeout_.count()) * 1e-3);
  throw RankMissing(failed_);
}

void SharedSum::wake_others() {
  wake_all(state(layout_.rank).phase);
}

std::byte* SharedArena::take(size_t bytes) {
  if (bytes > bytes_) return nullptr;
  const size_t size = rounded_up(bytes, kPage);
  const MutexLock lock(mutex_);
  size_t offset = 0;
  for (const auto& [begin, length] : taken_) {
    if (begin - offset >= size) break;
    offset = begin + length;
  }
  if (bytes_ - offset < size) return nullptr;
  taken_[offset] = size;
  return memory_ + offset;
}

void SharedArena::release(std::byte* block) {
  const MutexLock lock(mutex_);
  const auto found = taken_.find(size_t(block - memory_));
  madvise(block, found->second, MADV_REMOVE);  // optional: not all systems support it
  taken_.erase(found);
}

bool SharedArena::holds(const void* address) const {
  const std::less<const void*> before;
  return !before(address, memory_) && before(address, memory_ + bytes_);
}

}  // namespace saturate
