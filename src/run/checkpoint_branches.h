// The branches of a run that went back, as CheckpointStore keeps them in branches.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// Branch 0 begins with the run, every other one where the run left an older one. The last is the
// one that the run is on.
class Branches {
 public:
  static constexpr const char* kFile = "branches.json";

  // Those of a folder of checkpoints; branch 0 alone where it has no branches.json. Fails with kRun
  // where that is damaged.
  static Branches read(Env& env, const std::string& folder);
  void write(Env& env, const std::string& folder) const;

  int current() const { return int(forks_.size()); }
  // Whether the run has come by step `step` of `branch` on its way to where it is.
  bool on_way(int branch, int64_t step) const;
  // Leaves `branch` behind `step` of it; -1: before its beginning.
  void leave(int branch, int64_t step) { forks_.push_back({known(branch), step}); }

 private:
  struct Fork {
    int branch;
    int64_t step;
  };

  // A file that was copied here may be of another folder's branches.
  int known(int branch) const { return branch < 0 || branch > current() ? 0 : branch; }

  std::vector<Fork> forks_;  // where branches 1, 2, ... begin
};

}  // namespace saturate
