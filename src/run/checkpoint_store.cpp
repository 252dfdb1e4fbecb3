// The checkpoints in a run's folder, and saving them in the background.
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/spans.h"
#include "run/checkpoint.h"
#include "run/staged_copy.h"
#include "saturate/data/error.h"
#include "saturate/safetensors.h"

namespace saturate {
namespace {

using nlohmann::json;

constexpr const char* kStepPrefix = "step-";
constexpr const char* kStepSuffix = ".safetensors";

// The branches of a run that resumed from older checkpoints, as in branches.json. Branch 0 begins
// with the run, each later one where the run left an older one. The last one is the run's present
// branch.
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

Branches Branches::read(Env& env, const std::string& folder) {
  Branches found;
  const std::string path = folder + "/" + kFile;
  if (!env.exists(path)) return found;
  const auto bytes = read_file(env, path);
  try {
    const json record = json::parse(bytes.begin(), bytes.end());
    if (!record.at("branches").is_array()) throw std::invalid_argument("branches");
    for (const json& fork : record.at("branches")) {
      const json &from = fork.at("from"), &step = fork.at("step");
      if (!from.is_number_integer() || !step.is_number_integer())
        throw std::invalid_argument("fork");
      const int64_t branch = from, last = step;
      if (branch < 0 || branch > found.current() || last < -1) throw std::out_of_range("fork");
      found.leave(int(branch), last);
    }
  } catch (const std::exception&) {
    fail(ErrorKind::kRun, "the record of the run's branches is damaged", path,
         "Give the path of a checkpoint, or delete this file to use the newest checkpoint");
  }
  return found;
}

TextFile Branches::file(const std::string& folder) const {
  json forks = json::array();
  for (const Fork& fork : forks_) forks.push_back({{"from", fork.branch}, {"step", fork.step}});
  return {folder + "/" + kFile, json{{"branches", forks}}.dump() + "\n"};
}

bool Branches::on_path(int branch, int64_t step) const {
  branch = known(branch);
  for (int at = current(); at != branch; at = forks_[size_t(at - 1)].branch) {
    if (at < branch) return false;
    if (step > forks_[size_t(at - 1)].step) return false;
  }
  return true;
}

// The writing thread wakes up after each block. Scheduled as a batch job it does not take the core
// of a training thread at that moment, for which the whole team would wait. Its share of the cores
// is a full one: with a lower priority, saves on a busy machine end too late for the next.
void schedule_as_batch() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);
}

std::string file_of(const std::string& folder, int64_t step) {
  return fmt::format("{}/{}{:08}{}", folder, kStepPrefix, step, kStepSuffix);
}

// Step numbers are zero-padded, and a longer one is larger.
bool is_newer(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() > b.size() : a > b;
}

// Empty if it cannot be read.
std::optional<Checkpoint> try_state(Env& env, const std::string& path) {
  try {
    return read_checkpoint_state(env, path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The branch of an unreadable file is unknown: it counts, and the caller that reads it skips it.
bool is_on_path(Env& env, const Branches& branches, const std::string& path) {
  const auto state = try_state(env, path);
  return !state || branches.on_path(state->branch, state->position.step);
}

// All of a folder, newest first.
std::vector<std::string> files_of(Env& env, const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : env.list(folder))
    if (!entry.is_directory && entry.name.starts_with(kStepPrefix) &&
        entry.name.ends_with(kStepSuffix))
      paths.push_back(folder + "/" + entry.name);
  std::sort(paths.begin(), paths.end(), is_newer);
  return paths;
}

// The checkpoint at `path`, or those of a run folder or checkpoints folder, newest first.
std::vector<std::string> candidates_at(Env& env, const std::string& path) {
  if (!env.exists(path)) fail(ErrorKind::kRun, "no such run or checkpoint", path, "Check the path");
  if (!env.is_directory(path)) return {path};
  const std::string inner = path + "/checkpoints";
  const std::string folder = env.is_directory(inner) ? inner : path;
  std::vector<std::string> candidates = list_checkpoints(env, folder);
  if (candidates.empty() && !files_of(env, folder).empty())
    fail(ErrorKind::kRun, "the run's current branch has no checkpoint yet", path,
         "Give the path of an older checkpoint in the folder");
  if (candidates.empty())
    fail(ErrorKind::kRun, "the folder holds no checkpoint", path,
         "Give the folder of a run that has saved one");
  return candidates;
}

}  // namespace

CheckpointStore::CheckpointStore(Env& env, std::string folder, const CheckpointOptions& options,
                                 bool writes)
    : env_(env), folder_(std::move(folder)), options_(options) {
  if (!writes) return;
  env_.make_directories(folder_);
  for (const auto& entry : env_.list(folder_))
    if ((entry.name.starts_with(kStepPrefix) || entry.name.starts_with(Branches::kFile)) &&
        entry.name.find(".tmp-") != std::string::npos)
      env_.remove(folder_ + "/" + entry.name);
}

std::string CheckpointStore::path_of(int64_t step) const {
  return file_of(folder_, step);
}

bool CheckpointStore::holds(const std::string& path) const {
  const std::string own = path_of(read_checkpoint_state(env_, path).position.step);
  if (own == path) return true;
  return env_.exists(own) && try_state(env_, own) &&
         read_safetensors_metadata(env_, own) == read_safetensors_metadata(env_, path);
}

std::vector<std::string> CheckpointStore::begin(const std::string& from,
                                                std::vector<TextFile>* files) {
  const Branches now = Branches::read(env_, folder_);
  branch_ = now.current();
  std::optional<Checkpoint> start;
  if (!from.empty() && holds(from)) start = read_checkpoint_state(env_, from);
  Branches next = now;
  const int64_t step = start ? start->position.step : -1;
  next.leave(start ? start->branch : 0, step);
  std::vector<std::string> left = list_checkpoints(env_, folder_);
  std::erase_if(left, [&](const std::string& path) {
    return !is_newer(path, path_of(step)) && is_on_path(env_, next, path);
  });
  const bool stays = !start || now.on_path(start->branch, step);
  if (left.empty() && stays) return left;
  TextFile record = next.file(folder_);
  if (files)
    files->insert(files->begin(), std::move(record));
  else
    write_atomically(env_, record.path, record.text);
  branch_ = next.current();
  return left;
}

std::string CheckpointStore::save(Checkpoint checkpoint) {
  checkpoint.branch = branch_;
  const std::string path = path_of(checkpoint.position.step);
  write_checkpoint(env_, path, checkpoint);
  try {
    remove_old(path);
  } catch (const Error&) {
    // The new one is safe; the next save tries again.
  }
  return path;
}

// A broken file does not count towards `keep`. Only headers are read, which hold the file's length
// too: a truncated file is found, a changed byte of a tensor is not.
// The best one is known by its own state: no file has the step of a best one whose save failed.
void CheckpointStore::remove_old(const std::string& saved) {
  int good = 0;
  bool seeks_best = options_.keep_best;
  for (const std::string& path : list_checkpoints(env_, folder_)) {
    const bool is_new = good < options_.keep;
    const auto state = is_new || seeks_best ? try_state(env_, path) : std::nullopt;
    bool wanted = is_new || path == saved;
    if (state) ++good;
    if (seeks_best && state && state->best.best_step == state->position.step) {
      wanted = true;
      seeks_best = false;
    }
    if (!wanted) env_.remove(path);
  }
}

Checkpoint CheckpointStore::read(int64_t step) const {
  const std::string path = path_of(step);
  if (!env_.exists(path)) fail(ErrorKind::kRun, "there is no such checkpoint", path, "Use another");
  Checkpoint found = read_checkpoint(env_, path);
  if (found.position.step != step ||
      !Branches::read(env_, folder_).on_path(found.branch, found.position.step))
    fail(ErrorKind::kRun, "the checkpoint is not of this branch of the run", path, "Use another");
  return found;
}

std::string CheckpointStore::find_step(const std::string& from, int64_t step) const {
  const Checkpoint start = read_checkpoint_state(env_, from);
  const std::string elsewhere = std::filesystem::path(from).parent_path().string();
  const std::string folder = holds(from) ? folder_ : elsewhere.empty() ? "." : elsewhere;
  Branches branches = Branches::read(env_, folder);
  branches.leave(start.branch, start.position.step);
  const std::string path = file_of(folder, step);
  const auto state = env_.exists(path) ? try_state(env_, path) : std::nullopt;
  const bool is_sound = state && state->position.step == step;
  return is_sound && branches.on_path(state->branch, step) ? path : "";
}

std::vector<std::string> list_checkpoints(Env& env, const std::string& folder) {
  auto paths = files_of(env, folder);
  const Branches branches = Branches::read(env, folder);
  if (branches.current() > 0)
    std::erase_if(paths, [&](const auto& path) { return !is_on_path(env, branches, path); });
  return paths;
}

std::string best_checkpoint_path(Env& env, const std::string& path) {
  if (env.exists(path) && !env.is_directory(path))
    fail(ErrorKind::kUsage, "--best chooses among a run's checkpoints, and this is one file", path,
         "Give the run's folder, or remove --best");
  for (const std::string& candidate : candidates_at(env, path)) {
    const auto state = try_state(env, candidate);
    if (state && state->best.best_step == state->position.step) return candidate;
  }
  fail(ErrorKind::kRun, "the run holds no checkpoint of its best weights", path,
       "Remove --best; later runs keep one with checkpoint.keep_best=true and an evaluation");
}

Checkpoint find_checkpoint(Env& env, const std::string& path,
                           const std::function<void(const std::string&)>& warn,
                           std::string* found_path) {
  const std::vector<std::string> candidates = candidates_at(env, path);
  for (const auto& candidate : candidates) {
    try {
      Checkpoint checkpoint = read_checkpoint(env, candidate);
      if (found_path) *found_path = candidate;
      return checkpoint;
    } catch (const Error& error) {
      if (candidate == candidates.back()) throw;
      warn(std::string("skipping a broken checkpoint: ") + error.what());
    }
  }
  return {};  // not reached: the last candidate returns or throws
}

CheckpointWriter::CheckpointWriter(Env& env, CheckpointStore& store,
                                   std::shared_ptr<StagedCopy> staged)
    : env_(env), store_(store), staged_(std::move(staged)) {}

CheckpointWriter::~CheckpointWriter() {
  wait();
}

bool CheckpointWriter::busy(std::chrono::milliseconds limit) const {
  return future_.valid() && future_.wait_for(limit) != std::future_status::ready;
}

void CheckpointWriter::start(Checkpoint checkpoint) {
  for (const auto& [prefix, tensors] : kTensorGroups) {
    copy_tensors(checkpoint.*tensors, snapshot_.*tensors, staged_.get());
    checkpoint.*tensors = std::move(snapshot_.*tensors);
  }
  snapshot_ = std::move(checkpoint);
  if (staged_) staged_->record();
  restart();
}

void CheckpointWriter::restart() {
  try {
    future_ = std::async(std::launch::async, [this] {
      schedule_as_batch();
      pthread_setname_np(pthread_self(), "checkpoint");
      return save();
    });
  } catch (const std::system_error&) {  // the system starts no more threads: the caller's writes
    std::promise<Outcome> promise;
    future_ = promise.get_future();
    promise.set_value(save());
  }
}

CheckpointWriter::Outcome CheckpointWriter::save() {
  const Span span("write checkpoint");
  Outcome outcome;
  outcome.step = snapshot_.position.step;
  const int64_t begin = env_.now_ns();
  try {
    if (staged_) staged_->wait();
    outcome.path = store_.save(snapshot_);
  } catch (...) {
    outcome.error = std::current_exception();
  }
  outcome.seconds = double(env_.now_ns() - begin) * 1e-9;
  return outcome;
}

std::optional<CheckpointWriter::Outcome> CheckpointWriter::poll() {
  return busy() ? std::nullopt : wait();
}

std::optional<CheckpointWriter::Outcome> CheckpointWriter::wait() {
  if (!future_.valid()) return std::nullopt;
  return future_.get();
}

}  // namespace saturate
