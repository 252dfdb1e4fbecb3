// Chooses a run's folder and its starting point.
#pragma once

#include <optional>
#include <string>

#include "saturate/data/env.h"

namespace saturate {

struct FolderRequest {
  std::string recipe, out, resume;  // as on the command line; empty: not given
};

struct RunFolder {
  std::string out;
  std::optional<std::string> resume;  // a folder or a checkpoint; empty: from the first step
};

// The given recipe, or recipe.toml of the run to resume, which may be lost if the run has a
// checkpoint. Fails with kUsage if there is neither.
std::string recipe_path(Env& env, const FolderRequest& request);

// The run folder or checkpoint that a request without a recipe resumes.
std::string resumed_path(const FolderRequest& request);

// The run's folder, given that, its checkpoints folder, or a checkpoint.
std::string run_folder_of(Env& env, const std::string& path);

// The folder for `request`, which may not exist yet:
//   --resume PATH   resumes there, in its run's folder or in --out
//   --resume auto   resumes if --out (else the newest runs/RECIPE-N) has a checkpoint; restarts a
//                   run that was killed before it had one; starts if there is no run
//   neither         starts, in --out or in a new runs/RECIPE-N
// A run restarted by `saturate launch` or torchrun, after one of its processes has failed, stays in
// its original folder, and resumes from its last checkpoint, if any. Fails with kUsage if a new run
// would overwrite another, with kRun if there is nothing to resume.
RunFolder choose_run_folder(Env& env, const FolderRequest& request);

// Reports the folder to `saturate launch`, or records torchrun's process in it, for a restart.
void note_run_folder(Env& env, const std::string& folder);

}  // namespace saturate
