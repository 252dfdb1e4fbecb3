// All-reduce in shared memory: ranks as threads with one memory, and as processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reduce/shared_memory.h"
#include "reduce/shared_sum.h"

namespace saturate {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono::milliseconds;

constexpr size_t kArena = size_t{1} << 20, kStaging = 4096;
constexpr milliseconds kTimeout{20000};
// A bound for operations that must not wait: no slow machine exceeds it.
constexpr milliseconds kFarAway{200000};

const Combination kFloats{1, sizeof(float), combine_parts<float, float, std::plus<float>>};
const Combination kLongs{2, sizeof(int64_t), combine_parts<int64_t, int64_t, std::plus<int64_t>>};

// Ranks that are threads of this process.
class Ranks {
 public:
  explicit Ranks(int count, milliseconds timeout = kTimeout)
      : gone_(static_cast<size_t>(count)),
        memory_(SharedMemory::create(SharedSum::bytes_for(count, kArena, kStaging), 0)) {
    for (int rank = 0; rank < count; ++rank)
      sums_.push_back(std::make_unique<SharedSum>(
          SharedSum::Layout{memory_->data(), rank, count, kArena, kStaging},
          [this](int other) { return !gone_[size_t(other)]; }, timeout));
  }
  SharedSum& operator[](int rank) { return *sums_[size_t(rank)]; }
  void leave(int rank) {
    gone_[size_t(rank)] = true;
    (*this)[rank].wake_others();
  }
  // body(rank, sum) on a thread for each.
  void run(const std::function<void(int, SharedSum&)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < int(sums_.size()); ++rank)
      threads.emplace_back([&, rank] { body(rank, (*this)[rank]); });
    for (auto& thread : threads) thread.join();
  }

 private:
  std::vector<std::atomic<bool>> gone_;
  std::shared_ptr<SharedMemory> memory_;
  std::vector<std::unique_ptr<SharedSum>> sums_;
};

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const RankMissing& missing) {
    return missing.what();
  }
  return "nothing";
}

// Values whose sum depends on the order in which they are added.
float value_of(int rank, size_t i) {
  return (rank % 2 ? -1.0f : 1.0f) * (1e-7f + float((i * 31 + size_t(rank) * 17) % 1000)) / 3.0f;
}

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
  return values;
}

std::vector<float> sums_of(int ranks, size_t count) {
  std::vector<float> sums = values_of(0, count);
  for (int rank = 1; rank < ranks; ++rank)
    for (size_t i = 0; i < count; ++i) sums[i] += value_of(rank, i);
  return sums;
}

TEST(SharedSum, AddsInTheOrderOfRanksForAnySize) {
  for (int count : {1, 2, 3, 4}) {
    Ranks ranks(count);
    // None, one, fewer than ranks, odd, the staging's size, one more, and many times that.
    for (size_t size : {0u, 1u, 3u, 33u, 1023u, 1024u, 1025u, 100001u}) {
      const auto expected = sums_of(count, size);
      ranks.run([&](int rank, SharedSum& sum) {
        auto values = values_of(rank, size);
        sum.combine(values.data(), size * sizeof(float), kFloats);
        EXPECT_EQ(values, expected) << count << " ranks, " << size << " values, rank " << rank;
      });
    }
  }
}

TEST(SharedSum, BlocksInSharedMemoryNeedNoCopyWhateverTheOtherRanksUse) {
  constexpr size_t kSize = 20001;
  Ranks ranks(3);
  const auto expected = sums_of(3, kSize);
  ranks.run([&](int rank, SharedSum& sum) {
    auto values = values_of(rank, kSize);
    float* own = values.data();
    if (rank != 1) {
      own = reinterpret_cast<float*>(sum.arena().take(kSize * sizeof(float)));
      ASSERT_NE(own, nullptr);
      std::copy(values.begin(), values.end(), own);
    }
    sum.combine(own, kSize * sizeof(float), kFloats);
    EXPECT_EQ(std::vector<float>(own, own + kSize), expected) << rank;
  });
}

TEST(SharedSum, ManyCompleteInOrder) {
  Ranks ranks(3);
  ranks.run([](int rank, SharedSum& sum) {
    for (int64_t turn = 0; turn < 2000; ++turn) {
      int64_t value = turn * (rank + 1);
      sum.combine(&value, sizeof value, kLongs);
      ASSERT_EQ(value, turn * 6);
    }
  });
}

TEST(SharedSum, AMissingRankIsNamedByAllInTime) {
  Ranks ranks(3, 3000ms);
  std::atomic<int> told = 0;
  const auto begin = std::chrono::steady_clock::now();
  ranks.run([&](int rank, SharedSum& sum) {
    int64_t value = 1;
    sum.combine(&value, sizeof value, kLongs);
    while (rank == 2 && told < 2) std::this_thread::sleep_for(1ms);
    const std::string said = failure_of([&] { sum.combine(&value, sizeof value, kLongs); });
    ++told;
    EXPECT_EQ(said, rank == 2 ? "the other ranks timed out waiting for rank 2, this one"
                              : "rank 2 did not arrive within 3 s");
    EXPECT_EQ(failure_of([&] { sum.combine(&value, sizeof value, kLongs); }), said)
        << "a failed group cannot be used again";
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kFarAway / 2);
}

TEST(SharedSum, SignalsDoNotShortenTheWait) {
  Ranks ranks(2, 1000ms);
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, &before);
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    const auto begin = std::chrono::steady_clock::now();
    int64_t value = 1;
    EXPECT_EQ(failure_of([&] { ranks[0].combine(&value, sizeof value, kLongs); }),
              "rank 1 did not arrive within 1 s");
    EXPECT_GT(std::chrono::steady_clock::now() - begin, 400ms);
    ended = true;
  });
  while (!ended) {
    pthread_kill(waiting.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(5ms);
  }
  waiting.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(SharedSum, ARankThatLeavesIsNamedAtOnce) {
  Ranks ranks(3, kFarAway);
  const auto begin = std::chrono::steady_clock::now();
  ranks.run([&](int rank, SharedSum& sum) {
    int64_t value = 1;
    sum.combine(&value, sizeof value, kLongs);
    EXPECT_EQ(value, 3) << "a rank's earlier contribution counts";
    if (rank == 1) return ranks.leave(1);
    EXPECT_EQ(failure_of([&] { sum.combine(&value, sizeof value, kLongs); }), "rank 1 has ended");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kFarAway / 2);
}

TEST(SharedSum, CanBeStoppedWhileWaiting) {
  Ranks ranks(2);
  std::thread waiting([&] {
    int64_t value = 1;
    EXPECT_EQ(failure_of([&] { ranks[0].combine(&value, sizeof value, kLongs); }),
              "this rank is ending");
  });
  std::this_thread::sleep_for(20ms);
  ranks[0].stop();
  waiting.join();
}

TEST(SharedSum, RanksThatMakeDifferentCallsAreAnError) {
  for (const bool same_type : {true, false}) {
    Ranks ranks(2);
    ranks.run([&](int rank, SharedSum& sum) {
      std::vector<int64_t> values(2, 1);
      const size_t bytes = rank == 1 && same_type ? 8 : 16;
      const Combination& how = rank == 1 && !same_type ? kFloats : kLongs;
      const std::string said = failure_of([&] { sum.combine(values.data(), bytes, how); });
      EXPECT_NE(said.find("rank " + std::to_string(1 - rank) + " called a different all-reduce"),
                std::string::npos)
          << said;
    });
  }
}

TEST(SharedArena, AllocatesAndFreesBlocks) {
  const auto memory = SharedMemory::create(3 * 4096, 0);
  SharedArena arena(memory->data(), memory->size());
  std::byte* const first = arena.take(1);
  std::byte* const second = arena.take(8192);
  EXPECT_EQ(first, memory->data());
  EXPECT_EQ(second, memory->data() + 4096);
  EXPECT_EQ(arena.take(1), nullptr) << "full";
  *first = std::byte{7};
  EXPECT_TRUE(arena.holds(first));
  EXPECT_FALSE(arena.holds(memory->data() + memory->size()));
  arena.release(first);
  EXPECT_EQ(*first, std::byte{0}) << "its pages were returned to the system";
  EXPECT_EQ(arena.take(8192), nullptr);
  EXPECT_EQ(arena.take(4096), first);
  EXPECT_EQ(arena.take(~size_t{0}), nullptr);
}

TEST(SharedMemory, IsJoinedOnlyByItsExactPlace) {
  const auto made = SharedMemory::create(8192, 0);
  ASSERT_TRUE(made);
  EXPECT_FALSE(made->has(1));
  auto joined = SharedMemory::join(made->address(), 1);
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->size(), 8192u);
  joined->data()[5] = std::byte{9};
  EXPECT_EQ(made->data()[5], std::byte{9});
  EXPECT_TRUE(made->has(1));
  EXPECT_TRUE(joined->has(0));
  joined->leave();
  EXPECT_FALSE(made->has(1));
  std::string other = made->address();
  other[other.find("saturate-") + 10] ^= 1;
  EXPECT_FALSE(SharedMemory::join(other, 1)) << "another memory of that process";
  other = made->address();
  other[other.size() - 2] ^= 1;
  EXPECT_FALSE(SharedMemory::join(other, 1)) << "another network";
  EXPECT_FALSE(SharedMemory::join("", 1));
}

TEST(SharedMemory, AboveALimitIsRefusedWithoutASignal) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_FALSE(SharedMemory::create(8192, 0));
  setrlimit(RLIMIT_FSIZE, &before);
}

// Rank 1 is another process, which makes three all-reduces and then executes a command.
class TwoProcesses : public ::testing::Test {
 protected:
  ~TwoProcesses() override {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  void start(void (*then)()) {
    child_ = fork();
    if (child_ == 0) run_as_rank_1(then);
    const auto end = std::chrono::steady_clock::now() + kTimeout;
    while (!memory_->has(1) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(memory_->has(1));
  }

  [[noreturn]] void run_as_rank_1(void (*then)()) {
    const auto joined = SharedMemory::join(address_, 1);
    if (!joined) _exit(1);
    SharedSum sum(
        {joined->data(), 1, 2, kArena, kStaging}, [&](int rank) { return joined->has(rank); },
        kTimeout);
    for (int i = 0; i < 3; ++i) {
      float value = 2;
      sum.combine(&value, sizeof value, kFloats);
      if (value != 3) _exit(2);
    }
    then();
    _exit(0);
  }

  // The error of the fourth all-reduce, which rank 1 does not join.
  std::string fourth(milliseconds timeout) {
    SharedSum sum(
        {memory_->data(), 0, 2, kArena, kStaging}, [&](int rank) { return memory_->has(rank); },
        timeout);
    for (int i = 0; i < 3; ++i) {
      float value = 1;
      sum.combine(&value, sizeof value, kFloats);
      EXPECT_EQ(value, 3);
    }
    float value = 1;
    return failure_of([&] { sum.combine(&value, sizeof value, kFloats); });
  }

  const std::shared_ptr<SharedMemory> memory_ =
      SharedMemory::create(SharedSum::bytes_for(2, kArena, kStaging), 0);
  const std::string address_ = memory_->address();
  pid_t child_ = 0;
};

TEST_F(TwoProcesses, AKilledOneIsNamedAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start([] { raise(SIGKILL); }));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(fourth(kFarAway), "rank 1 has ended");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kFarAway / 2);
}

TEST_F(TwoProcesses, AStalledOneIsNamedInTime) {
  ASSERT_NO_FATAL_FAILURE(start([] { raise(SIGSTOP); }));
  EXPECT_EQ(fourth(5000ms), "rank 1 did not arrive within 5 s");
}

// As by `scontrol suspend`.
TEST_F(TwoProcesses, TimeInWhichBothAreStoppedDoesNotCount) {
  ASSERT_NO_FATAL_FAILURE(start([] { pause(); }));
  const pid_t waiting = fork();
  if (waiting == 0) _exit(fourth(3000ms) == "rank 1 has ended" ? 0 : 1);
  std::this_thread::sleep_for(500ms);
  kill(child_, SIGSTOP);
  kill(waiting, SIGSTOP);
  std::this_thread::sleep_for(3500ms);
  kill(waiting, SIGCONT);
  std::this_thread::sleep_for(500ms);
  kill(child_, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(waiting, &status, 0), waiting);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "it timed out";
}

}  // namespace
}  // namespace saturate
