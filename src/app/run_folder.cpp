#include "app/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "base/text.h"
#include "base/url_text.h"
#include "record/metrics.h"
#include "reduce/heartbeat.h"
#include "run/checkpoint.h"
#include "run/made_folder.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char* kResumeAuto = "auto";
constexpr const char* kRunsFolder = "runs";

std::string numbered(const std::string& stem, int number) {
  return fmt::format("{}/{}-{}", kRunsFolder, stem, number);
}

// The name part of a recipe's file, a folder of images, or SCHEME:PATH.
std::string stem_of(const std::string& recipe) {
  if (recipe.starts_with("synth:")) return "synth";
  const std::string named = url_name(recipe);  // a signature in a query is secret
  std::filesystem::path path = named.substr(named.find(':') + 1);
  std::error_code ignored;
  if (path.stem() == "" || path.stem() == "." || path.stem() == "..")  // as in "photos/" and "."
    path = std::filesystem::canonical(path, ignored);
  const std::string stem = path.stem().string();
  return stem.substr(0, stem.find(','));
}

// The N of all runs/STEM-N, highest first.
std::vector<int> numbers_of(Env& env, const std::string& stem) {
  std::vector<int> numbers;
  if (!env.is_directory(kRunsFolder)) return numbers;
  for (const auto& entry : env.list(kRunsFolder)) {
    if (!entry.name.starts_with(stem + "-")) continue;
    const auto number = parsed_number<int>(entry.name.substr(stem.size() + 1));
    if (number.value_or(0) > 0) numbers.push_back(*number);
  }
  std::ranges::sort(numbers, std::greater());
  return numbers;
}

// Made at once: of several runs that start together each gets its own.
RunFolder new_run_folder(Env& env, const std::string& recipe) {
  RunFolder found;
  if (!env.is_directory(kRunsFolder)) found.made.emplace_back(kRunsFolder);
  env.make_directories(kRunsFolder);
  const std::string stem = stem_of(recipe);
  const auto numbers = numbers_of(env, stem);
  int number = numbers.empty() ? 1 : numbers.front() + 1;
  std::error_code failed;  // reported when the folder is used
  while (!std::filesystem::create_directory(numbered(stem, number), failed) && !failed) ++number;
  found.out = numbered(stem, number);
  if (!failed) found.made.insert(found.made.begin(), found.out);
  return found;
}

// Whether `resume` is a run in `out`, or a checkpoint of it, however the two are spelled.
bool is_same_folder(Env& env, const std::string& out, const std::string& resume) {
  std::error_code none;
  return !resume.empty() && std::filesystem::equivalent(out, run_folder_of(env, resume), none);
}

bool has_checkpoint(Env& env, const std::string& folder) {
  const std::string inner = folder + "/checkpoints";
  return env.is_directory(inner) && !list_checkpoints(env, inner).empty();
}

// Start time of a process of this machine, in clock ticks since boot: proc(5)'s starttime. 0:
// unknown.
uint64_t start_ticks(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string stat, field;
  std::getline(file, stat);
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));  // its name
  for (int number = 3; number < 22; ++number) fields >> field;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

// The torchrun process that started this one, which lives through all restarts. Empty without
// torchrun.
std::string torchrun_process() {
  if (!std::getenv("TORCHELASTIC_RUN_ID") || std::getenv("SATURATE_LAUNCHED")) return {};
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("{} {} {}", host.data(), getppid(), start_ticks(getppid()));
}

bool was_started_by(Env& env, const std::string& folder, const std::string& launcher) {
  const std::string path = folder + kLauncherNote;
  return env.exists(path) && text_of_file(env, path) == launcher;
}

// The folder of this run before it failed, if a launcher restarts it.
std::optional<std::string> folder_before(Env& env, const FolderRequest& request) {
  if (const char* const folder = std::getenv("SATURATE_RESTART_FOLDER")) return folder;
  const std::string launcher = torchrun_process();
  if (launcher.empty()) return std::nullopt;
  std::vector<std::string> candidates;
  if (!request.out.empty())
    candidates.push_back(request.out);
  else if (!request.resume.empty() && request.resume != kResumeAuto)
    candidates.push_back(run_folder_of(env, request.resume));
  else
    for (int number : numbers_of(env, stem_of(request.recipe)))
      candidates.push_back(numbered(stem_of(request.recipe), number));
  for (const auto& folder : candidates)
    if (was_started_by(env, folder, launcher)) return folder;
  return std::nullopt;
}

// Whether a run in the folder has ended, and so had saved; not if it ended before its first step.
bool has_ended(Env& env, const std::string& folder) {
  const std::string path = folder + "/metrics.jsonl";
  if (!env.exists(path)) return false;
  LineReader lines(env, path);
  for (std::string line; lines.next(line);)
    if (const auto record = from_json_line(line);
        record && record->kind == "end" && record->step > 0)
      return true;
  return false;
}

// Fails if a run that starts in `out` would replace a recipe of the user's.
void require_no_recipe(Env& env, const std::string& out) {
  if (env.exists(out + "/recipe.toml"))
    fail(ErrorKind::kUsage, "the folder holds a recipe.toml, which the run would replace", out,
         "Choose another --out");
}

void require_not_ended(Env& env, const std::string& folder) {
  if (has_ended(env, folder))
    fail(ErrorKind::kUsage, "the run has ended or was stopped, and its checkpoints are gone",
         folder, "Give another folder by --out, or remove this one to train again");
}

RunFolder resume_or_start(Env& env, const std::string& folder) {
  if (has_checkpoint(env, folder)) return {folder, folder};
  require_not_ended(env, folder);
  // A run makes the folder of its checkpoints before it writes its recipe.
  if (!env.is_directory(folder + "/checkpoints") && !env.exists(folder + "/metrics.jsonl"))
    require_no_recipe(env, folder);
  return {folder, std::nullopt};
}

RunFolder automatic_folder(Env& env, const FolderRequest& request) {
  if (!request.out.empty()) return resume_or_start(env, request.out);
  const std::string stem = stem_of(request.recipe);
  const auto numbers = numbers_of(env, stem);
  return resume_or_start(env, numbered(stem, numbers.empty() ? 1 : numbers.front()));
}

void require_exists(Env& env, const std::string& resume) {
  if (!env.exists(resume))
    fail(ErrorKind::kRun, "no such run or checkpoint", resume, "Check the path");
}

void require_some_checkpoint(Env& env, const std::string& path) {
  if (!env.is_directory(path) || has_checkpoint(env, path) || !list_checkpoints(env, path).empty())
    return;
  require_not_ended(env, path);
  fail(ErrorKind::kRun, "the folder holds no checkpoint", path,
       "Restart the run with --resume=auto --out " + path);
}

RunFolder asked_folder(Env& env, const FolderRequest& request) {
  const auto& [recipe, out, resume] = request;
  if (resume == kResumeAuto) return automatic_folder(env, request);
  if (!out.empty() && !is_same_folder(env, out, resume)) {
    if (env.exists(out + "/metrics.jsonl"))
      fail(ErrorKind::kUsage, "the folder holds a run already", out,
           "Resume or restart it with --resume=auto, or choose another --out");
    require_no_recipe(env, out);
  }
  if (resume.empty()) return out.empty() ? new_run_folder(env, recipe) : RunFolder{out};
  require_some_checkpoint(env, resume);
  const std::string folder = out.empty() ? run_folder_of(env, resume) : out;
  if (folder.empty()) {
    require_exists(env, resume);
    fail(ErrorKind::kUsage, "the checkpoint is in no run's folder", resume,
         "Name a folder for the run with --out FOLDER");
  }
  return {folder, resume};
}

// The last part of a folder's absolute path.
std::string folder_name(const std::filesystem::path& folder) {
  return std::filesystem::absolute(folder / ".")
      .lexically_normal()
      .parent_path()
      .filename()
      .string();
}

}  // namespace

std::string recipe_path(Env& env, const FolderRequest& request) {
  if (!request.recipe.empty()) return request.recipe;
  const bool automatic = request.resume == kResumeAuto;
  const bool resumes_path = !automatic && !request.resume.empty();
  const std::string folder = resumes_path ? run_folder_of(env, request.resume) : request.out;
  const std::string path = folder + "/recipe.toml";
  // A restarted run may have removed the checkpoint that it began with.
  if (resumes_path && (folder.empty() || !env.exists(path))) require_exists(env, request.resume);
  if (resumes_path && folder.empty()) return "";
  const bool is_run = !automatic || env.exists(path) || has_checkpoint(env, folder);
  if (request.resume.empty() || folder.empty() || !is_run)
    fail(ErrorKind::kUsage, "no recipe given",
         automatic && !folder.empty() ? folder : "saturate train",
         "Name one, as in: saturate train recipes/demo.toml");
  return path;
}

std::string run_folder_of(Env& env, const std::string& path) {
  const bool is_folder = env.is_directory(path);
  const bool has_files = is_folder && !list_checkpoints(env, path).empty();
  if (is_folder && (!has_files || has_checkpoint(env, path))) return path;
  const std::filesystem::path given = path;
  std::filesystem::path inner = is_folder ? given : given.parent_path();
  if (folder_name(inner) != "checkpoints") {  // unless it is a link to one
    std::error_code missing;
    const auto real = std::filesystem::canonical(given, missing);
    inner = is_folder ? real : real.parent_path();
    if (missing || inner.filename() != "checkpoints") return "";
  }
  // A relative path may begin inside the run folder.
  const auto folder = (inner / "..").lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).string();
}

std::string resumed_path(const FolderRequest& request) {
  return request.resume == kResumeAuto ? request.out : request.resume;
}

RunFolder choose_run_folder(Env& env, const FolderRequest& request) {
  const auto before = folder_before(env, request);
  if (!before) return asked_folder(env, request);
  RunFolder chosen = resume_or_start(env, *before);
  if (!chosen.resume && !request.resume.empty() && request.resume != kResumeAuto)
    chosen.resume = request.resume;
  return chosen;
}

void note_run_folder(Env& env, const std::string& folder) {
  report_folder(folder);
  if (const std::string launcher = torchrun_process(); !launcher.empty())
    write_atomically(env, folder + kLauncherNote, launcher);
}

}  // namespace saturate
