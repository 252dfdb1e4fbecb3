// Runs that are stopped, killed, limited or shared: the files they leave, and how they resume.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/socket.h>

#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

class SurvivingRun : public TrainingTest {
 protected:
  // train() without waiting for its end; its stderr goes to NAME.log.
  pid_t start(const std::string& name, const std::vector<std::string>& overrides) {
    std::vector<std::string> arguments = {"train", recipe, "--out", dir / name};
    for (const auto& text : overrides) arguments.insert(arguments.end(), {"--set", text});
    return start_saturate(arguments, dir / (name + ".log"));
  }
  std::string log_of(const std::string& name) { return read_text(dir / (name + ".log")); }
  static void wait_for_steps(const std::string& folder, int steps) {
    ASSERT_TRUE(
        wait_until([&] { return count_lines(read_text(folder + "/metrics.jsonl")) >= steps; }));
  }
  CommandResult eval(const std::string& name, const std::string& more = "") {
    return run_saturate("eval " + (dir / name) + " --data " + kSmallSynthTest + " --json " +
                        (dir / "eval.json") + " " + more);
  }
};

TEST_F(SurvivingRun, AnInterruptSavesAndTheRunResumesAtTheNextBatch) {
  ASSERT_EQ(train("whole", {"train.epochs=12"}).exit_code, 0);
  const std::string out = dir / "cut";
  int code = 0;
  // On a busy machine a run may end before the signal.
  for (int trial = 0; code == 0 && trial < 5; ++trial) {
    std::filesystem::remove_all(out);
    const pid_t child = start("cut", {"train.epochs=12"});
    wait_for_steps(out, 5);
    kill(child, SIGINT);
    code = exit_code_of(child);
  }
  ASSERT_EQ(code, 130) << log_of("cut");
  ASSERT_LT(losses(out, "step").size(), losses(dir / "whole", "step").size());

  const CommandResult resumed =
      run_saturate("train --resume " + out + " --set data.threads=4 --set train.epochs=12");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_losses(dir / "whole", out, "step");
  expect_same_losses(dir / "whole", out, "eval");
  const std::string last = "/checkpoints/step-00000120.safetensors";
  EXPECT_EQ(checksum((dir / "whole") + last), checksum(out + last)) << "weights are bit-equal";
}

TEST_F(SurvivingRun, SigtermAndSlurmsSignalSaveToo) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP}) {
    const std::string name = "run" + std::to_string(signal);
    const pid_t child = start(name, {"train.epochs=1e5"});
    wait_for_steps(dir / name, 5);
    kill(child, signal);
    EXPECT_EQ(exit_code_of(child), 143) << log_of(name);
    const int64_t last = read_metrics(dir / name).back()["step"];
    EXPECT_TRUE(std::filesystem::exists(
        dir / fmt::format("{}/checkpoints/step-{:08}.safetensors", name, last)));
  }
}

// The kernel's SIGHUP; then the progress bar and the summary cannot be written. With several
// processes only the launcher gets the signal.
class ClosedTerminal : public SurvivingRun, public ::testing::WithParamInterface<bool> {};

TEST_P(ClosedTerminal, SavesToo) {
  int terminal = -1;
  const std::string out = dir / "run";
  std::vector<std::string> arguments = {"saturate", "train",           recipe, "--out", out,
                                        "--set",    "train.epochs=1e5"};
  if (GetParam())
    arguments.insert(arguments.begin() + 1, {"launch", "--nproc-per-node", "2", "--"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    execv(kCommand.c_str(), argv.data());
    _exit(98);
  }
  fcntl(terminal, F_SETFL, O_NONBLOCK);
  std::string shown(1 << 16, ' ');
  ASSERT_TRUE(wait_until([&] {
    while (read(terminal, shown.data(), shown.size()) > 0) {
    }
    return count_lines(read_text(out + "/metrics.jsonl")) >= 5;
  }));
  close(terminal);
  EXPECT_EQ(exit_code_of(child), 143);
  const int64_t last = read_metrics(out).back()["step"];
  EXPECT_TRUE(
      std::filesystem::exists(fmt::format("{}/checkpoints/step-{:08}.safetensors", out, last)));
}

INSTANTIATE_TEST_SUITE_P(OfARun, ClosedTerminal, ::testing::Values(false, true));

// With `| tee`, which the same Ctrl-C ends.
TEST_F(SurvivingRun, AnInterruptSavesWithoutAReaderOfTheOutput) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string out = dir / "run";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execl(kCommand.c_str(), kCommand.c_str(), "train", recipe.c_str(), "--out", out.c_str(),
          "--set", "train.epochs=1e5", "checkpoint.every=0", nullptr);
    _exit(98);
  }
  close(ends[1]);
  wait_for_steps(out, 5);
  close(ends[0]);
  kill(child, SIGINT);
  EXPECT_EQ(exit_code_of(child), 130);
  const int64_t last = read_metrics(out).back()["step"];
  EXPECT_TRUE(
      std::filesystem::exists(fmt::format("{}/checkpoints/step-{:08}.safetensors", out, last)));
}

// A long folder name makes the summary longer than stdout's buffer, so that it is written early.
TEST_F(SurvivingRun, TheSummaryNeedsNoReader) {
  std::string out = dir.path();
  for (int i = 0; i < 8; ++i) out += "/" + std::string(250, 'r');
  const auto code_of = [&](const std::string& command) {
    const std::string all = "('" + kCommand + "' " + command + " --out " + out + " 2>'" +
                            (dir / "err") + "'; echo $? >'" + (dir / "code") + "') | true";
    EXPECT_EQ(std::system(all.c_str()), 0);
    std::filesystem::remove_all(dir / std::string(250, 'r'));
    return std::stoi(read_text(dir / "code"));
  };
  EXPECT_EQ(code_of("train " + recipe), 0) << read_text(dir / "err");
  EXPECT_EQ(code_of("launch --nproc-per-node 1 -- train " + recipe), 0) << read_text(dir / "err");
  EXPECT_EQ(code_of("train " + recipe + " --set optimizer.lr=1e30 checkpoint.every='1 step'"), 4);
  EXPECT_NE(read_text(dir / "err").find("the loss is not finite"), std::string::npos)
      << read_text(dir / "err");
}

TEST_F(SurvivingRun, UnwritableResultsAreAFailure) {
  const std::string command = kCommand + " env >/dev/full 2>" + (dir / "err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_NE(read_text(dir / "err").find("cannot write the results"), std::string::npos);
}

TEST_F(SurvivingRun, ACancelledEvaluationIsMadeLater) {
  const auto evaluating = [](int images) {
    return fmt::format("data.eval_source=synth:size=64,count={},split=test", images);
  };
  std::vector<std::string> overrides = {evaluating(300'000), "train.epochs=1",
                                        "train.eval_batch=10"};
  const pid_t child = start("cut", overrides);
  wait_for_steps(dir / "cut", 11);  // after ten steps and the epoch: it evaluates
  kill(child, SIGTERM);
  ASSERT_EQ(exit_code_of(child), 143) << log_of("cut");
  EXPECT_TRUE(losses(dir / "cut", "eval").empty()) << "it was cancelled";
  overrides[0] = evaluating(300);
  const CommandResult resumed =
      run_saturate("train --resume " + (dir / "cut") + " --set " + overrides[0]);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  ASSERT_EQ(train("whole", overrides).exit_code, 0);
  expect_same_losses(dir / "cut", dir / "whole", "eval");
  expect_same_losses(dir / "cut", dir / "whole", "epoch");
}

TEST_F(SurvivingRun, ASecondInterruptQuitsAtOnce) {
  // Steps of many seconds.
  const pid_t child = start("run", {"model.name=resnet50", "augment.size=224", "train.batch=100"});
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(dir / "run/metrics.jsonl"); }));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  kill(child, SIGINT);
  EXPECT_TRUE(wait_until([&] { return log_of("run").find("Ctrl-C again") != std::string::npos; }));
  kill(child, SIGINT);
  EXPECT_EQ(exit_code_of(child), 130);
  EXPECT_TRUE(std::filesystem::is_empty(dir / "run/checkpoints")) << "it saved after its step";
}

TEST_F(SurvivingRun, AFolderInUseIsRefused) {
  const pid_t child = start("run", {"train.epochs=1000"});
  wait_for_steps(dir / "run", 15);
  ASSERT_TRUE(wait_until([&] { return log_of("run").find("saved ") != std::string::npos; }));
  expect_error(run_saturate("train --resume " + (dir / "run")), 2,
               {"in use by process " + std::to_string(child), "run/.lock"});
  kill(child, SIGKILL);
  exit_code_of(child);
  const CommandResult resumed =
      run_saturate("train --resume " + (dir / "run") + " --set train.epochs=3");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

TEST_F(SurvivingRun, WallTimeIsLimited) {
  const CommandResult limited =
      train("run", {"train.max_minutes=0.02", "train.epochs=100000", "watch.every=100"});
  ASSERT_EQ(limited.exit_code, 0) << limited.err;
  EXPECT_NE(limited.out.find("stopped by train.max_minutes"), std::string::npos) << limited.out;
  EXPECT_NE(limited.out.find("train --resume"), std::string::npos) << limited.out;
  const auto end = read_metrics(dir / "run").back();
  EXPECT_FALSE(end["accuracy"].is_null()) << "it evaluated";
  EXPECT_GE(end["time_s"], 0.02 * 60);
  EXPECT_LT(end["time_s"], 60);
}

TEST_F(SurvivingRun, EvaluatesAndSavesBySteps) {
  ASSERT_EQ(
      train("run", {"train.eval_every=6 steps", "checkpoint.every=4 steps", "debug.off=background",
                    "checkpoint.keep=9", "checkpoint.keep_best=false"})
          .exit_code,
      0);
  std::vector<int> evaluated, saved;
  for (const auto& record : read_metrics(dir / "run"))
    if (record["kind"] == "eval") evaluated.push_back(record["step"]);
  EXPECT_EQ(evaluated, (std::vector<int>{6, 12, 18, 20}));
  for (const auto& entry : std::filesystem::directory_iterator(dir / "run/checkpoints"))
    saved.push_back(std::stoi(entry.path().filename().string().substr(5)));
  std::sort(saved.begin(), saved.end());
  EXPECT_EQ(saved, (std::vector<int>{4, 8, 12, 16, 20}));
}

TEST_F(SurvivingRun, StopsEarlyAndEndsWithTheBestWeights) {
  // The highest loss counts as the best, which it is at first.
  ASSERT_EQ(train("run", {"train.monitor=eval_loss:max", "train.early_stop=2", "train.epochs=50",
                          "train.ema=0.5"})
                .exit_code,
            0);
  const auto records = read_metrics(dir / "run");
  const auto evaluations = losses(dir / "run", "eval");
  size_t best = 0;
  for (size_t i = 0; i < evaluations.size(); ++i)
    if (evaluations[i] > evaluations[best]) best = i;
  EXPECT_EQ(evaluations.size(), best + 3);
  EXPECT_EQ(records.back()["loss"], evaluations[best]);
  ASSERT_EQ(eval("run").exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_text(dir / "eval.json"))["loss"], evaluations[best]);
  const CommandResult again = run_saturate("train --resume " + (dir / "run"));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("stopped early at step"), std::string::npos) << again.out;
}

TEST_F(SurvivingRun, AfterResumingAnOlderCheckpointCommandsUseTheNewBranch) {
  ASSERT_EQ(train("run", {"checkpoint.every=5 steps", "checkpoint.keep=9"}).exit_code, 0);
  const std::string run = dir / "run", checkpoints = run + "/checkpoints/step-000000";
  ASSERT_TRUE(std::filesystem::exists(checkpoints + "20.safetensors"));
  // The new branch ends at step 10, at the end of an epoch.
  const CommandResult back =
      run_saturate("train --resume " + checkpoints + "05.safetensors --set train.epochs=1");
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_NE(back.err.find("a new branch of the run"), std::string::npos) << back.err;
  const CommandResult evaluated = eval("run");
  EXPECT_NE(evaluated.out.find("step-00000010"), std::string::npos) << evaluated.out;
  const CommandResult exported =
      run_saturate("export " + run + " --format safetensors --out " + (dir / "model"));
  EXPECT_NE(exported.out.find("step-00000010"), std::string::npos) << exported.out;
  // A launcher's restart of the command that resumed the older checkpoint.
  const CommandResult restarted =
      run_saturate("train --resume " + checkpoints + "05.safetensors --set train.epochs=2",
                   "SATURATE_RESTART_FOLDER=" + run);
  ASSERT_EQ(restarted.exit_code, 0) << restarted.err;
  const auto records = read_metrics(run);
  EXPECT_EQ(losses(run, "step").size(), 20u);
  EXPECT_EQ(losses(run, "epoch").size(), 2u);
  EXPECT_EQ(records.back()["samples"], 400);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "15.safetensors"));
}

// A restart that knows the folder resumes its newest checkpoint.
TEST_F(SurvivingRun, ALauncherGetsTheFolderOnceTheNewBranchExists) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string run = dir / "run", from = run + "/checkpoints/step-00000010.safetensors";
  const auto said_of = [&](const std::vector<std::string>& more) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    setenv("SATURATE_REPORT_FD", std::to_string(ends[1]).c_str(), 1);
    std::vector<std::string> arguments = {"train", "--resume", from};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const pid_t child = start_saturate(arguments, dir / "log");
    unsetenv("SATURATE_REPORT_FD");
    close(ends[1]);
    std::string said;
    char buffer[4096];
    for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
      said.append(buffer, size_t(count));
    close(ends[0]);
    exit_code_of(child);
    return said;
  };
  const std::string refused = said_of({"--set", "train.batch=50"});
  EXPECT_EQ(refused.find("folder "), std::string::npos) << refused << read_text(dir / "log");
  const std::string taken = said_of({});
  EXPECT_NE(taken.find("folder " + run), std::string::npos) << taken << read_text(dir / "log");
}

TEST_F(SurvivingRun, AFinishedRunIsNotChanged) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string run = dir / "run", metrics = read_text(run + "/metrics.jsonl");
  const CommandResult again = run_saturate("train --resume " + run);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.out.find("the run had ended at step 20: there is nothing to do"),
            std::string::npos)
      << again.out;
  EXPECT_NE(again.out.find("held out"), std::string::npos) << again.out;
  EXPECT_EQ(again.out.find("where time went"), std::string::npos) << again.out;
  EXPECT_EQ(read_text(run + "/metrics.jsonl"), metrics);
}

TEST_F(SurvivingRun, AveragedWeightsAreEvaluated) {
  ASSERT_EQ(train("run", {"train.ema=0.9"}).exit_code, 0);
  const auto records = read_metrics(dir / "run");
  const auto evaluation = records[records.size() - 2];
  ASSERT_EQ(evaluation["kind"], "eval");
  EXPECT_NE(evaluation["loss"], evaluation["plain_loss"]);
  ASSERT_EQ(eval("run").exit_code, 0);
  auto found = nlohmann::json::parse(read_text(dir / "eval.json"));
  EXPECT_EQ(found["loss"], evaluation["loss"]);
  EXPECT_EQ(found["accuracy"], records.back()["accuracy"]);
  ASSERT_EQ(eval("run", "--plain").exit_code, 0);
  found = nlohmann::json::parse(read_text(dir / "eval.json"));
  EXPECT_EQ(found["loss"], evaluation["plain_loss"]);
}

TEST_F(SurvivingRun, PredictionsAreOneLinePerSample) {
  ASSERT_EQ(train("run").exit_code, 0);
  ASSERT_EQ(eval("run", "--predictions " + (dir / "predictions.csv")).exit_code, 0);
  std::istringstream lines(read_text(dir / "predictions.csv"));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "sample,label,prediction,probability");
  int samples = 0, right = 0;
  for (; std::getline(lines, line); ++samples) {
    std::istringstream fields(line);
    std::string name, label, prediction, probability;
    std::getline(fields, name, ',');
    std::getline(fields, label, ',');
    std::getline(fields, prediction, ',');
    std::getline(fields, probability, ',');
    EXPECT_FALSE(name.empty());
    right += label == prediction;
    EXPECT_GE(std::stod(probability), 0.1 - 1e-6) << "the largest of ten";
    EXPECT_LE(std::stod(probability), 1);
  }
  EXPECT_EQ(samples, 50);
  const auto found = nlohmann::json::parse(read_text(dir / "eval.json"));
  EXPECT_DOUBLE_EQ(found["accuracy"], right / 50.0);
}

TEST_F(SurvivingRun, MemoryDoesNotGrow) {
  if (kSanitized) GTEST_SKIP() << "AddressSanitizer keeps freed memory, and reports leaks itself";
  ASSERT_EQ(train("run", {"model.name=mlp", "train.epochs=100", "checkpoint.every=5 steps",
                          "train.ema=0.9", "watch.every=50"})
                .exit_code,
            0);
  const auto records = read_metrics(dir / "run");
  const int64_t early = records[records.size() / 4]["memory_peak_bytes"];
  const int64_t late = records.back()["memory_peak_bytes"];
  EXPECT_GT(early, 8 << 20) << "memory is not measured";
  EXPECT_LT(late - early, 8 << 20);
}

}  // namespace
}  // namespace saturate::testing
