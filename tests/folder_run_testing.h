// Whole runs of one recipe in a temporary folder, in this process.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "run/checkpoint.h"
#include "saturate/data/error.h"
#include "saturate/trainer.h"
#include "tests/data_testing.h"
#include "tests/trainer_testing.h"

namespace saturate::testing {

class FolderRun : public ::testing::Test {
 protected:
  using Settings = std::vector<std::string>;

  // With the changes of --set.
  virtual Recipe recipe(const Settings& settings) const = 0;

  TrainerOptions options(const std::string& name) const { return saving_options(dir_ / name); }
  TrainResult train(const std::string& name, const Settings& settings = {}) const {
    return Trainer(Env::posix(), recipe(settings), options(name)).run();
  }
  Checkpoint last(const std::string& name) const {
    return find_checkpoint(Env::posix(), dir_ / name, [](const std::string&) {});
  }
  void expect_same_model(const std::string& found, const std::string& expected,
                         double tolerance) const {
    const Checkpoint a = last(found), b = last(expected);
    ASSERT_EQ(a.model.size(), b.model.size());
    for (size_t i = 0; i < a.model.size(); ++i)
      EXPECT_LE((a.model[i].tensor - b.model[i].tensor).abs().max().item<double>(), tolerance)
          << a.model[i].name;
  }
  void expect_same_after_resuming() const {
    train("whole");
    TrainerOptions first = options("part");
    int polls = 0;
    first.should_stop = [&] { return ++polls > 25; };
    EXPECT_EQ(Trainer(Env::posix(), recipe({}), first).run().end, RunEnd::kInterrupted);
    TrainerOptions rest = options("part");
    rest.resume = rest.out;
    Trainer(Env::posix(), recipe({}), rest).run();
    expect_same_model("part", "whole", 0);
  }
  // Before the first step.
  void expect_refused(const Settings& settings, const std::string& problem,
                      const std::string& remedy = "") const {
    const Error error =
        error_of([&] { Trainer(Env::posix(), recipe(settings), options("refused")); });
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
    EXPECT_NE(error.remedy().find(remedy), std::string::npos) << error.what();
  }

  TempDir dir_;
};

}  // namespace saturate::testing
