// SIGKILL at random points of a run, also while a checkpoint is written: every checkpoint that was
// reported exists, and the resumed run ends with the weights of a run that was never killed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "saturate/data/random.h"
#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

// `make kills` sets more.
int wanted_kills() {
  const char* given = std::getenv("SATURATE_KILLS");
  return given ? std::stoi(given) : 8;
}

class KilledRun : public ::testing::Test {
 protected:
  std::vector<std::string> arguments(const std::string& name, int threads) {
    return {"train",    recipe,  "--out",
            dir / name, "--set", "data.threads=" + std::to_string(threads)};
  }
  static bool is_writing(const std::string& checkpoints) {
    std::error_code gone;  // files are created and removed meanwhile
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints, gone))
      if (entry.path().string().find(".tmp-") != std::string::npos) return true;
    return false;
  }
  static int newest_step(const std::string& checkpoints) {
    int newest = -1;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints))
      if (entry.path().extension() == ".safetensors")
        newest = std::max(newest, std::stoi(entry.path().filename().string().substr(5)));
    return newest;
  }
  // Step of the last checkpoint that a log reports; -1: none.
  static int last_reported(const std::string& log) {
    const auto at = log.rfind("saved ");
    const auto step = at == std::string::npos ? at : log.find("step-", at);
    // The line is complete only with its end.
    if (step == std::string::npos || log.find('\n', step) == std::string::npos) return -1;
    return std::stoi(log.substr(step + 5, 8));
  }

  TempDir dir;
  std::string recipe;
};

TEST_F(KilledRun, LosesNoReportedCheckpointAndEndsWithTheSameWeights) {
  recipe = write_small_recipe(dir, kSmallSynth, kSmallSynthTest);
  write_file(recipe,
             read_text(recipe) + "[checkpoint]\nevery = [\"1 epoch\", \"2 steps\"]\nkeep = 2\n");
  std::string text = read_text(recipe);
  text.replace(
      text.find("epochs = 2"), 10,
      "epochs = 6\nema = 0.9\nlookahead = [0.5, 3]\neval_every = [\"1 epoch\", \"7 steps\"]");
  write_file(recipe, text);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(exit_code_of(start_saturate(arguments("whole", 2), dir / "whole.log")), 0)
      << read_text(dir / "whole.log");
  const double whole_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string last = "/checkpoints/step-00000060.safetensors";
  const std::string expected = checksum((dir / "whole") + last);

  RandomStream random(7, 0, 0, RandomUse::kAugment);
  const int wanted = wanted_kills();
  int kills = 0, inside_writing = 0;
  for (int trial = 0; (kills < wanted || inside_writing < wanted / 4) && trial < 3 * wanted;
       ++trial) {
    const std::string name = "run" + std::to_string(trial), folder = dir / name;
    const std::string log = dir / (name + ".log");
    const pid_t child = start_saturate(arguments(name, 1), log);
    // Waits for a checkpoint, then lets the run continue for a while.
    ASSERT_TRUE(wait_until([&] { return last_reported(read_text(log)) > 0; })) << read_text(log);
    std::this_thread::sleep_for(
        std::chrono::duration<double>(random.uniform(0, std::min(whole_s / 3, 0.5))));
    if (trial % 2 == 0)
      wait_until([&] { return is_writing(folder + "/checkpoints") || kill(child, 0) != 0; }, 1);
    kill(child, SIGKILL);
    if (exit_code_of(child) != 128 + SIGKILL) continue;  // it ended before
    ++kills;
    inside_writing += is_writing(folder + "/checkpoints");

    EXPECT_GE(newest_step(folder + "/checkpoints"), last_reported(read_text(log)));
    const std::string resumed_log = log + "2";
    auto resumed = arguments(name, 2 + trial % 3);
    resumed.insert(resumed.end(), {"--resume", folder});
    ASSERT_EQ(exit_code_of(start_saturate(resumed, resumed_log)), 0) << read_text(resumed_log);
    EXPECT_EQ(read_text(resumed_log).find("skipping a broken"), std::string::npos);
    EXPECT_EQ(checksum(folder + last), expected) << read_text(log);
    expect_same_losses(folder, dir / "whole", "eval");
    EXPECT_FALSE(is_writing(folder + "/checkpoints")) << "partial files are removed";
    std::filesystem::remove_all(folder);
  }
  EXPECT_GE(kills, wanted);
  EXPECT_GE(inside_writing, wanted / 4);
}

}  // namespace
}  // namespace saturate::testing
