// Chooses a run's folder and its starting point.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

struct FolderRequest {
  std::string recipe, out, resume;  // as on the command line; empty: not given
};

struct RunFolder {
  std::string out;
  // A folder or a checkpoint; empty: from the first step.
  std::optional<std::string> resume = std::nullopt;
  std::vector<std::filesystem::path> made = {};  // folders made for it, as MadeFolder's
};

// The given recipe, or recipe.toml of the run to resume, which may be lost if the run has a
// checkpoint. Empty for a checkpoint in no run's folder. Fails with kUsage if there is none of
// these.
std::string recipe_path(Env& env, const FolderRequest& request);

// The run folder or checkpoint that a request without a recipe resumes.
std::string resumed_path(const FolderRequest& request);

// The run's folder, given that, its folder of checkpoints, or a checkpoint. Empty for checkpoints
// whose folder does not have the name "checkpoints": they were moved or copied.
std::string run_folder_of(Env& env, const std::string& path);

// The folder for `request`, which may not exist yet, except that a new runs/RECIPE-N is made:
//   --resume PATH   resumes there, in its run's folder or in --out
//   --resume auto   resumes if --out (else the newest runs/RECIPE-N) has a checkpoint; restarts a
//                   run that was killed before it had one; starts if there is no run
//   neither         starts, in --out or in a new runs/RECIPE-N
// A run restarted by `saturate launch` or torchrun, after one of its processes has failed, stays in
// its original folder, and resumes from its last checkpoint, if any. Fails with kUsage if a new run
// would overwrite another or a recipe of the user's, if a run that had ended has lost its
// checkpoints, or if PATH is in no run's folder and there is no --out; with kRun if there is
// nothing to resume.
RunFolder choose_run_folder(Env& env, const FolderRequest& request);

// Reports the folder to `saturate launch`, or records torchrun's process in it, for a restart.
void note_run_folder(Env& env, const std::string& folder);

}  // namespace saturate
