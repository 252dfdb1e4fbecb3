// A small run to be diagnosed, over an Env that can be made slow.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "advise/diagnose.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"

namespace saturate::testing {

inline constexpr int64_t kMillisecond = 1'000'000;

class Diagnosing : public ::testing::Test {
 protected:
  Recipe recipe_with(const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"augment.size=16",  "model.name=mlp",     "train.batch=8",
                                    "train.threads=1",  "train.device=cpu",   "data.threads=2",
                                    "augment.crop=pad", "checkpoint.every=0", "data.prefetch=2"};
    all.insert(all.end(), settings.begin(), settings.end());
    return parse_recipe("", "test", all);
  }

  std::string photographs(int count, int width, int height) {
    for (int i = 0; i < count; ++i)
      write_file(dir / ("data/" + std::to_string(i % 2) + "/" + std::to_string(i) + ".jpg"),
                 noise_jpeg(width, height, uint64_t(i)));
    return "data.source=folder:" + (dir / "data");
  }

  DiagnoseOptions options(double seconds, int rounds = 4) {
    DiagnoseOptions made;
    made.folder = dir / "runs";
    made.seconds = seconds;
    made.rounds = rounds;
    made.progress = Progress::Style::kSilent;
    made.wanted = wanted;
    return made;
  }

  Diagnosis diagnose(const std::vector<std::string>& settings, double seconds = 4, int rounds = 4) {
    found = measure(env, recipe_with(settings), options(seconds, rounds));
    EXPECT_TRUE(found.has_value());
    if (!found) return {};
    const Diagnosis diagnosis = classify(*found);
    for (const auto* list : {&diagnosis.fixes, &diagnosis.uncertain, &diagnosis.idle})
      for (const WhatIf& what_if : *list)
        report += what_if.text() + " " + std::to_string(what_if.gain->ratio) + " [" +
                  std::to_string(what_if.gain->low) + ", " + std::to_string(what_if.gain->high) +
                  "]\n";
    for (const WhatIf& what_if : diagnosis.skipped)
      report += what_if.text() + ": " + what_if.skipped + "\n";
    report += diagnosis.summary;
    return diagnosis;
  }

  TempDir dir;
  FaultEnv env{Env::posix()};
  std::function<bool(const WhatIf&)> wanted = [](const WhatIf&) { return true; };
  std::optional<Measurements> found;
  std::string report;
};

}  // namespace saturate::testing
