// Measures a run of several processes: they make the same steps, so each one's own work says who
// waits for whom.
#include <ATen/ops/empty.h>

#include <memory>

#include "advise/measured_recipe.h"
#include "saturate/diagnose.h"
#include "saturate/env.h"
#include "saturate/group.h"
#include "saturate/thread_pool.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

constexpr int kSettling = 10;  // steps that are not measured

// The times of all ranks, as this one sees its own.
std::vector<PhaseTimes> gather(Group& group, const PhaseTimes& own) {
  const at::Tensor row = at::empty({kPhaseCount}, at::kDouble);
  std::copy(own.seconds.begin(), own.seconds.end(), row.mutable_data_ptr<double>());
  const at::Tensor rows = group.gather(row).contiguous();
  std::vector<PhaseTimes> ranks(size_t(group.world()));
  const double* next = rows.const_data_ptr<double>();
  for (PhaseTimes& rank : ranks)
    for (double& seconds : rank.seconds) seconds = *next++;
  return ranks;
}

// A run that is measured between two of its own steps.
class MeasuredRun {
 public:
  MeasuredRun(Env& env, const Recipe& recipe, const std::shared_ptr<Group>& group,
              const DiagnoseOptions& asked)
      : env_(env), asked_(asked), is_first_(group->rank() == 0) {
    TrainerOptions options;
    options.group = group;
    options.out = asked.folder;
    options.progress = Progress::Style::kSilent;
    options.should_stop = [this] { return stops(); };
    trainer_ = std::make_unique<Trainer>(env, measured_recipe(recipe), options);
    is_built_ = true;
  }

  // False where should_stop gave up before anything was measured.
  bool run() {
    trainer_->run();
    return last_.steps > first_.steps && first_.steps > 0;
  }
  const Recipe& recipe() const { return trainer_->recipe(); }
  double steps() const { return double(last_.steps - first_.steps); }
  double samples() const { return double(last_.samples - first_.samples); }
  PhaseTimes phases() const { return last_.phases - first_.phases; }
  double cpu_s() const {
    return last_.cores_used * last_.wall_s - first_.cores_used * first_.wall_s;
  }

 private:
  // Asked once a step by every rank, at the same step; what one of them answers ends all.
  bool stops() {
    if (!is_built_) return asked_.should_stop();
    if (asked_.should_stop()) return true;
    if (++polls_ <= kSettling) return false;
    last_ = trainer_->so_far();
    if (polls_ == kSettling + 1) {
      first_ = last_;
      begin_ns_ = env_.now_ns();
    }
    return is_first_ && double(env_.now_ns() - begin_ns_) * 1e-9 > asked_.seconds &&
           last_.steps > first_.steps;
  }

  Env& env_;
  const DiagnoseOptions& asked_;
  const bool is_first_;
  bool is_built_ = false;
  int polls_ = 0;
  int64_t begin_ns_ = 0;
  TrainResult first_, last_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

std::optional<Measurements> measure(Env& env, const Recipe& recipe,
                                    const std::shared_ptr<Group>& group,
                                    const DiagnoseOptions& options) {
  MeasuredRun run(env, recipe, group, options);
  const bool measured = run.run();
  if (group->any(!measured)) return std::nullopt;
  Measurements found;
  found.recipe = run.recipe();
  PhaseTimes own = run.phases();
  for (double& seconds : own.seconds) seconds /= run.steps();
  found.ranks = gather(*group, own);
  found.phases = found.ranks[0];
  found.rate = run.samples() / run.phases().total();
  found.cores_used = run.cpu_s() / run.phases().total();
  found.cores = available_cores();
  found.loader_threads = found.recipe.data.threads;
  found.batch = found.recipe.train.batch;
  found.on_gpu = found.recipe.train.device == "cuda";
  return found;
}

}  // namespace saturate
