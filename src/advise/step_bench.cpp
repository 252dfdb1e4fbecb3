#include "advise/step_bench.h"

#include "advise/bare_loop.h"
#include "advise/library_times.h"
#include "advise/measured_trainer.h"
#include "advise/stretch.h"

namespace saturate {
namespace {

class StepBenchRun {
 public:
  StepBenchRun(Env& env, const Recipe& recipe, const StepBenchOptions& options)
      : env_(env),
        options_(options),
        trainer_(env, measured_recipe(recipe),
                 measured_options(options.folder, options.should_stop)) {
    found_.recipe = trainer_.recipe();
  }

  // Four measurements take turns within one run.
  std::optional<StepBench> run() {
    if (!time_steps(kSettle)) return std::nullopt;
    found_.memory_peak_bytes = trainer_.so_far().memory_peak_bytes;
    bare_.emplace(env_, found_.recipe, hold_batch(trainer_));
    time_bare();
    for (int round = 0; round < options_.rounds; ++round)
      if (!measure_round()) return std::nullopt;
    if (options_.profile && !profile()) return std::nullopt;
    return std::move(found_);
  }

 private:
  std::optional<StepTiming> time_steps(int settle) {
    return saturate::time_steps(env_, trainer_, options_.seconds, settle);
  }

  // False where the run was stopped, as the next.
  bool measure_round() {
    release_batch(trainer_);
    // The loader's threads had time to work ahead, or none yet: its batches in flight do not count.
    const auto whole = time_steps(found_.recipe.data.prefetch + kSettle);
    if (!whole) return false;
    found_.whole.push_back(*whole);
    found_.input.push_back(time_input(env_, trainer_, options_.seconds, options_.should_stop));
    hold_batch(trainer_);
    const auto held = time_steps(kSettle);
    if (!held) return false;
    found_.held.push_back(*held);
    found_.bare.push_back(time_bare());
    return true;
  }

  bool profile() {
    for (int i = 0; i < kSettle; ++i)
      if (!trainer_.step()) return false;
    LibraryOutput output(options_.folder + "/libraries.txt");
    const auto timing = time_steps(0);
    if (!timing) return false;
    LibraryTimes times = parse_library_times(output.text(env_));
    times.onednn_s /= double(timing->steps);
    times.mkl_s /= double(timing->steps);
    for (auto& [kind, seconds] : times.kinds) seconds /= double(timing->steps);
    found_.libraries = std::move(times);
    return true;
  }

  StepTiming time_bare() {
    for (int i = 0; i < kSettle; ++i) bare_->step();
    Stretch stretch(env_);
    stretch.begin(trainer_);
    int64_t steps = 0;
    do {
      bare_->step();
      ++steps;
    } while (stretch.elapsed_s() < options_.seconds);
    StepTiming timing = stretch.timing(trainer_);  // its wall time and the CPU's
    timing.steps = steps;
    timing.samples = steps * bare_->images();
    timing.phases = {};
    return timing;
  }

  Env& env_;
  const StepBenchOptions options_;
  StepBench found_;
  Trainer trainer_;
  std::optional<BareLoop> bare_;
};

}  // namespace

std::optional<StepBench> bench_step(Env& env, const Recipe& recipe,
                                    const StepBenchOptions& options) {
  return StepBenchRun(env, recipe, options).run();
}

}  // namespace saturate
