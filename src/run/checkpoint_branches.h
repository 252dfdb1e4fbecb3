// The branches of a run that resumed from older checkpoints: branches.json of CheckpointStore.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "saturate/data/env.h"

namespace saturate {

// Branch 0 begins with the run, each later one where the run left an older one. The last one is the
// run's present branch.
class Branches {
 public:
  static constexpr const char* kFile = "branches.json";

  // Those of a folder of checkpoints; only branch 0 without a branches.json. Fails with kRun if
  // that is damaged.
  static Branches read(Env& env, const std::string& folder);
  TextFile file(const std::string& folder) const;

  int current() const { return int(forks_.size()); }
  // Whether step `step` of `branch` is on the run's path to its present branch.
  bool on_path(int branch, int64_t step) const;
  // Leaves `branch` after its step `step`; -1: before its first.
  void leave(int branch, int64_t step) { forks_.push_back({known(branch), step}); }

 private:
  struct Fork {
    int branch;
    int64_t step;
  };

  // Branch 0 for a number of another folder's branches, as in a file that was copied here.
  int known(int branch) const { return branch < 0 || branch > current() ? 0 : branch; }

  std::vector<Fork> forks_;  // where branches 1, 2, ... begin
};

}  // namespace saturate
