// A run small enough for a test, which prints nothing.
#pragma once

#include <string>

#include "saturate/trainer.h"

namespace saturate::testing {

// Two epochs of four steps of an MLP. `more`: further lines of TOML, in other sections than [data],
// [model] and [train].
inline Recipe small_recipe(const std::string& more = "") {
  return parse_recipe(
      "[data]\nsource = \"synth:size=16,count=100\"\nthreads = 1\n[model]\nname = \"mlp\"\n"
      "[train]\nbatch = 25\nepochs = 2\nthreads = 1\ndevice = \"cpu\"\n" +
          more,
      "test");
}

inline TrainerOptions saving_options(const std::string& out) {
  TrainerOptions options;
  options.out = out;
  options.progress = Progress::Style::kSilent;
  return options;
}

inline TrainerOptions quiet_options(const std::string& out) {
  TrainerOptions options = saving_options(out);
  options.save = false;
  return options;
}

}  // namespace saturate::testing
