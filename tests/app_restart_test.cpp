// --resume=auto, and launchers that restart a run: it starts, restarts or resumes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "reduce/sockets.h"
#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

class Restarts : public TrainingTest {
 protected:
  // The arguments that all runs of a test share, for the shell in the test's folder.
  CommandResult here(const std::string& arguments, const std::string& before = "") {
    return run_saturate(arguments, "cd '" + dir.path() + "'; " + before);
  }
  // Kills a run once `ready` holds.
  template <class Ready>
  void kill_when(const std::vector<std::string>& more, const Ready& ready) {
    std::vector<std::string> arguments = {"train", recipe, "--out", dir / "run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const pid_t child = start_saturate(arguments, dir / "log");
    EXPECT_TRUE(wait_until(ready)) << read_text(dir / "log");
    kill(child, SIGKILL);
    exit_code_of(child);
  }
  std::vector<std::string> run_folders() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir / "runs"))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // Expects each step once, from the first to `last`.
  void expect_steps(const std::string& run, int last) {
    std::vector<int> steps, expected;
    for (const auto& record : read_metrics(run))
      if (record["kind"] == "step") steps.push_back(record["step"]);
    for (int step = 1; step <= last; ++step) expected.push_back(step);
    EXPECT_EQ(steps, expected);
  }
  std::string last_checksum(const std::string& run, int step) {
    return checksum(fmt::format("{}/checkpoints/step-{:08}.safetensors", run, step));
  }
};

TEST_F(Restarts, ARunKilledBeforeItsFirstCheckpointRestarts) {
  const std::string run = dir / "run";
  kill_when({"--set", "checkpoint.every=0", "--set", "train.epochs=1e5"},
            [&] { return !losses(run, "step").empty(); });
  ASSERT_FALSE(std::filesystem::exists(run + "/checkpoints/step-00000010.safetensors"));
  expect_error(run_saturate("train --resume " + run), 4,
               {"holds no checkpoint", "--resume=auto --out " + run});
  expect_error(train("run"), 2, {"holds a run already", "--resume=auto"});
  const CommandResult again = run_saturate("train " + recipe + " --resume=auto --out " + run);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  expect_steps(run, 20);
  ASSERT_EQ(train("whole").exit_code, 0);
  EXPECT_EQ(last_checksum(run, 20), last_checksum(dir / "whole", 20));
}

TEST_F(Restarts, AutoStartsAndThenResumes) {
  const std::string run = dir / "run";
  // The command is the same each time; the first time there is no run.
  kill_when({"--resume", "auto", "--set", "train.epochs=12"}, [&] {
    return std::filesystem::exists(run + "/checkpoints/step-00000010.safetensors");
  });
  const std::string first = read_metrics(run).front().dump();
  const CommandResult again =
      run_saturate("train " + recipe + " --resume auto --out " + run + " --set train.epochs=12");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_metrics(run).front().dump(), first) << "it did not resume";
  expect_steps(run, 120);
  ASSERT_EQ(train("whole", {"train.epochs=12"}).exit_code, 0);
  EXPECT_EQ(last_checksum(run, 120), last_checksum(dir / "whole", 120));
  // Uses the run's own recipe if none is given.
  EXPECT_EQ(run_saturate("train --resume=auto --out " + run + " --set train.epochs=13").exit_code,
            0);
  EXPECT_EQ(read_metrics(run).back()["step"], 130);
}

TEST_F(Restarts, OutMayNameTheResumedRunInAnotherWay) {
  const std::string run = dir / "run", middle = run + "/checkpoints/step-00000010.safetensors";
  ASSERT_EQ(train("run").exit_code, 0);
  ASSERT_EQ(train("other").exit_code, 0);
  for (const auto& [out, from] : {std::pair{run + "/", run}, {run, middle}}) {
    const CommandResult again = run_saturate("train --out " + out + " --resume " + from);
    EXPECT_EQ(again.exit_code, 0) << again.err;
  }
  expect_steps(run, 20);
  expect_error(run_saturate("train --out " + (dir / "other") + " --resume " + middle), 2,
               {"holds a run already"});
}

TEST_F(Restarts, AutoWithoutAFolderResumesTheNewestRun) {
  const std::string command = "train " + recipe + " --resume=auto --set train.epochs=";
  ASSERT_EQ(here(command + "1").exit_code, 0);
  EXPECT_EQ(run_folders(), std::vector<std::string>{"small-1"});
  ASSERT_EQ(here(command + "2").exit_code, 0);
  EXPECT_EQ(run_folders(), std::vector<std::string>{"small-1"});
  expect_steps(dir / "runs/small-1", 20);
  // Similar names belong to other recipes; a new run is numbered after the newest.
  for (const char* other : {"runs/small-x", "runs/small-3x", "runs/smaller-9", "runs/small-9"})
    std::filesystem::create_directories(dir / other);
  ASSERT_EQ(here("train " + recipe + " --set train.epochs=1").exit_code, 0);
  ASSERT_EQ(here(command + "2").exit_code, 0);
  expect_steps(dir / "runs/small-10", 20);
}

TEST_F(Restarts, AutoKeepsTheRecordsOfAnEndedRunWithoutCheckpoints) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string run = dir / "run";
  std::filesystem::remove_all(run + "/checkpoints");
  const auto before = folder_contents(run);
  expect_error(run_saturate("train " + recipe + " --resume=auto --out " + run), 2,
               {"its checkpoints are gone", run, "by --out"});
  expect_error(run_saturate("train --resume " + run), 2, {"its checkpoints are gone", run});
  EXPECT_EQ(folder_contents(run), before);
}

TEST_F(Restarts, ALinkThatLeadsNowhereIsKept) {
  const std::string link = dir / "scratch", run = dir / "run";
  std::filesystem::create_symlink("/nowhere/scratch", link);
  std::filesystem::create_directories(run);
  std::filesystem::create_symlink("/nowhere/scratch", run + "/checkpoints");
  for (const std::string& out : {link, link + "/run", run})
    for (const std::string more : {"", " --resume=auto"})
      expect_error(run_saturate("train " + recipe + " --out " + out + more), 4,
                   {"the symbolic link leads nowhere"});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(std::filesystem::is_symlink(run + "/checkpoints"));
}

TEST_F(Restarts, EachOfSeveralRunsThatStartTogetherHasAFolder) {
  write_file(dir / "all.sh",
             fmt::format("for i in 1 2 3 4 5 6; do\n"
                         "  '{}' train '{}' --set seed=$i train.epochs=0.1 2>log$i &\n"
                         "  all=\"$all $!\"\ndone\n"
                         "for one in $all; do wait $one || exit 1; done\n",
                         kCommand, recipe));
  const std::string command = "cd '" + dir.path() + "' && sh all.sh >/dev/null </dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(run_folders().size(), 6u);
}

TEST_F(Restarts, ALostOrDamagedRecipeIsReadFromTheCheckpoint) {
  ASSERT_EQ(train("run", {"train.epochs=1", "optimizer.lr=0.02"}).exit_code, 0);
  const std::string run = dir / "run", path = run + "/recipe.toml", good = read_text(path);
  const std::string begin = "saturate: warning: " + path + " cannot be used (";
  int epochs = 1;
  for (const std::string& damaged :
       {std::string(), good.substr(0, good.find("batch") + 7), std::string("\0\0\0", 3)})
    for (const std::string& request : {"--resume " + run, "--resume=auto --out " + run}) {
      write_file(path, damaged);
      const CommandResult resumed =
          run_saturate(fmt::format("train {} --set train.epochs={}", request, ++epochs));
      ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
      EXPECT_EQ(resumed.err.find(begin), 0u) << resumed.err;
      EXPECT_NE(resumed.err.find(fmt::format("step-{:08}.safetensors", epochs * 10 - 10)),
                std::string::npos)
          << resumed.err;
      EXPECT_NE(read_text(path).find("lr = 0.02\n"), std::string::npos) << "it is written again";
    }
  for (const std::string& request : {"--resume " + run, "--resume=auto --out " + run}) {
    std::filesystem::remove(path);
    const CommandResult resumed =
        run_saturate(fmt::format("train {} --set train.epochs={}", request, ++epochs));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(resumed.err.find(begin), 0u) << resumed.err;
  }
  expect_steps(run, epochs * 10);
}

// A user's own edit of the recipe must not be ignored.
TEST_F(Restarts, AWrongKeyInARunsRecipeIsAnErrorAndARecipeCanBeGiven) {
  ASSERT_EQ(train("run", {"train.epochs=1"}).exit_code, 0);
  const std::string run = dir / "run", path = run + "/recipe.toml";
  write_file(path, "sead = 1\n" + read_text(path));
  expect_error(run_saturate("train --resume " + run + " --set train.epochs=2"), 2,
               {"unknown key sead", path + ":1", "Did you mean seed?"});
  EXPECT_EQ(run_saturate("train " + recipe + " --resume " + run).exit_code, 0);
  std::filesystem::remove_all(run + "/checkpoints");
  write_file(path, "not TOML");
  expect_error(run_saturate("train --resume " + run), 2, {"not valid TOML", path + ":1"});
}

TEST_F(Restarts, AutoNeedsARecipeToStart) {
  expect_error(here("train --resume=auto"), 2, {"no recipe given"});
  expect_error(here("train --resume=auto --out none"), 2, {"no recipe given", "none"});
  expect_error(here("train --resume none"), 4, {"no such run or checkpoint (none)"});
}

// Two processes started by a launcher, then again after one of them is killed: a shell is their
// parent, in place of torchrun, mpirun or srun. $1: the attempt.
struct Launcher {
  const char *name, *variables, *arguments;
};

void PrintTo(const Launcher& launcher, std::ostream* out) {
  *out << launcher.name;
}

class RestartedByLauncher : public Restarts, public ::testing::WithParamInterface<Launcher> {};

TEST_P(RestartedByLauncher, ResumesInTheSameFolder) {
  const int found = listen_at("127.0.0.1", 0);
  const int port = port_of(found);
  close(found);
  const std::string saved = "runs/small-1/checkpoints/step-00000010.safetensors";
  write_file(
      dir / "launcher.sh",
      fmt::format("start() {{ MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} '{}' train '{}' {} "
                  "--set train.epochs=50 --set model.name=mlp & }}\n"
                  "start 0 0; first=$!; start 0 1; second=$!\n"
                  "until [ -e {} ]; do sleep 0.01; kill -0 $first || exit 9; done\n"
                  "kill -9 $second; wait $first; wait $second\n"
                  "start 1 0; first=$!; start 1 1; second=$!\n"
                  "wait $second; wait $first\n",
                  port, GetParam().variables, kCommand, recipe, GetParam().arguments, saved));
  const std::string command = "cd '" + dir.path() + "' && sh launcher.sh >log 2>&1 </dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_text(dir / "log");
  EXPECT_EQ(run_folders(), std::vector<std::string>{"small-1"}) << read_text(dir / "log");
  expect_steps(dir / "runs/small-1", 500);
}

constexpr Launcher kLaunchers[] = {
    {"Torchrun",
     "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=$1 RANK=$2 WORLD_SIZE=2 LOCAL_RANK=$2 "
     "LOCAL_WORLD_SIZE=2",
     ""},
    {"Mpirun",
     "OMPI_COMM_WORLD_RANK=$2 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$2 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2",
     "--resume=auto"},
    {"Srun",
     "SLURM_PROCID=$2 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=$2 SLURM_STEP_TASKS_PER_NODE=2 "
     "SLURM_RESTART_COUNT=$1",
     "--resume auto"},
};
INSTANTIATE_TEST_SUITE_P(Launchers, RestartedByLauncher, ::testing::ValuesIn(kLaunchers),
                         [](const auto& of) { return of.param.name; });

// torchrun restarts after usage errors too: such a restart must resume only its own folder.
TEST_F(Restarts, ATorchrunRestartResumesNoOtherRun) {
  const std::string torchrun =
      "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "
      "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1";
  ASSERT_EQ(here("train " + recipe + " --set train.epochs=1").exit_code, 0);
  expect_error(here("train " + recipe + " --out runs/small-1", torchrun), 2,
               {"holds a run already"});
  ASSERT_EQ(here("train " + recipe + " --set train.epochs=1", torchrun).exit_code, 0);
  EXPECT_EQ(run_folders(), (std::vector<std::string>{"small-1", "small-2"}));
}

// Otherwise the first one's restart would not find its folder.
TEST_F(Restarts, ASecondTorchrunDoesNotClaimTheFolderOfARunInProgress) {
  const std::string run = dir / "run";
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  const pid_t first =
      start_saturate({"train", recipe, "--out", run, "--set", "train.epochs=1e5"}, dir / "first");
  unsetenv("TORCHELASTIC_RUN_ID");
  ASSERT_TRUE(wait_until([&] { return !losses(run, "step").empty(); })) << read_text(dir / "first");
  const std::string note = read_text(run + "/.launcher");
  EXPECT_FALSE(note.empty());
  write_file(dir / "second.sh",
             fmt::format("TORCHELASTIC_RUN_ID=none '{}' train '{}' --resume=auto --out '{}'\n"
                         "echo $? >code\n",
                         kCommand, recipe, run));
  const std::string command = "cd '" + dir.path() + "' && sh second.sh >log 2>&1 </dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(read_text(dir / "code"), "2\n") << read_text(dir / "log");
  EXPECT_NE(read_text(dir / "log").find("in use by process"), std::string::npos);
  EXPECT_EQ(read_text(run + "/.launcher"), note);
  kill(first, SIGTERM);
  EXPECT_EQ(exit_code_of(first), 143);
}

// One process, without a group.
TEST_F(Restarts, TorchrunRestartsOneProcessInItsFolder) {
  write_file(dir / "launcher.sh",
             fmt::format("start() {{ RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 "
                         "MASTER_PORT=1 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=$1 "
                         "'{}' train '{}' --set train.epochs=$2; }}\n"
                         "start 0 1; start 1 2\n",
                         kCommand, recipe));
  const std::string command = "cd '" + dir.path() + "' && sh launcher.sh >log 2>&1 </dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_text(dir / "log");
  EXPECT_EQ(run_folders(), std::vector<std::string>{"small-1"});
  expect_steps(dir / "runs/small-1", 20);
}

TEST_F(Restarts, TheLauncherRestartsARunWithoutACheckpoint) {
  const std::string run = dir / "run";
  std::vector<std::string> arguments = {"launch",
                                        "--nproc-per-node",
                                        "2",
                                        "--max-restarts",
                                        "1",
                                        "--",
                                        "train",
                                        recipe,
                                        "--out",
                                        run,
                                        "--set",
                                        "checkpoint.every=0",
                                        "--set",
                                        "train.epochs=1e5",
                                        "--resume=auto"};
  const std::string log = dir / "log";
  const pid_t launcher = start_saturate(arguments, log);
  ASSERT_TRUE(wait_until([&] { return losses(run, "step").size() > 5; })) << read_text(log);
  const std::string first = read_metrics(run).front().dump();
  const std::string lock = read_text(run + "/.lock");
  const pid_t rank0 = std::atoi(lock.c_str());
  ASSERT_GT(rank0, 0) << lock;
  kill(rank0, SIGKILL);
  ASSERT_TRUE(wait_until([&] {
    const auto records = read_metrics(run);  // only once: the restart empties the file
    return read_text(log).find("restarting all processes (1 of 1)") != std::string::npos &&
           std::ranges::count(records, "step", [](const auto& record) { return record["kind"]; }) &&
           records.front().dump() != first;
  })) << read_text(log);
  kill(launcher, SIGTERM);
  EXPECT_EQ(exit_code_of(launcher), 143) << read_text(log);
  const int stopped = read_metrics(run).back()["step"];
  // The next job has the same command.
  arguments.insert(arguments.end(), {"--set", fmt::format("train.epochs={}", stopped / 10 + 1)});
  EXPECT_EQ(exit_code_of(start_saturate(arguments, log)), 0) << read_text(log);
  expect_steps(run, (stopped / 10 + 1) * 10);
}

}  // namespace
}  // namespace saturate::testing
