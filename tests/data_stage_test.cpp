// Sources copied before use (data.stage): the same samples, and no file left of the copy.
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "base/cancel.h"
#include "data/atomic_file.h"
#include "data/export.h"
#include "saturate/data/input.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/store_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_file;

class Stage : public ::testing::Test {
 protected:
  Stage() {
    testing::write_folder_dataset(dir / "set", 30);
    env.make_directories(dir / "fast");
  }
  std::unique_ptr<Dataset> stage(Env& through, const std::string& from,
                                 const ProgressCallback& progress = {}) {
    return stage_dataset(through, open_dataset(through, from), from,
                         {StageMode::kTmpfs, dir / "fast"}, 2, progress);
  }
  bool nothing_left() { return env.list(dir / "fast").empty(); }
  TempDir dir;
  Env& env = Env::posix();
  const std::string uri = "folder:" + (dir / "set");
};

void expect_same(const Dataset& a, const Dataset& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(a.classes(), b.classes());
  Sample x, y;
  for (size_t i = 0; i < a.size(); ++i) {
    a.read(i, x);
    b.read(i, y);
    EXPECT_EQ(x.bytes, y.bytes);
    EXPECT_EQ(x.label, y.label);
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.encoding, y.encoding);
    EXPECT_EQ(a.bytes(i), b.bytes(i));
    if (x.encoding == SampleEncoding::kEncoded) continue;
    EXPECT_EQ(x.width, y.width);
    EXPECT_EQ(x.height, y.height);
  }
}

TEST_F(Stage, ACopyOfAnyKindOfSourceHasItsSamplesAndNoName) {
  write_file(dir / "wide/a/0.jpg", testing::noise_jpeg(200, 20, 1));
  PackOptions options;
  options.out = "shard:" + (dir / "s.shard");
  options.raw_fraction = 0.3;
  pack_dataset(env, *open_dataset(env, uri), options);
  options = {};
  options.out = "shard:" + (dir / "segments.shard");
  pack_dataset(env, *open_dataset(env, "folder:" + (dir / "wide")), options);
  for (const std::string& source :
       {uri, "shard:" + (dir / "s.shard"), "shard:" + (dir / "segments.shard"),
        std::string("synth:size=8,count=9,classes=3")}) {
    size_t told = 0;
    const auto staged = stage(env, source, [&](size_t done, size_t) { told = done; });
    EXPECT_TRUE(nothing_left());
    expect_same(*open_dataset(env, source), *staged);
    EXPECT_EQ(told, staged->size());
  }
}

TEST_F(Stage, TheSourceIsNotReadAgain) {
  FaultEnv faults(env);
  const auto staged = stage(faults, uri);
  faults.inject({.match = {{}, "set"}, .error = EIO});
  Sample sample;
  for (size_t i = 0; i < staged->size(); ++i) staged->read(i, sample);
}

TEST_F(Stage, TwoStagesAtOnceDoNotInterfere) {
  const auto first = stage(env, uri), second = stage(env, uri);
  expect_same(*first, *second);
}

TEST_F(Stage, ASampleThatCannotBeReadFailsAsInTheSource) {
  PackOptions options;
  options.out = "shard:" + (dir / "s.shard");
  pack_dataset(env, *open_dataset(env, uri), options);
  std::string text = testing::read_text(dir / "s.shard");
  text[4096 + 100] ^= 1;  // in the first image
  write_file(dir / "s.shard", text);
  const std::string shard = "shard:" + (dir / "s.shard");
  const auto plain = open_dataset(env, shard);
  const auto staged = stage(env, shard);
  Sample sample;
  const Error expected = error_of([&] { plain->read(0, sample); });
  const Error error = error_of([&] { staged->read(0, sample); });
  EXPECT_STREQ(error.what(), expected.what());
  staged->read(1, sample);
  EXPECT_EQ(sample.name, dir / "s.shard:even/00002.jpg");
}

class SmallEnv : public FaultEnv {
 public:
  SmallEnv(Env& inner, uint64_t free) : FaultEnv(inner), free_(free) {}
  uint64_t free_bytes(const std::string&) override { return free_; }

 private:
  const uint64_t free_;
};

TEST_F(Stage, TooLittleSpaceIsReportedBeforeCopying) {
  SmallEnv small(env, 20'000);
  const Error error = error_of([&] { stage(small, uri); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_NE(error.remedy().find("data.stage"), std::string::npos);
  EXPECT_EQ(small.count({FileOp::kCreate, ""}), 0u);
}

// One small image that claims to take so many bytes.
class Claiming : public testing::MemoryDataset {
 public:
  explicit Claiming(uint64_t bytes) : MemoryDataset({"image"}), bytes_(bytes) {}
  uint64_t bytes(size_t) const override { return bytes_; }

 private:
  const uint64_t bytes_;
};

TEST_F(Stage, OnTmpfsMemoryIsFreeSpaceToo) {
  struct statfs about {};
  if (statfs("/dev/shm", &about) != 0 || about.f_type != TMPFS_MAGIC)
    GTEST_SKIP() << "/dev/shm is not tmpfs here";
  SmallEnv roomy(env, UINT64_MAX);
  const Error error = error_of([&] {
    stage_dataset(roomy, std::make_unique<Claiming>(uint64_t{1} << 60), "huge",
                  {StageMode::kTmpfs, "/dev/shm"}, 1);
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_EQ(roomy.count({FileOp::kCreate, ""}), 0u);
}

TEST_F(Stage, TheSpaceMustHoldTheCopiesOfAllProcessesOfTheMachine) {
  struct statfs about {};
  ASSERT_EQ(statfs((dir / "fast").c_str(), &about), 0);
  const uint64_t all = uint64_t(about.f_blocks) * uint64_t(about.f_bsize);
  const testing::ScopedVariable world[] = {{"RANK", "0"},
                                           {"WORLD_SIZE", "2"},
                                           {"LOCAL_RANK", "0"},
                                           {"LOCAL_WORLD_SIZE", "2"},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", "29500"}};
  SmallEnv roomy(env, UINT64_MAX);
  const Error error = error_of([&] {
    stage_dataset(roomy, std::make_unique<Claiming>(all / 10 * 6), "large",
                  {StageMode::kTmpfs, dir / "fast"}, 1);
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_NE(error.reason().find("for each of 2 processes"), std::string::npos) << error.what();
  EXPECT_TRUE(nothing_left());
}

TEST_F(Stage, NoFileIsLeftIfCopyingFailsOrIsCancelled) {
  for (const FileOp op :
       {FileOp::kCreate, FileOp::kWrite, FileOp::kSync, FileOp::kRename, FileOp::kSyncDirectory}) {
    FaultEnv faults(env);
    faults.inject({.match = {op, "fast"}, .error = ENOSPC, .written = 700});
    EXPECT_EQ(error_of([&] { stage(faults, uri); }).kind(), ErrorKind::kRun) << int(op);
    EXPECT_TRUE(nothing_left()) << int(op);
  }
  const auto give_up = [](size_t done, size_t) {
    if (done > 7) fail(ErrorKind::kRun, "stopped", "here", "");
  };
  EXPECT_EQ(error_of([&] { stage(env, uri, give_up); }).reason(), "stopped");
  EXPECT_TRUE(nothing_left());
  for (const int most : {10, 40}) {  // while the size is computed, and while samples are copied
    std::atomic<int> looks{0};
    const CancelScope scope([&] { return ++looks > most; });
    EXPECT_EQ(error_of([&] { stage(env, uri); }).reason(), kCancelledWait);
    EXPECT_TRUE(nothing_left());
  }
  EXPECT_EQ(error_of([&] {
              stage_dataset(env, open_dataset(env, uri), uri, {StageMode::kTmpfs, dir / "none"}, 1);
            }).kind(),
            ErrorKind::kUsage);
}

TEST_F(Stage, FilesOfAKilledProcessAreRemovedAndThoseOfALiveOneAreNot) {
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  const std::string prefix = dir / "fast/saturate-stage-";
  const std::string ending = host_ending() + ".shard.tmp-", number = std::to_string(dead);
  write_file(prefix + number + "-0" + ending + number, "half");
  const std::string alive = prefix + std::to_string(getppid()) + "-0" + ending + "1";
  write_file(alive, "half");
  const std::string elsewhere = prefix + number + "-0-01234567.shard.tmp-" + number;
  write_file(elsewhere, "of a process of another machine");
  write_file(dir / "fast/saturate-stage-mine", "not of a process");
  stage(env, uri);
  EXPECT_EQ(env.list(dir / "fast").size(), 3u);
  EXPECT_TRUE(env.exists(alive) && env.exists(elsewhere));
}

// A container with the host's network has the host's name, and its own numbers of processes.
TEST(HostEnding, DiffersBetweenPidNamespaces) {
  constexpr int kNotPermitted = 99;
  const std::string here = host_ending();
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) _exit(kNotPermitted);
    const pid_t inner = fork();
    if (inner < 0) _exit(kNotPermitted);
    if (inner == 0) _exit(host_ending() != here ? 0 : 1);
    int status = 0;
    _exit(waitpid(inner, &status, 0) == inner && WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "no PID namespace may be made here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace saturate
