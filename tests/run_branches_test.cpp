// Checkpoints of a run that resumed from an older one: which belong to its branch.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "run/checkpoint.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;

// Its one weight identifies the writer.
Checkpoint written_by(int writer, int64_t step, int64_t best_step = -1) {
  Checkpoint checkpoint;
  checkpoint.position.step = step;
  checkpoint.best.best_step = best_step;
  checkpoint.model = {{"weight", at::full({3}, writer)}};
  return checkpoint;
}

class BranchedRun : public ::testing::Test {
 protected:
  CheckpointStore store(int keep = 9, bool keep_best = false) {
    return {Env::posix(), dir.path(), CheckpointOptions{.keep = keep, .keep_best = keep_best}};
  }
  std::string path_of(int64_t step) { return store().path_of(step); }
  // Steps of the files that belong to the run, newest first.
  std::vector<int64_t> steps() {
    std::vector<int64_t> found;
    for (const auto& path : list_checkpoints(Env::posix(), dir.path()))
      found.push_back(read_checkpoint(Env::posix(), path).position.step);
    return found;
  }
  int64_t newest() {
    return find_checkpoint(Env::posix(), dir.path(), [](const std::string&) {}).position.step;
  }
  bool exists(int64_t step) { return Env::posix().exists(path_of(step)); }

  TempDir dir;
};

using StepsKept = std::vector<int64_t>;

TEST_F(BranchedRun, ARunWithoutBranchesHasNoRecordOfThem) {
  CheckpointStore first = store();
  EXPECT_TRUE(first.begin("").empty());
  for (int64_t step : {10, 20}) first.save(written_by(0, step));
  EXPECT_TRUE(store().begin(path_of(20)).empty());
  EXPECT_FALSE(Env::posix().exists(dir / "branches.json"));
  EXPECT_EQ(steps(), (StepsKept{20, 10}));
}

TEST_F(BranchedRun, NewerFilesOfTheOldBranchAreNotChosen) {
  CheckpointStore first = store();
  for (int64_t step : {10, 20, 30, 40}) first.save(written_by(0, step));
  CheckpointStore second = store();
  EXPECT_EQ(second.begin(path_of(20)), (std::vector<std::string>{path_of(40), path_of(30)}));
  EXPECT_EQ(newest(), 20) << "before the first save, too";
  second.save(written_by(1, 25));
  EXPECT_EQ(newest(), 25);
  second.save(written_by(1, 30));  // replaces the old branch's file
  EXPECT_EQ(steps(), (StepsKept{30, 25, 20, 10}));
  EXPECT_TRUE(exists(40));
  EXPECT_TRUE(store().begin(path_of(30)).empty()) << "it is the newest: no file is left behind";
  EXPECT_EQ(steps(), (StepsKept{30, 25, 20, 10}));
}

TEST_F(BranchedRun, ResumingOlderFilesTwiceAndFromTheOldBranch) {
  CheckpointStore first = store();
  for (int64_t step : {10, 20, 40}) first.save(written_by(0, step));
  CheckpointStore second = store();
  second.begin(path_of(20));
  for (int64_t step : {25, 35}) second.save(written_by(1, step));
  CheckpointStore third = store();
  EXPECT_EQ(third.begin(path_of(25)), std::vector<std::string>{path_of(35)});
  EXPECT_EQ(steps(), (StepsKept{25, 20, 10}));
  third.save(written_by(2, 27));
  EXPECT_EQ(steps(), (StepsKept{27, 25, 20, 10}));
  CheckpointStore fourth = store();
  EXPECT_EQ(fourth.begin(path_of(40)), (std::vector<std::string>{path_of(27), path_of(25)}));
  EXPECT_EQ(steps(), (StepsKept{40, 20, 10}));
  fourth.save(written_by(3, 50));
  EXPECT_EQ(steps(), (StepsKept{50, 40, 20, 10}));
  CheckpointStore fifth = store();
  fifth.begin(path_of(10));  // of a branch of the branch
  EXPECT_EQ(steps(), StepsKept{10});
}

TEST_F(BranchedRun, KeepCountsOnlyTheBranch) {
  CheckpointStore first = store();
  for (int64_t step : {10, 20, 30, 40}) first.save(written_by(0, step));
  CheckpointStore second = store(/*keep=*/2);
  second.begin(path_of(20));
  second.save(written_by(1, 25));
  EXPECT_EQ(steps(), (StepsKept{25, 20}));
  second.save(written_by(1, 26));
  EXPECT_EQ(steps(), (StepsKept{26, 25}));
  EXPECT_TRUE(exists(30) && exists(40)) << "files of an old branch are not deleted";
}

TEST_F(BranchedRun, TheOldBranchsBestIsNotTheBest) {
  CheckpointStore first = store(9, /*keep_best=*/true);
  first.save(written_by(0, 10, 10));
  first.save(written_by(0, 20, 10));
  first.save(written_by(0, 30, 30));
  CheckpointStore second = store(1, /*keep_best=*/true);
  second.begin(path_of(20));
  second.save(written_by(1, 25, 10));
  EXPECT_EQ(steps(), (StepsKept{25, 10}));
  EXPECT_EQ(second.read(10).position.step, 10);
  const Error error = error_of([&] { second.read(30); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_EQ(error.reason(), "the checkpoint is not of this branch of the run");
  EXPECT_EQ(error_of([&] { second.read(15); }).reason(), "there is no such checkpoint");
}

TEST_F(BranchedRun, AFileNamedForAnotherStepIsNotRead) {
  CheckpointStore run = store();
  run.save(written_by(0, 10));
  std::filesystem::copy_file(path_of(10), path_of(20));
  EXPECT_EQ(error_of([&] { run.read(20); }).exit_code(), 4);
}

TEST_F(BranchedRun, AnOlderBestStaysUntilANewerOneIsSaved) {
  CheckpointStore run = store(1, /*keep_best=*/true);
  run.save(written_by(0, 4, 4));
  // The best of step 6 was not saved, but step 7's checkpoint names it.
  for (int64_t step : {7, 8, 9}) run.save(written_by(0, step, 6));
  EXPECT_EQ(steps(), (StepsKept{9, 4}));
  run.save(written_by(0, 10, 10));
  run.save(written_by(0, 11, 10));
  EXPECT_EQ(steps(), (StepsKept{11, 10}));
}

TEST_F(BranchedRun, ARunFromTheBeginningOrElsewhereStartsABranch) {
  CheckpointStore old = store();
  for (int64_t step : {10, 40}) old.save(written_by(0, step));
  CheckpointStore restarted = store();
  EXPECT_EQ(restarted.begin(""), (std::vector<std::string>{path_of(40), path_of(10)}));
  EXPECT_TRUE(steps().empty());
  const Error error = error_of([&] { newest(); });
  EXPECT_NE(std::string(error.what()).find("the run's current branch has no checkpoint yet"),
            std::string::npos)
      << error.what();
  restarted.save(written_by(1, 5));
  EXPECT_EQ(steps(), StepsKept{5});

  const TempDir elsewhere;
  CheckpointStore other(Env::posix(), elsewhere.path(),
                        CheckpointOptions{.keep = 9, .keep_best = false});
  const std::string from = other.save(written_by(7, 40));
  CheckpointStore taking = store();
  EXPECT_FALSE(taking.holds(from)) << "40 exists, but from another run";
  EXPECT_EQ(taking.begin(from), std::vector<std::string>{path_of(5)});
  EXPECT_TRUE(steps().empty());
  taking.save(written_by(7, 50));
  EXPECT_EQ(steps(), StepsKept{50});
}

TEST_F(BranchedRun, AnEarlierFileIsFoundOnThePathToTheOneThatIsResumed) {
  CheckpointStore first = store();
  for (int64_t step : {10, 20, 40}) first.save(written_by(0, step));
  CheckpointStore second = store();
  second.begin(path_of(20));
  second.save(written_by(1, 30));
  const TempDir elsewhere;
  const CheckpointStore other(Env::posix(), elsewhere.path(), CheckpointOptions{});
  const CheckpointStore own = store();
  for (const CheckpointStore* const each : {&own, &other}) {
    EXPECT_EQ(each->find_step(path_of(30), 10), path_of(10));
    EXPECT_EQ(each->find_step(path_of(30), 30), path_of(30)) << "itself";
    EXPECT_EQ(each->find_step(path_of(40), 20), path_of(20));
    EXPECT_EQ(each->find_step(path_of(40), 30), "") << "of another branch";
    EXPECT_EQ(each->find_step(path_of(30), 15), "");
  }
}

TEST_F(BranchedRun, ACopyOrAnotherSpellingOfAPathIsTheSameFile) {
  CheckpointStore run = store();
  for (int64_t step : {10, 20, 30}) run.save(written_by(0, step));
  const TempDir backup;
  std::filesystem::copy_file(path_of(20), backup / "good.safetensors");
  for (const std::string& from :
       {backup / "good.safetensors", dir.path() + "/.././" +
                                         std::filesystem::path(dir.path()).filename().string() +
                                         "/step-00000020.safetensors"}) {
    CheckpointStore again = store();
    EXPECT_TRUE(again.holds(from));
    again.begin(from);
    EXPECT_EQ(steps(), (StepsKept{20, 10}));
  }
}

// Copied out of a folder of several branches, without branches.json.
TEST_F(BranchedRun, AFileOfAnUnknownBranchCounts) {
  Checkpoint copied = written_by(5, 20);
  copied.branch = 5;
  write_checkpoint(Env::posix(), path_of(20), copied);
  copied.position.step = 30;
  write_checkpoint(Env::posix(), path_of(30), copied);
  EXPECT_EQ(newest(), 30);
  CheckpointStore run = store();
  EXPECT_EQ(run.begin(path_of(20)), std::vector<std::string>{path_of(30)});
  EXPECT_EQ(steps(), StepsKept{20});
  run.save(written_by(1, 25));
  EXPECT_EQ(steps(), (StepsKept{25, 20}));
}

TEST_F(BranchedRun, ABrokenNewestFileThatBecomesReadableDoesNotBelongToTheRun) {
  CheckpointStore first = store();
  for (int64_t step : {10, 20, 30}) first.save(written_by(0, step));
  const std::string good = testing::read_text(path_of(30));
  for (const std::string& bad : {good.substr(0, good.size() - 1) + "x", good.substr(0, 5)}) {
    testing::write_file(path_of(30), bad);
    EXPECT_EQ(newest(), 20);
    CheckpointStore second = store();
    EXPECT_EQ(second.begin(path_of(20)), std::vector<std::string>{path_of(30)});
    second.save(written_by(1, 25));
    EXPECT_EQ(newest(), 25);
    testing::write_file(path_of(30), good);
    EXPECT_EQ(newest(), 25);
    std::filesystem::remove(path_of(25));
    std::filesystem::remove(dir / "branches.json");
  }
}

TEST_F(BranchedRun, ADamagedBranchRecordIsNamed) {
  CheckpointStore run = store();
  run.save(written_by(0, 10));
  for (const char* const text :
       {"", "{}", "{\"branches\":[{\"from\":1,\"step\":3}]}",
        "{\"branches\":[{\"from\":-1,\"step\":3}]}", "{\"branches\":[3]}", "{\"branches\":null}",
        "{\"branches\":[{\"from\":0,\"step\":1e99}]}",
        "{\"branches\":[{\"from\":0,\"step\":20.7}]}",
        "{\"branches\":[{\"from\":0,\"step\":-5}]}"}) {
    testing::write_file(dir / "branches.json", text);
    const Error error = error_of([&] { steps(); });
    EXPECT_EQ(error.exit_code(), 4) << text;
    EXPECT_EQ(error.where(), dir / "branches.json");
    EXPECT_EQ(read_checkpoint(Env::posix(), path_of(10)).position.step, 10);
  }
}

// Else the newest file, of a branch that was left, would be taken.
TEST_F(BranchedRun, ABranchRecordThatCannotBeExaminedIsNotTakenForMissing) {
  CheckpointStore run = store();
  for (int64_t step : {10, 20}) run.save(written_by(0, step));
  run.begin(path_of(10));
  FaultEnv env(Env::posix());
  env.inject({.match = {FileOp::kExamine, "branches.json"}, .error = EIO});
  EXPECT_EQ(error_of([&] { list_checkpoints(env, dir.path()); }).exit_code(), 4);
  EXPECT_EQ(steps(), (StepsKept{10}));
}

TEST_F(BranchedRun, ABranchRecordThatCannotBeWrittenChangesNothing) {
  CheckpointStore run = store();
  for (int64_t step : {10, 20}) run.save(written_by(0, step));
  FaultEnv env(Env::posix());
  Fault fault;
  fault.match = {FileOp::kWrite, "branches.json"};
  env.inject(fault);
  CheckpointStore back(env, dir.path(), CheckpointOptions{.keep = 9, .keep_best = false});
  EXPECT_EQ(error_of([&] { back.begin(path_of(10)); }).exit_code(), 4);
  EXPECT_EQ(steps(), (StepsKept{20, 10}));
}

}  // namespace
}  // namespace saturate
