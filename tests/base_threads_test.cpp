#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/thread_pool.h"
#include "saturate/data/error.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// With a made-up tree in place of /sys/fs/cgroup.
class Cgroups : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    testing::write_file(dir / "fs/" + path, text + "\n");
  }
  void expect(const std::string& membership, uint64_t limit, uint64_t left, int cores) {
    testing::write_file(dir / "self", membership);
    const CgroupMemory memory = cgroup_memory(dir / "self", dir / "fs");
    EXPECT_EQ(memory.limit, limit) << membership;
    EXPECT_EQ(memory.left, left) << membership;
    EXPECT_EQ(cgroup_cores(dir / "self", dir / "fs"), cores) << membership;
  }
  const testing::TempDir dir;
};

TEST_F(Cgroups, AllThatHoldTheProcessLimitIt) {
  put("slice/job_1/memory.max", "max");
  put("slice/job_1/cpu.max", "max 100000");
  put("slice/memory.max", "1000");
  put("slice/memory.current", "900");
  put("slice/memory.stat", "anon 500\ninactive_file 300");
  put("slice/cpu.max", "150000 100000");
  put("other/memory.max", "1");
  expect("12:cpu:/old\n0::/slice/job_1\n", 1000, 400, 2);
  expect("0::/slice/\n", 1000, 400, 2);
  for (const char* without : {"0::/\n", "0::/../other\n", ""})
    expect(without, UINT64_MAX, UINT64_MAX, 0);
  put("memory.max", "700");
  put("cpu.max", "50000 100000");
  expect("0::/slice/job_1\n", 700, 400, 1);
  expect("0::/\n", 700, 700, 1);  // a container
}

TEST_F(Cgroups, OfVersion1HaveATreeForEachController) {
  put("memory/memory.limit_in_bytes", "9223372036854771712");  // none
  put("memory/slurm/job_2/memory.limit_in_bytes", "1000");
  put("memory/slurm/job_2/memory.usage_in_bytes", "900");
  put("memory/slurm/job_2/memory.stat", "inactive_file 10\ntotal_inactive_file 300");
  put("cpu/cpu.cfs_quota_us", "-1");
  put("cpu/cpu.cfs_period_us", "100000");
  put("cpu/slurm/job_2/cpu.cfs_quota_us", "250000");
  put("cpu/slurm/job_2/cpu.cfs_period_us", "100000");
  expect(
      "9:cpuset:/one\n5:cpu,cpuacct:/slurm/job_2\n4:memory:/slurm/job_2/step_0\n"
      "1:name=systemd:/two\n0::/three\n",
      1000, 400, 3);
  put("memory/memory.limit_in_bytes", "500");
  put("cpu/cpu.cfs_quota_us", "100000");
  expect("5:cpu,cpuacct:/docker/1f\n4:memory:/docker/1f\n", 500, 500, 1);  // seen by the container
}

// The nice value of each of two threads of a pool with so much added to its creator's.
std::vector<int> nice_levels(int nice) {
  std::mutex mutex;
  std::vector<int> levels;
  ThreadPool pool(2, "nice", nice);
  for (int i = 0; i < 8; ++i)
    pool.submit([&] {
      std::lock_guard lock(mutex);
      levels.push_back(getpriority(PRIO_PROCESS, 0));
    });
  pool.wait_idle();
  return levels;
}

TEST(ThreadPool, ItsThreadsHaveTheNiceValueAndNoOthersDo) {
  const int own = getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(nice_levels(0), std::vector<int>(8, own));
  EXPECT_EQ(nice_levels(5), std::vector<int>(8, std::min(19, own + 5)));
  EXPECT_EQ(nice_levels(30), std::vector<int>(8, 19));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

TEST(ThreadPool, RunsEveryTask) {
  ThreadPool pool(3, "test");
  std::atomic<int> done{0};
  for (int i = 0; i < 500; ++i) pool.submit([&] { ++done; });
  pool.wait_idle();
  EXPECT_EQ(done, 500);
}

TEST(ThreadPool, OneThreadKeepsTheOrder) {
  ThreadPool pool(1, "test");
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) pool.submit([&order, i] { order.push_back(i); });
  pool.wait_idle();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(ThreadPool, DestructorDropsTasksNotStarted) {
  std::atomic<bool> entered{false}, dropped{false};
  std::atomic<int> later{0};
  {
    ThreadPool pool(1, "test");
    // Runs until the others are gone: a pool that does not drop them would wait forever.
    pool.submit([&] {
      entered = true;
      const auto end = std::chrono::steady_clock::now() + 30s;
      while (!dropped && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    });
    {
      const std::shared_ptr<void> kept(nullptr, [&](void*) { dropped = true; });
      for (int i = 0; i < 10; ++i) pool.submit([&later, kept] { ++later; });
    }
    while (!entered) std::this_thread::yield();
    EXPECT_FALSE(dropped);
  }
  EXPECT_EQ(later, 0);
}

TEST(ParallelFor, CallsEachIndexOnce) {
  for (int threads : {1, 2, 5}) {
    std::vector<std::atomic<int>> calls(1000);
    parallel_for(calls.size(), threads, [&](size_t i) { ++calls[i]; });
    for (auto& count : calls) ASSERT_EQ(count, 1);
  }
  parallel_for(0, 4, [](size_t) { FAIL(); });
}

TEST(ParallelFor, RethrowsTheFirstErrorByIndex) {
  for (int threads : {1, 2, 8})
    for (int round = 0; round < 20; ++round) try {
        parallel_for(200, threads, [](size_t i) {
          // The lowest failing index takes longest to fail.
          if (i == 50) std::this_thread::sleep_for(1ms);
          if (i >= 50) throw std::runtime_error(std::to_string(i));
        });
        FAIL();
      } catch (const std::runtime_error& error) {
        ASSERT_STREQ(error.what(), "50");
      }
}

// In a separate process, whose address space suffices for some thread stacks, not for all.
TEST(ThreadPool, ReportsThatTheSystemHasNoMoreThreads) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers reserve address space";
  const auto run = [] {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const size_t bytes = pages * size_t(sysconf(_SC_PAGESIZE)) + (size_t{1} << 28);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(1);
    std::atomic<int> done{0};
    parallel_for(1024, 1024, [&](size_t) { ++done; });
    if (done != 1024) std::_Exit(2);
    try {
      const ThreadPool pool(1024, "many");
    } catch (const Error& error) {
      std::_Exit(error.kind() == ErrorKind::kRun ? 0 : 3);
    }
    std::_Exit(4);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST(AvailableCores, AreThoseThatTheThreadMayRunOn) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  const int all = available_cores();
  EXPECT_GE(all, 1);
  EXPECT_LE(all, CPU_COUNT(&before));
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(available_cores(), all);
}

}  // namespace
}  // namespace saturate
