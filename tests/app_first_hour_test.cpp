// A new user's commands, and their output.
#include <gtest/gtest.h>

#include "base/printable.h"
#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

class FirstHour : public TrainingTest {};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The lines after "next:", each without its indentation.
std::vector<std::string> next_lines(const std::string& out) {
  std::istringstream lines(out.substr(std::min(out.find("next:\n"), out.size())));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("  ")) found.push_back(line.substr(2));
  return found;
}

TEST_F(FirstHour, TheFirstLinesNameModelDataAndDevice) {
  const CommandResult result = train("run", {"precision.mode=auto", "train.device=auto"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"model       simple_cnn, ", " parameters\n", ": 200 images of 10 classes\n",
        ": 50 images\n", "(chosen by auto), 1 thread, precision ",
        "precision bf16 (chosen by auto)",
        "steps       10 batches of 20 images an epoch, 20 in 2 epochs\n"})
    EXPECT_TRUE(holds(result.err, part) ||
                (holds(part, "bf16") && holds(result.err, "fp32 (chosen")))
        << part << "\n"
        << result.err;
  EXPECT_TRUE(holds(result.err, "run folder  " + (dir / "run") + "\n"));
  EXPECT_EQ(result.err.find("model       "), 0u) << "it is the first line";
  const CommandResult given = train("given");
  EXPECT_TRUE(holds(given.err, "precision fp32\n")) << "the recipe's precision: " << given.err;
}

TEST_F(FirstHour, AResumedRunNamesItsStep) {
  ASSERT_EQ(train("run", {"debug.off=background"}).exit_code, 0);
  remove_checkpoints(dir / "run", {20});
  const CommandResult resumed = run_saturate("train --resume " + (dir / "run"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(holds(resumed.err, "run folder  " + (dir / "run") + ", from step 10\n"))
      << resumed.err;
}

TEST_F(FirstHour, QuietOmitsTheseLines) {
  const CommandResult result = run_saturate("train " + recipe + " --quiet --out " + (dir / "run"));
  EXPECT_EQ(result.err, "");
}

TEST_F(FirstHour, TheNextCommandsNameTheReportAndAreQuotedForTheShell) {
  const std::string name = "x;$(touch pwned) 'y'";
  const CommandResult result =
      run_saturate("train " + recipe + " --set train.epochs=0.5 --out \"$RUN\"",
                   "cd " + dir.path() + "; export RUN=\"" + "x;\\$(touch pwned) 'y'" + "\";");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = next_lines(result.out);
  ASSERT_EQ(lines.size(), 4u) << result.out;
  EXPECT_TRUE(holds(lines[0], " report 'x;$(touch pwned) '\\''y'\\'''")) << lines[0];
  for (const auto& line : lines) {
    const TempDir shell;
    write_file(shell / "script",
               "cd " + dir.path() + "\n" + line + " >/dev/null 2>'" + (shell / "err") + "'\n");
    EXPECT_EQ(std::system(("bash " + (shell / "script")).c_str()), 0) << line << "\n"
                                                                      << read_text(shell / "err");
  }
  EXPECT_TRUE(std::filesystem::exists(dir / (name + "/report.html")));
  EXPECT_FALSE(std::filesystem::exists(dir / "pwned"));
}

TEST_F(FirstHour, SetTakesSeveralSettings) {
  const CommandResult several =
      run_saturate("train --set train.epochs=0.1 seed=7 data.threads=1 " + recipe +
                   " --set=model.width=0.5 optimizer.lr=0.01 --out " + (dir / "run"));
  ASSERT_EQ(several.exit_code, 0) << several.err;
  const std::string used = read_text(dir / "run/recipe.toml");
  for (const char* part : {"seed = 7\n", "width = 0.5\n", "lr = 0.01\n", "epochs = 0.1\n"})
    EXPECT_TRUE(holds(used, part)) << part;
  expect_error(run_saturate("train " + recipe + " --set seed=1 optimzer.lr=1"), 2,
               {"optimzer.lr", "optimizer.lr"});
  expect_error(run_saturate("train " + recipe + " seed=1"), 2, {"seed=1"});
}

TEST_F(FirstHour, AnOverriddenSettingIsReported) {
  const std::string command = "train " + recipe + " --print-recipe --set train.epochs=3 ";
  const CommandResult result =
      run_saturate(command + "seed=1 seed=2 --set=train.epochs=3 --set seed=5");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.out, "seed = 5\n")) << result.out;
  for (const char* part : {"saturate: warning: --set seed=1 has no effect: a later --set seed=2 ",
                           "saturate: warning: --set seed=2 has no effect: a later --set seed=5 "})
    EXPECT_TRUE(holds(result.err, part)) << result.err;
  EXPECT_FALSE(holds(result.err, "train.epochs")) << "equal values: " << result.err;
  const CommandResult second =
      run_saturate(command + "seed=1 seed=2",
                   "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
                   "MASTER_PORT=1");
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_FALSE(holds(second.err, "overrides")) << "only rank 0 reports it" << second.err;
}

TEST_F(FirstHour, TrainingOnAFolderPrintsTheRecipe) {
  ASSERT_EQ(run_saturate("data synth size=24,count=60,classes=3,difficulty=0 --out '" +
                         (dir / "my photos") + "'")
                .exit_code,
            0);
  const CommandResult result = run_saturate(
      "train 'my photos' --set train.epochs=2 train.threads=1", "cd " + dir.path() + ";");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"a recipe for my photos", "  [data]\n", "  source = ", "split:train,1/5,my photos",
        "[train]", "  epochs = 2.0\n", "48 images of 3 classes", ": 12 images\n"})
    EXPECT_TRUE(holds(result.err, part)) << part << "\n" << result.err;
  EXPECT_TRUE(std::filesystem::exists(dir / "runs/my photos-1/classes.json"));
  EXPECT_EQ(read_metrics(dir / "runs/my photos-1").back()["kind"], "end");
  const auto lines = next_lines(result.out);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(holds(lines[1], "--data 'split:held,1/5,my photos'")) << lines[1];
  const CommandResult again = run_saturate("train --resume 'runs/my photos-1' --set train.epochs=3",
                                           "cd " + dir.path() + ";");
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(FirstHour, AFolderOfTwoImagesTrains) {
  ASSERT_EQ(run_saturate("data synth size=20,count=2,classes=2 --out " + (dir / "tiny")).exit_code,
            0);
  const CommandResult result =
      run_saturate("train " + (dir / "tiny") + " --set train.epochs=3 --out " + (dir / "run"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.err, "no evaluation: too few samples")) << result.err;
}

TEST_F(FirstHour, AFolderOfPhotographsTrains) {
  const std::string photos = shared_path("data/imagenet-400");
  if (!std::filesystem::exists(photos)) GTEST_SKIP() << "no photographs at " << photos;
  const CommandResult result = run_saturate("train " + photos + " --out " + (dir / "run") +
                                            " --set train.epochs=0.05 augment.size=64 "
                                            "model.width=0.25");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.err, "400 images of 400 classes")) << result.err;
}

TEST_F(FirstHour, APathIsASource) {
  ASSERT_EQ(
      run_saturate("data synth size=16,count=40,classes=2 --out " + (dir / "set.tar")).exit_code,
      0);
  const CommandResult result =
      run_saturate("train " + recipe + " --set data.source=" + (dir / "set.tar") +
                   " data.eval_source=" + (dir / "set.tar") + " --out " + (dir / "run"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(run_saturate("data inspect " + (dir / "set.tar")).exit_code, 0);
  EXPECT_EQ(run_saturate("eval " + (dir / "run") + " --data " + (dir / "set.tar")).exit_code, 0);
  expect_error(run_saturate("data inspect " + (dir / "nowhere")), 2, {"no such file or folder"});
}

TEST_F(FirstHour, EvalPrintsEachClass) {
  ASSERT_EQ(train("run").exit_code, 0);
  const CommandResult eval = run_saturate("eval " + (dir / "run") + " --data " + kSmallSynthTest +
                                          " --json " + (dir / "eval.json"));
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  for (const char* part : {"by class, worst first", "predicted as", "answers, by number"})
    EXPECT_TRUE(holds(eval.out, part)) << part << eval.out;
  EXPECT_EQ(eval.out.find("accuracy "), 0u) << "the figures come first";
  const auto json = nlohmann::json::parse(read_text(dir / "eval.json"));
  ASSERT_EQ(json["classes"].size(), 10u);
  int64_t correct = 0, count = 0, cells = 0;
  for (const auto& of : json["classes"]) {
    correct += int64_t(of["correct"]);
    count += int64_t(of["count"]);
  }
  for (const auto& cell : json["confusion"]) cells += int64_t(cell[2]);
  EXPECT_EQ(count, 50);
  EXPECT_EQ(cells, 50);
  EXPECT_DOUBLE_EQ(double(correct) / 50, json["accuracy"]);
  // The run's last evaluation used the same images.
  const auto kept = nlohmann::json::parse(read_text(dir / "run/classes.json"));
  EXPECT_EQ(kept["classes"], json["classes"]);
  EXPECT_EQ(kept["confusion"], json["confusion"]);
  EXPECT_EQ(kept["step"], 20);
}

TEST_F(FirstHour, SeveralProcessesCountEveryImageOnce) {
  ASSERT_EQ(train("one", {"train.epochs=1"}).exit_code, 0);
  const CommandResult result =
      run_saturate("launch --nproc-per-node 3 -- train " + recipe + " --out " + (dir / "run") +
                   " --set train.epochs=1 data.threads=1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.err, "1 thread in each of 3 processes")) << result.err;
  const auto next = next_lines(result.out);
  ASSERT_FALSE(next.empty()) << result.out;
  EXPECT_TRUE(next[0].starts_with(shell_word(kCommand) + " report ")) << next[0];
  const auto one = nlohmann::json::parse(read_text(dir / "one/classes.json"));
  const auto kept = nlohmann::json::parse(read_text(dir / "run/classes.json"));
  int64_t cells = 0, correct = 0;
  for (const auto& cell : kept["confusion"]) cells += int64_t(cell[2]);
  EXPECT_EQ(cells, 50);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(kept["classes"][i]["count"], one["classes"][i]["count"]);
    correct += int64_t(kept["classes"][i]["correct"]);
  }
  EXPECT_DOUBLE_EQ(double(correct) / 50, read_metrics(dir / "run").back()["accuracy"]);
}

bool has_raw_controls(const std::string& text) {
  return holds(text, "\x9b") || holds(text, "\x1b") || holds(text, "\u202e") ||
         holds(text, "\u0085");
}

// Names with control characters or bidirectional overrides, in every command. A recipe takes only
// UTF-8; a file's name may be any bytes.
TEST_F(FirstHour, NoNameReachesTheTerminalUnescaped) {
  const std::string hostile = "cat\u202e\u0085\x1b[31m", raw = hostile + "\x9b\x32J";
  ASSERT_EQ(
      run_saturate("data synth size=16,count=24,classes=2,difficulty=0 --out " + (dir / "set"))
          .exit_code,
      0);
  const std::string photos = dir / ("set" + hostile), other = dir / ("other" + raw);
  std::filesystem::rename(dir / "set", photos);
  std::filesystem::rename(std::filesystem::directory_iterator(photos)->path(),
                          photos + "/" + hostile);
  write_file(photos + "/" + hostile + "/broken" + raw + ".jpg", "no image");
  write_file(other + "/" + raw + "/1.jpg", "no image");
  const std::string quoted = "'" + photos + "'", run = "'" + (dir / ("run" + hostile)) + "'";
  const std::pair<int, std::string> commands[] = {
      {0, "data inspect " + quoted},
      {3, "data verify " + quoted},
      {0, "data inspect '" + other + "'"},
      {3, "train '" + other + "'"},
      {0, "train " + recipe + " --set data.on_error=skip data.source=" + quoted +
              " data.eval_source=" + quoted + " train.epochs=1 --out " + run},
      {0, "eval " + run + " --data " + quoted},
      {2, "eval " + run + " --data " + quoted + "'" + raw + "'"},
      {0, "report " + run},
      {2, "train " + quoted + "'" + raw + "'"},
      {2, "train " + run},
      {2, "train " + recipe + " '" + raw + "'"},
      {0, "data pack --skip-broken --raw-fraction 1 " + quoted + " --out shard:'" +
              (dir / ("out" + raw)) + "'"}};
  for (const auto& [code, arguments] : commands) {
    const CommandResult result = run_saturate(arguments);
    EXPECT_EQ(result.exit_code, code) << arguments << "\n" << result.err;
    EXPECT_FALSE(has_raw_controls(result.out + result.err)) << arguments << "\n"
                                                            << result.out << result.err;
  }
}

}  // namespace
}  // namespace saturate::testing
