// A process that gets no more threads or address space ends with one error line; the soft limit of
// open files is raised.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "tests/app_testing.h"
#include "tests/paths.h"
#include "tests/port_testing.h"

namespace saturate::testing {
namespace {

class Limits : public TrainingTest {};

// Memory of a running process, KiB.
int64_t most_addresses(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmPeak:")) return std::stoll(line.substr(7));
  return 0;
}

// Memory of the small recipe with one thread of each kind.
int64_t usual_addresses(const std::string& recipe, const std::string& folder) {
  const pid_t child = start_saturate(
      {"train", recipe, "--out", folder, "--set", "data.threads=1", "--set", "train.epochs=1e5"},
      folder + ".log");
  EXPECT_TRUE(wait_until([&] { return !read_text(folder + "/metrics.jsonl").empty(); }));
  const int64_t most = most_addresses(child);
  kill(child, SIGKILL);
  exit_code_of(child);
  return most;
}

TEST_F(Limits, OfAddressSpaceEndARunWithOneError) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers reserve address space";
  const int64_t usual = usual_addresses(recipe, dir / "usual");
  ASSERT_GT(usual, 0);
  int number = 0;
  for (const std::string key : {"data.threads", "train.threads"}) {
    for (const int64_t more : {20, 300, 2000}) {  // MiB: for some thread stacks, not for all
      SCOPED_TRACE(key + ", " + std::to_string(more) + " MiB");
      const std::string folder = dir / ("run" + std::to_string(number++));
      const CommandResult result =
          run_saturate("train " + recipe + " --out " + folder + " --set " + key + "=1024",
                       "ulimit -s 8192; ulimit -v " + std::to_string(usual + more * 1024) + ";");
      expect_error(result, 4, {});
      for (const char* word : {"terminate", "libgomp", "Aborted"})
        EXPECT_EQ(result.err.find(word), std::string::npos) << result.err;
    }
  }
}

// The endpoint has the most threads.
TEST_F(Limits, OfAddressesEndARunWithPrometheusWithOneErrorOrNone) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers take addresses of their own";
  const int64_t usual = usual_addresses(recipe, dir / "usual");
  ASSERT_GT(usual, 0);
  int refused = 0;
  for (const int more : {-150, -75, 0, 40, 80, 120}) {  // MiB
    SCOPED_TRACE(std::to_string(more) + " MiB");
    CommandResult result = run_saturate(
        "train " + recipe + " --out " + (dir / std::to_string(more)) +
            " --set data.threads=1 --set watch.prometheus=" + std::to_string(free_port()),
        "ulimit -s 8192; ulimit -v " + std::to_string(usual + more * 1024) + ";");
    refused += result.exit_code != 0 ? 1 : 0;
    if (result.out.starts_with("failed at step")) result.out.clear();  // the summary of a run
    if (result.exit_code != 0) expect_error(result, 4, {});
    for (const char* word : {"terminate", "Aborted"})
      EXPECT_EQ(result.err.find(word), std::string::npos) << result.err;
  }
  EXPECT_GT(refused, 0);
}

// LibTorch allocates before main(), where no exception can be caught.
TEST_F(Limits, OfAddressSpaceEndACommandWithOneErrorBeforeMain) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers reserve address space";
  constexpr int kNotLoaded = 127;    // the dynamic loader's own message
  int64_t low = 0, high = 64 << 20;  // KiB: too few, and enough
  int last = 0;
  while (high - low > 4 << 10) {
    const int64_t middle = (low + high) / 2;
    SCOPED_TRACE(std::to_string(middle) + " KiB");
    const CommandResult result =
        run_saturate("--version", "ulimit -v " + std::to_string(middle) + ";");
    (result.exit_code == 0 ? high : low) = middle;
    if (result.exit_code == 0) continue;
    last = result.exit_code;
    if (last != kNotLoaded) expect_error(result, 4, {"out of memory", "ulimit -v"});
  }
  EXPECT_EQ(last, 4) << "the smallest limit that lets it load";
}

TEST_F(Limits, OfOpenFilesIsRaisedForShards) {
  constexpr rlim_t kShards = 100;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 2 * kShards) GTEST_SKIP() << "the hard limit is too low";
  const std::string shard = dir / "set/0.shard";
  ASSERT_EQ(
      run_saturate("data pack synth:size=16,count=6,classes=3 --out shard:" + shard).exit_code, 0);
  for (rlim_t i = 1; i < kShards; ++i)
    std::filesystem::copy_file(shard, dir / ("set/" + std::to_string(i) + ".shard"));
  const CommandResult seen =
      run_saturate("data inspect shard:" + (dir / "set"), "ulimit -S -n 64;");
  EXPECT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_NE(seen.out.find("600"), std::string::npos) << seen.out;
}

}  // namespace
}  // namespace saturate::testing
