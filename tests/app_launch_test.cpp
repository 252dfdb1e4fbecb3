// `saturate launch`: results, failures, signals, restarts, orphans.
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "reduce/sockets.h"
#include "run/checkpoint.h"
#include "tests/app_testing.h"
#include "tests/port_testing.h"

namespace saturate::testing {
namespace {

constexpr int kSteps = 20;

class Launch : public ::testing::Test {
 protected:
  Launch() {
    write_file(recipe, std::string("seed = 3\n[data]\nsource = \"") + kSmallSynth +
                           "\"\nthreads = 1\n[augment]\nsize = 8\n[model]\nname = \"mlp\"\n"
                           "width = 0.5\n[schedule]\nname = \"constant\"\n[optimizer]\nlr = 0.05\n"
                           "[train]\nbatch = 20\nepochs = 2\nthreads = 1\n[watch]\nevery = 5\n"
                           "[distributed]\ntimeout_s = 60\n");
  }

  std::vector<std::string> launch(int processes, const std::string& name,
                                  const std::vector<std::string>& more = {},
                                  const std::vector<std::string>& options = {}) {
    std::vector<std::string> all = {"launch", "--nproc-per-node", std::to_string(processes)};
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), {"--", "train", recipe, "--out", dir / name});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // The exit code; the output is in `log`.
  int run(const std::vector<std::string>& arguments) {
    return exit_code_of(start_saturate(arguments, log));
  }
  std::string said() { return read_text(log); }

  Checkpoint checkpoint_of(const std::string& name) {
    return find_checkpoint(Env::posix(), dir / name,
                           [](const std::string& text) { ADD_FAILURE() << text; });
  }
  void expect_same_weights(const std::string& name, const std::string& other) {
    const Checkpoint one = checkpoint_of(name), two = checkpoint_of(other);
    EXPECT_EQ(one.position.step, two.position.step);
    EXPECT_EQ(one.position.samples, two.position.samples);
    ASSERT_EQ(one.model.size(), two.model.size());
    for (size_t i = 0; i < one.model.size(); ++i)
      EXPECT_LE((one.model[i].tensor - two.model[i].tensor).abs().max().item<double>(), 1e-6)
          << one.model[i].name;
  }

  // Expects a resumed run, at its present step, to equal a run without an interruption.
  void expect_same_as_uninterrupted(const std::string& name) {
    const double epochs = double(checkpoint_of(name).position.step) / (kSteps / 2.0);
    ASSERT_EQ(run(launch(2, "uncut", {"--set", fmt::format("train.epochs={}", epochs)})), 0)
        << said();
    expect_same_weights(name, "uncut");
  }

  // The losses of all evaluations, each over every image.
  std::vector<double> accuracies(const std::string& name) {
    std::vector<double> found;
    for (const auto& record : read_metrics(dir / name))
      if (record["kind"] == "eval") found.push_back(record["accuracy"]);
    return found;
  }
  std::string first_record(const std::string& name) {
    const std::string text = read_text(dir / name + "/metrics.jsonl");
    return text.substr(0, text.find('\n'));
  }
  // The error of rank 0 if rank 1 was started with `other`.
  CommandResult start_with_other(const std::string& both, const std::string& other) {
    const std::string port = std::to_string(20000 + getpid() % 12000);
    const std::string common =
        "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port;
    const std::string train = "train " + recipe + both;
    return run_saturate(train + " --out " + (dir / "run"),
                        common + " RANK=1 LOCAL_RANK=1 '" + kCommand + "' " + train + other +
                            " >/dev/null 2>'" + (dir / "other") + "' & " + common +
                            " RANK=0 LOCAL_RANK=0");
  }

  const TempDir dir;
  const std::string recipe = dir / "recipe.toml", log = dir / "log";
};

bool has_line(const std::string& folder) {
  return !read_text(folder + "/metrics.jsonl").empty();
}

// Whether a checkpoint is reported after `mark`.
bool saved_after(const std::string& text, const std::string& mark) {
  const auto at = text.find(mark);
  return at != std::string::npos && text.find("saved ", at) != std::string::npos;
}

// The process with a rank's number in its environment.
pid_t rank_of(pid_t launcher, int rank) {
  for (pid_t child : children_of(launcher)) {
    const std::string text = read_text("/proc/" + std::to_string(child) + "/environ");
    const std::string wanted = "RANK=" + std::to_string(rank);
    if (text.find(std::string(1, '\0') + wanted + std::string(1, '\0')) != std::string::npos ||
        text.starts_with(wanted + std::string(1, '\0')))
      return child;
  }
  return -1;
}

// Its id; 0 if it is gone: a signal to 0 would reach all processes.
pid_t signal_rank(pid_t launcher, int rank, int signal) {
  const pid_t process = rank_of(launcher, rank);
  if (process <= 0) return 0;
  kill(process, signal);
  return process;
}

// Whether a process has a handler for a signal.
bool catches(pid_t process, int signal) {
  const std::string status = read_text("/proc/" + std::to_string(process) + "/status");
  const std::string mark = "SigCgt:";
  const auto at = status.find(mark);
  if (at == std::string::npos) return false;
  return (std::stoull(status.substr(at + mark.size()), nullptr, 16) >> (signal - 1) & 1) != 0;
}

TEST_F(Launch, AnyNumberOfProcessesTrainsTheSame) {
  const std::vector<std::string> held_out = {"--set",
                                             std::string("data.eval_source=") + kSmallSynthTest};
  std::vector<std::string> alone = {"train", recipe, "--out", dir / "one"};
  alone.insert(alone.end(), held_out.begin(), held_out.end());
  ASSERT_EQ(run(alone), 0) << said();
  for (int processes : {2, 4}) {
    const std::string name = std::to_string(processes);
    ASSERT_EQ(run(launch(processes, name, held_out)), 0) << said();
    expect_same_weights(name, "one");
    const auto expected = losses(dir / "one", "eval"), found = losses(dir / name, "eval");
    ASSERT_FALSE(expected.empty());
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6);
    const auto steps = losses(dir / name, "step"), steps_alone = losses(dir / "one", "step");
    ASSERT_FALSE(steps_alone.empty());
    ASSERT_EQ(steps.size(), steps_alone.size());
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_NEAR(steps[i], steps_alone[i], 1e-5);
    EXPECT_EQ(accuracies(name), accuracies("one"));
    const auto end = read_metrics(dir / name).back();
    EXPECT_EQ(end["kind"], "end");
    EXPECT_GT(end["phases"]["reduce"], 0);
    EXPECT_EQ(end["samples"], 2 * 200);
  }
}

TEST_F(Launch, ARunResumesMidEpochWithAnotherNumberOfProcesses) {
  ASSERT_EQ(run({"train", recipe, "--out", dir / "one"}), 0) << said();
  ASSERT_EQ(run(launch(2, "two", {"--set", "train.epochs=0.5"})), 0) << said();
  EXPECT_EQ(checkpoint_of("two").position.batch, 5);
  ASSERT_EQ(run(launch(3, "two", {"--resume", dir / "two", "--set", "train.epochs=1.3"})), 0)
      << said();
  ASSERT_EQ(run({"train", recipe, "--resume", dir / "two"}), 0) << said();
  expect_same_weights("two", "one");
}

TEST_F(Launch, AnyNumberOfProcessesResumesOlderCheckpointsAndFindsAFinishedRun) {
  ASSERT_EQ(run({"train", recipe, "--out", dir / "run"}), 0) << said();
  const std::string from = dir / "run/checkpoints/step-00000010.safetensors";
  ASSERT_EQ(run(launch(2, "run", {"--resume", dir / "run"})), 0) << said();
  EXPECT_EQ(losses(dir / "run", "step").size(), size_t(kSteps / 5)) << "finished: no step is made";
  EXPECT_GT(read_metrics(dir / "run").back()["phases"]["forward"], 0);
  ASSERT_EQ(run({"launch", "--nproc-per-node", "2", "--", "train", "--resume", from, "--set",
                 "train.epochs=1.5"}),
            0)
      << said();
  EXPECT_NE(said().find("a new branch of the run"), std::string::npos) << said();
  EXPECT_EQ(checkpoint_of("run").position.step, 15);
}

TEST_F(Launch, AKilledRankIsNamedAndNoProcessRemains) {
  const pid_t launcher = start_saturate(launch(2, "run", {"--set", "train.epochs=1e5"}), log);
  ASSERT_TRUE(wait_until([&] { return has_line(dir / "run"); })) << said();
  const auto ranks = children_of(launcher);
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_GT(signal_rank(launcher, 1, SIGKILL), 0) << said();
  EXPECT_EQ(exit_code_of(launcher), 4) << said();
  EXPECT_NE(said().find("error: rank 1 was ended by signal 9 (KILL)"), std::string::npos) << said();
  EXPECT_NE(said().find("[0] saturate: error: another process ended"), std::string::npos) << said();
  for (pid_t rank : ranks) EXPECT_NE(kill(rank, 0), 0) << rank;
}

TEST_F(Launch, AKilledLauncherEndsItsRanks) {
  const pid_t launcher = start_saturate(launch(2, "run", {"--set", "train.epochs=1e5"}), log);
  ASSERT_TRUE(wait_until([&] { return saved_after(said(), ""); })) << said();
  const auto ranks = children_of(launcher);
  ASSERT_EQ(ranks.size(), 2u);
  kill(launcher, SIGKILL);
  EXPECT_EQ(exit_code_of(launcher), 128 + SIGKILL);
  for (pid_t rank : ranks)
    EXPECT_TRUE(wait_until([&] {
      const std::string stat = read_text("/proc/" + std::to_string(rank) + "/stat");
      return stat.empty() || stat.find(") Z ") != std::string::npos;  // until init has reaped them
    })) << rank;
  ASSERT_EQ(run(launch(2, "run", {"--resume", dir / "run", "--set", "train.max_minutes=0.001"})), 0)
      << "the folder's lock is free: " << said();
}

TEST_F(Launch, ASignalToAnyRankSavesAndStopsAll) {
  const pid_t launcher = start_saturate(launch(2, "run", {"--set", "train.epochs=1e5"}), log);
  ASSERT_TRUE(wait_until([&] { return has_line(dir / "run"); })) << said();
  ASSERT_GT(signal_rank(launcher, 1, SIGTERM), 0) << said();
  EXPECT_EQ(exit_code_of(launcher), 143) << said();
  const auto position = checkpoint_of("run").position;
  EXPECT_GT(position.step, 0);
  EXPECT_EQ(read_metrics(dir / "run").back()["step"], position.step);
}

TEST_F(Launch, ASignalToTheLauncherIsForwarded) {
  const pid_t launcher = start_saturate(launch(2, "run", {"--set", "train.epochs=1e5"}), log);
  ASSERT_TRUE(wait_until([&] { return has_line(dir / "run"); })) << said();
  kill(launcher, SIGINT);
  EXPECT_EQ(exit_code_of(launcher), 130) << said();
  EXPECT_GT(checkpoint_of("run").position.step, 0);
}

TEST_F(Launch, ASignalEndsWaitsForAStoreThatDoesNotAnswer) {
  const TakenPort store;
  const std::string source =
      fmt::format("data.source=shard:http://127.0.0.1:{}/a.shard", store.number());
  const pid_t launcher =
      start_saturate(launch(2, "run", {"--set", source, "--set", "distributed.timeout_s=15"}), log);
  // Rank 0 makes the folder, and rank 1 may not handle signals yet: SIGINT would end it at once.
  ASSERT_TRUE(wait_until([&] {
    return std::filesystem::exists(dir / "run/.lock") && catches(rank_of(launcher, 1), SIGINT);
  })) << said();
  // Rank 0 ends first, and with it what the ranks tell each other failures by.
  ASSERT_GT(signal_rank(launcher, 1, SIGSTOP), 0) << said();
  kill(launcher, SIGINT);
  ASSERT_TRUE(wait_until([&] { return rank_of(launcher, 0) < 0; })) << said();
  ASSERT_GT(signal_rank(launcher, 1, SIGCONT), 0) << said();
  EXPECT_EQ(exit_code_of(launcher, 60), 130) << said();
  EXPECT_EQ(said().find("c10d"), std::string::npos) << said();
  EXPECT_FALSE(std::filesystem::exists(dir / "run"));
}

TEST_F(Launch, AFailedRunRestartsFromItsLastCheckpoint) {
  const pid_t launcher =
      start_saturate(launch(2, "run", {"--set", "train.epochs=1e5"}, {"--max-restarts", "1"}), log);
  ASSERT_TRUE(wait_until([&] { return saved_after(said(), ""); })) << said();
  const std::string first = first_record("run");
  ASSERT_GT(signal_rank(launcher, 0, SIGKILL), 0) << said();
  ASSERT_TRUE(wait_until([&] { return saved_after(said(), "restarting all processes (1 of 1)"); }))
      << said();
  kill(launcher, SIGINT);
  ASSERT_EQ(exit_code_of(launcher), 130) << said();
  EXPECT_EQ(first_record("run"), first) << "it did not resume";
  expect_same_as_uninterrupted("run");
}

// Two launchers, one for each of two machines.
TEST_F(Launch, MachinesRestartTogetherFromTheLastCheckpoint) {
  const int found = listen_at("127.0.0.1", 0);
  const std::string master = fmt::format("127.0.0.1:{}", port_of(found));
  close(found);
  std::vector<pid_t> launchers;
  const auto said_by = [&](int node) { return read_text(dir / "log" + std::to_string(node)); };
  for (int node : {0, 1})
    launchers.push_back(start_saturate(launch(1, "run", {"--set", "train.epochs=1e5"},
                                              {"--nnodes", "2", "--node-rank", std::to_string(node),
                                               "--master", master, "--max-restarts", "1"}),
                                       dir / "log" + std::to_string(node)));
  const auto logs = [&] { return said_by(0) + "\nnode 1:\n" + said_by(1); };
  ASSERT_TRUE(wait_until([&] { return saved_after(said_by(0), ""); })) << logs();
  const std::string first = first_record("run");
  ASSERT_GT(signal_rank(launchers[1], 1, SIGKILL), 0) << logs();
  const std::string again =
      "rank 1 of node 1 was ended by signal 9 (KILL); restarting all processes (1 of 1)";
  ASSERT_TRUE(wait_until([&] { return saved_after(said_by(0), again); })) << logs();
  EXPECT_NE(said_by(1).find(again), std::string::npos) << logs();
  for (int node : {0, 1}) kill(launchers[size_t(node)], SIGINT);
  for (int node : {0, 1}) EXPECT_EQ(exit_code_of(launchers[size_t(node)]), 130) << logs();
  EXPECT_EQ(first_record("run"), first) << "it did not resume";
  expect_same_as_uninterrupted("run");
}

TEST_F(Launch, AStalledRankIsReported) {
  const pid_t launcher =
      start_saturate(launch(2, "run", {"--set", "train.epochs=1e5"}, {"--stall", "2"}), log);
  ASSERT_TRUE(wait_until([&] { return has_line(dir / "run"); })) << said();
  const size_t before = said().size();  // on a slow machine the start can stall too
  const pid_t rank = signal_rank(launcher, 1, SIGSTOP);
  ASSERT_GT(rank, 0) << said();
  std::string text;
  EXPECT_TRUE(wait_until([&] {
    text = said().substr(before);
    const auto at = text.find(fmt::format("rank 1 (process {}) has not moved for ", rank));
    return at != std::string::npos && text.find(" s: step ", at) != std::string::npos;
  })) << text;
  EXPECT_EQ(text.find("rank 0 (process "), std::string::npos) << "it only waits: " << text;
  kill(rank, SIGCONT);
  kill(launcher, SIGTERM);
  EXPECT_EQ(exit_code_of(launcher), 143) << said();
}

TEST_F(Launch, AStalledRankDoesNotDelayAStop) {
  const pid_t launcher =
      start_saturate(launch(2, "run", {"--set", "train.epochs=1e5"}, {"--stall", "1"}), log);
  ASSERT_TRUE(wait_until([&] { return has_line(dir / "run"); })) << said();
  ASSERT_GT(signal_rank(launcher, 1, SIGSTOP), 0) << said();
  kill(launcher, SIGTERM);
  EXPECT_EQ(exit_code_of(launcher), 4) << said();
  const auto at = said().find("was told to stop and has not moved for ");
  ASSERT_NE(at, std::string::npos) << said();
  EXPECT_NE(said().find(" s: ended", at), std::string::npos) << said();
}

TEST_F(Launch, ANonFiniteLossEndsAllRanks) {
  EXPECT_EQ(run(launch(2, "run", {"--set", "optimizer.lr=1e30"})), 4) << said();
  EXPECT_NE(said().find("the loss is not finite by step"), std::string::npos) << said();
}

TEST_F(Launch, UsageErrorsAreNotRetried) {
  EXPECT_EQ(run(launch(2, "run", {"--set", "train.batch=1"})), 2) << said();
  EXPECT_NE(said().find("train.batch is smaller than the number of processes"), std::string::npos)
      << said();
  EXPECT_EQ(
      run(launch(2, "run", {"--set", "data.source=folder:/nowhere"}, {"--max-restarts", "5"})), 3)
      << said();
  EXPECT_EQ(said().find("restarting all processes"), std::string::npos) << "it would fail again";
  expect_error(run_saturate("launch --nproc-per-node 2 -- eval x"), 2, {"nothing to launch"});
  expect_error(run_saturate("launch --nproc-per-node 2 --nnodes 2 -- train x"), 2, {"--master"});
  expect_error(run_saturate("train " + recipe, "RANK=1"), 2, {"WORLD_SIZE is missing"});
  expect_error(
      run_saturate("train " + recipe + " --set distributed.mode=dp --set train.device=cpu"), 2,
      {"needs two GPUs or more in one process, and there are 0"});
  EXPECT_EQ(run(launch(2, "run", {"--set", "distributed.mode=dp"})), 2) << said();
}

// As a parent that ignores the ends of its processes passes on.
TEST_F(Launch, EndsAlsoIfSigchldIsIgnored) {
  const CommandResult found = run_saturate("launch --nproc-per-node 2 -- train " + recipe +
                                               " --out " + (dir / "run") + " --set train.batch=1",
                                           "timeout 120 env --ignore-signal=CHLD");
  EXPECT_EQ(found.exit_code, 2) << found.err;
}

TEST_F(Launch, RanksThatDisagreeAreNamed) {
  expect_error(start_with_other("", " --set optimizer.lr=0.5"), 2,
               {"the recipe of rank 1 differs from rank 0's: it has optimizer.lr = 0.5, not "
                "optimizer.lr = 0.05"});
  const std::string held_out = std::string(" --set data.eval_source=") + kSmallSynthTest;
  expect_error(start_with_other(held_out, " --set data.eval_source=synth:size=16,count=40"), 2,
               {"the evaluation data of rank 1 differs from rank 0's: it has 40 samples, not 50 "
                "samples"});
  expect_error(start_with_other(held_out, " --set data.eval_source="), 2,
               {"the evaluation data of rank 1 differs from rank 0's: it has nothing, not 50 "
                "samples"});
}

TEST_F(Launch, BenchAllreduceMeasuresEverySize) {
  ASSERT_EQ(run({"bench", "allreduce", "--processes", "3", "--kib", "1,64", "--repeats", "2",
                 "--seconds", "0.01", "--json", dir / "bench.json"}),
            0)
      << said();
  const auto report = nlohmann::json::parse(read_text(dir / "bench.json"));
  EXPECT_EQ(report["bench"], "allreduce");
  ASSERT_EQ(report["rows"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const auto& row = report["rows"][i];
    EXPECT_EQ(row["backend"], i < 2 ? "shm in place" : i < 4 ? "shm" : "gloo");
    EXPECT_EQ(row["world"], 3);
    const double us = row["median"], bytes = row["bytes"], algorithm = row["algorithm_gb_per_s"];
    EXPECT_GT(us, 0);
    EXPECT_EQ(bytes, i % 2 == 0 ? 1024 : 65536);
    EXPECT_NEAR(algorithm * 1e3 * us / bytes, 1, 1e-6);
    EXPECT_NEAR(row["bus_gb_per_s"].get<double>() / algorithm, 2 * 2.0 / 3, 1e-6);
  }
}

}  // namespace
}  // namespace saturate::testing
