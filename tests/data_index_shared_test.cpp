// data.index: processes that share a file, and saves during an epoch.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>

#include "tests/fault_env.h"
#include "tests/index_testing.h"

namespace saturate {
namespace {

using testing::add_to;
using testing::indexed_files;
using testing::kPhotos;
using testing::TempDir;
using testing::write_photos;

class SharedIndex : public ::testing::Test {
 protected:
  void SetUp() override {
    write_photos(dir / "one");
    for (int i = 0; i < 4; ++i)
      testing::write_file(dir / "two/c/" + std::to_string(i) + ".jpg",
                          testing::indexed_photo(20 + i));
  }
  std::unique_ptr<SourceIndex> open(size_t memory = ScanIndex::kDefaultLimit) const {
    return std::make_unique<SourceIndex>(Env::posix(), path, SourceIndex::Kind::kGiven, memory);
  }

  const TempDir dir;
  const std::string path = dir / "x.points";
};

TEST_F(SharedIndex, AProcessUsesWhatOthersHaveSaved) {
  const auto first = open(), second = open(), third = open();
  add_to(*first, dir / "one");
  first->begin_epoch();
  EXPECT_EQ(indexed_files(path), 0u) << "the consumer's thread writes nothing";
  first->tend();
  EXPECT_EQ(indexed_files(path), size_t(kPhotos));
  add_to(*second, dir / "two");
  second->save(false);
  EXPECT_EQ(add_to(*second, dir / "one").known, size_t(kPhotos)) << "after its own save";
  first->begin_epoch();
  first->tend();
  EXPECT_EQ(add_to(*first, dir / "two").known, 4u) << "from the next epoch on";
  third->tend();
  EXPECT_EQ(add_to(*third, dir / "two").known, 4u) << "during an epoch";
}

TEST_F(SharedIndex, WhatOthersHaveSavedIsNotInMemory) {
  const auto first = open(), second = open();
  add_to(*first, dir / "one");
  add_to(*second, dir / "one");
  add_to(*second, dir / "two");
  const size_t both = second->points()->bytes();
  first->save(false);
  EXPECT_EQ(first->points()->bytes(), 0u);
  second->tend();
  EXPECT_GT(second->points()->bytes(), 0u) << "only it has those of the other folder";
  EXPECT_LT(second->points()->bytes(), both);
  EXPECT_EQ(add_to(*second, dir / "two").known, 4u);
}

TEST_F(SharedIndex, WhatOthersHaveSavedIsNotWrittenAgain) {
  FaultEnv env(Env::posix());
  SourceIndex first(Env::posix(), path, SourceIndex::Kind::kGiven);
  SourceIndex second(env, path, SourceIndex::Kind::kGiven);
  add_to(first, dir / "one");
  add_to(second, dir / "one");
  first.save(false);
  EXPECT_EQ(second.save(false).files, size_t(kPhotos));
  EXPECT_EQ(env.count({FileOp::kWrite, path}), 0u);
}

TEST_F(SharedIndex, AFewNewEntriesAreNotWrittenAtTheEnd) {
  const auto add = [&](uint64_t first, uint64_t end) {
    const auto index = open();
    for (uint64_t i = first; i < end; ++i)
      index->points()->keep({i, 1}, {4, 10, 2, std::vector<ScanPoint>(20)});
  };
  add(0, 1000);
  EXPECT_EQ(indexed_files(path), 1000u);
  add(1000, 1002);
  EXPECT_EQ(indexed_files(path), 1000u);
  add(1000, 1100);
  EXPECT_EQ(indexed_files(path), 1100u);
}

TEST_F(SharedIndex, AnEpochThatEndsWhileAnotherProcessSavesIsSavedLater) {
  FaultEnv env(Env::posix());
  env.use_fake_clock();
  SourceIndex index(env, path, SourceIndex::Kind::kGiven);
  add_to(index, dir / "one");
  index.begin_epoch();
  {
    const auto other = Env::posix().lock(path + ".lock");
    index.tend();
    EXPECT_EQ(indexed_files(path), 0u);
  }
  env.sleep_ns(5'000'000'000);
  index.tend();
  EXPECT_EQ(indexed_files(path), size_t(kPhotos));
}

TEST_F(SharedIndex, MemoryIsHandedOverDuringAnEpoch) {
  const std::shared_ptr<SourceIndex> index = open(/*memory=*/1);
  const auto data = with_index(open_dataset(Env::posix(), "folder:" + (dir / "one")), index);
  LoaderOptions options;
  options.batch = kPhotos;
  options.threads = 1;
  options.decode = DecodeMode::kFast;
  AugmentOptions augment;
  augment.size = 40;
  Loader loader(*data, options, augment);
  loader.start_epoch(0);
  for (int i = 0; i < 2000 && indexed_files(path) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(indexed_files(path), 1u) << "the memory is for one file";
}

TEST_F(SharedIndex, AProcessThatEndsWaitsAMinuteForAnotherThatSaves) {
  FaultEnv env(Env::posix());
  env.use_fake_clock();
  const auto other = Env::posix().lock(path + ".lock");
  auto index = std::make_unique<SourceIndex>(env, path, SourceIndex::Kind::kGiven);
  add_to(*index, dir / "one");
  ::testing::internal::CaptureStderr();
  index.reset();
  const std::string said = ::testing::internal::GetCapturedStderr();
  const size_t waits = said.find(path + ".lock: another process is saving");
  ASSERT_NE(waits, std::string::npos) << said;
  EXPECT_EQ(said.find(".lock:", waits + path.size() + 6), std::string::npos) << said;
  EXPECT_NE(said.find("in use by process", waits), std::string::npos) << said;
  EXPECT_GE(env.now_ns(), 60'000'000'000);
}

TEST_F(SharedIndex, IsWrittenWhereFilesCannotBeLocked) {
  FaultEnv env(Env::posix());
  env.inject({.match = {FileOp::kCreate, path + ".lock"}, .error = ENOSYS});
  SourceIndex index(env, path, SourceIndex::Kind::kGiven);
  add_to(index, dir / "one");
  EXPECT_EQ(index.save(false).files, size_t(kPhotos));
}

TEST_F(SharedIndex, AReadThatFailsRemovesNoEntry) {
  testing::index_into(path, dir / "one");
  FaultEnv env(Env::posix());
  SourceIndex index(env, path, SourceIndex::Kind::kGiven);
  const std::string photo = testing::indexed_photo(0);
  const ScanKey key = scan_key(std::as_bytes(std::span(photo)));
  std::vector<uint8_t> coded;
  env.inject({.match = {FileOp::kRead, path}, .error = ESTALE});
  EXPECT_FALSE(index.points()->find_coded(key, coded));
  env.clear();
  EXPECT_TRUE(index.points()->find_coded(key, coded));
}

// As a file on a server that is away for a moment.
TEST_F(SharedIndex, AFileThatCannotBeReadIsNotReplaced) {
  testing::index_into(path, dir / "one");
  const std::string before = testing::read_text(path);
  for (const auto kind : {SourceIndex::Kind::kGiven, SourceIndex::Kind::kInCache}) {
    FaultEnv env(Env::posix());
    SourceIndex index(env, path, kind);
    add_to(index, dir / "two");
    env.inject({.match = {FileOp::kRead, path}, .error = EIO});
    EXPECT_EQ(testing::error_of([&] { index.save(false); }).kind(), ErrorKind::kRun);
    EXPECT_EQ(testing::read_text(path), before);
    ::testing::internal::CaptureStderr();
    const SourceIndex opened(env, path, kind);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("is not used"), std::string::npos) << said;
    EXPECT_EQ(said.find("replaced"), std::string::npos) << said;
  }
  SourceIndex index(Env::posix(), path, SourceIndex::Kind::kGiven);
  add_to(index, dir / "two");
  EXPECT_EQ(index.save(false).files, size_t(kPhotos) + 4);
}

TEST_F(SharedIndex, ASaveThatCannotReadTheFileIsTriedAgain) {
  testing::index_into(path, dir / "one");
  for (const auto& [op, error] :
       {std::pair(FileOp::kRead, EIO), std::pair(FileOp::kOpen, EMFILE)}) {
    const std::string copy = path + std::to_string(error);
    std::filesystem::copy_file(path, copy);
    FaultEnv env(Env::posix());
    env.use_fake_clock();
    SourceIndex index(env, copy, SourceIndex::Kind::kGiven);
    add_to(index, dir / "two");
    index.begin_epoch();
    env.inject({.match = {op, copy}, .error = error});
    ::testing::internal::CaptureStderr();
    index.tend();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "it has not failed for good";
    EXPECT_EQ(indexed_files(copy), size_t(kPhotos));
    env.clear();
    env.sleep_ns(5'000'000'000);
    index.tend();
    EXPECT_EQ(indexed_files(copy), size_t(kPhotos) + 4);
  }
}

TEST_F(SharedIndex, AFileOfALaterVersionIsNotReplaced) {
  testing::index_into(path, dir / "one");
  std::string later = testing::read_text(path);
  later[8] = 2;
  testing::write_file(path, later);
  SourceIndex index(Env::posix(), path, SourceIndex::Kind::kInCache);
  const Error error = testing::error_of([&] { add_to(index, dir / "two"); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_NE(error.reason().find("version 2"), std::string::npos) << error.what();
  EXPECT_EQ(testing::error_of([&] { index.save(false); }).kind(), ErrorKind::kRun);
  EXPECT_EQ(testing::read_text(path), later);
}

// An Env whose delays call a function instead.
class HookedEnv : public FaultEnv {
 public:
  using FaultEnv::FaultEnv;
  std::function<void()> hook;
  void sleep_ns(int64_t) override { hook(); }
};

TEST_F(SharedIndex, AnEntryThatIsRemovedWhileItIsReadStaysRemoved) {
  testing::index_into(path, dir / "one");
  HookedEnv env(Env::posix());
  IndexState state;
  std::string problem;
  const auto file = IndexFile::open(env, path, state, problem);
  ASSERT_TRUE(file);
  const std::string photo = testing::indexed_photo(0);
  const ScanKey key = scan_key(std::as_bytes(std::span(photo)));
  env.hook = [&] { file->remove(key); };
  env.delay({FileOp::kRead, path}, 1, 1);
  std::vector<uint8_t> coded;
  EXPECT_TRUE(file->find(key, coded));
  EXPECT_TRUE(file->is_removed(file->position(key)));
}

TEST_F(SharedIndex, IndexingLeavesTheFileOfAnotherProcessThatSaves) {
  SourceIndex index(Env::posix(), path, SourceIndex::Kind::kGiven);
  const auto other = Env::posix().lock(path + ".lock");
  const std::string unfinished = testing::temporary_of(path, getpid());
  testing::write_file(unfinished, "half");
  index.require_writable();
  EXPECT_EQ(testing::read_text(unfinished), "half");
}

TEST_F(SharedIndex, OthersFindPointsWhileTheyAreWritten) {
  SourceIndex index(Env::posix(), path, SourceIndex::Kind::kGiven);
  add_to(index, dir / "one");
  size_t found = 0;
  std::vector<uint8_t> coded;
  index.points()->visit([&](const ScanKey& key, std::span<const uint8_t>) {
    std::thread([&] { found += index.points()->find_coded(key, coded); }).join();
  });
  EXPECT_EQ(found, size_t(kPhotos));
}

TEST_F(SharedIndex, ALockEndsThoughAForkedProcessHasItOpen) {
  auto held = Env::posix().lock(path + ".lock");
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  held.reset();
  EXPECT_NO_THROW(Env::posix().lock(path + ".lock"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(SharedIndex, IndexingReadsNothingIfItCannotSave) {
  FaultEnv env(Env::posix());
  env.inject({.match = {FileOp::kCreate, path}});
  SourceIndex index(env, path, SourceIndex::Kind::kGiven);
  const auto data = open_dataset(env, "folder:" + (dir / "one"));
  const Error error =
      testing::error_of([&] { index_dataset(*data, index, 2, ProgressCallback()); });
  EXPECT_EQ(error.kind(), ErrorKind::kRun);
  EXPECT_EQ(index.points()->added(), 0u);
}

}  // namespace
}  // namespace saturate
