// Which folder a run is in, and where in it it begins.
#pragma once

#include <optional>
#include <string>

#include "saturate/env.h"

namespace saturate {

struct FolderRequest {
  std::string recipe, out, resume;  // as on the command line; empty: not given
};

struct RunFolder {
  std::string out;
  std::optional<std::string> resume;  // a folder or a checkpoint; empty: from the first step
};

// The recipe that was given, or that of the run to go on with. Fails with kUsage where there is
// neither.
std::string recipe_path(Env& env, const FolderRequest& request);

// What `request` comes to, with the folder made:
//   --resume PATH   goes on from there, in its run's folder or in --out
//   --resume auto   goes on where --out (else the newest runs/RECIPE-N) has a checkpoint; starts
//                   again where a run was killed before it had one; starts where there is no run
//   neither         starts, in --out or in a new runs/RECIPE-N
// A run that `saturate launch` or torchrun starts again, after one of its processes has failed, is
// in the folder that it chose at first, and goes on from its last checkpoint, if it has one. Fails
// with kUsage where a new run would write over another, with kRun where there is nothing to go on
// from.
RunFolder choose_run_folder(Env& env, const FolderRequest& request);

// By which a restart finds the folder: tells `saturate launch`, or notes torchrun's process in it.
void note_run_folder(Env& env, const std::string& folder);

}  // namespace saturate
