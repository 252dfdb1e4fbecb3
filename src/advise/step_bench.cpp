// Three measurements take turns within one run: the trainer asks between steps whether to stop, and
// what it asks decides what the next steps are.
#include "saturate/step_bench.h"

#include <ATen/ops/zeros.h>

#include "advise/bare_loop.h"
#include "advise/library_times.h"
#include "advise/measured_recipe.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

constexpr int kSettle = 2;  // steps after a change that are not measured

class StepBenchRun {
 public:
  StepBenchRun(Env& env, const Recipe& recipe, const StepBenchOptions& options)
      : env_(env), options_(options), trainer_(env, measured_recipe(recipe), trainer_options()) {
    found_.recipe = trainer_.recipe();
    device_ = at::Device(found_.recipe.train.device);
  }

  std::optional<StepBench> run() {
    trainer_.run();
    return done_ ? std::optional(std::move(found_)) : std::nullopt;
  }

 private:
  enum class Stage { kWarmUp, kWhole, kHeld, kProfile };

  TrainerOptions trainer_options() {
    TrainerOptions options;
    options.out = options_.folder;
    options.should_stop = [this] { return done_ || options_.should_stop() || between_steps(); };
    options.progress = Progress::Style::kSilent;
    options.save = false;
    return options;
  }

  // True when all has been measured.
  bool between_steps() {
    if (settle_ > 0) {
      if (--settle_ == 0) begin();
      return false;
    }
    if (has_lasted(begin_ns_)) end();
    return done_;
  }

  void enter(Stage stage, int settle) {
    stage_ = stage;
    settle_ = settle;
  }

  // Now, in what the trainer counts. A GPU has by then done all that it was given.
  TrainResult mark() {
    if (device_.is_cuda()) at::zeros({}, device_).item();
    return trainer_.so_far();
  }

  void begin() {
    if (stage_ == Stage::kProfile) output_.emplace(options_.folder + "/libraries.txt");
    begin_ = mark();
    begin_ns_ = env_.now_ns();
  }

  void end() {
    const TrainResult now = mark();
    StepTiming timing;
    timing.steps = now.steps - begin_.steps;
    timing.samples = now.samples - begin_.samples;
    timing.phases = now.phases - begin_.phases;
    timing.wall_s = timing.phases.total();
    timing.cpu_s = cpu_s(now) - cpu_s(begin_);
    switch (stage_) {
      case Stage::kWarmUp:
        found_.memory_peak_bytes = now.memory_peak_bytes;
        bare_.emplace(found_.recipe, trainer_.hold_batch());
        time_bare();
        return start_round();
      case Stage::kWhole:
        found_.whole.push_back(timing);
        trainer_.hold_batch();
        return enter(Stage::kHeld, kSettle);
      case Stage::kHeld:
        found_.held.push_back(timing);
        found_.bare.push_back(time_bare());
        return int(found_.held.size()) < options_.rounds ? start_round() : last_stage();
      case Stage::kProfile:
        return profiled(timing);
    }
  }

  void start_round() {
    trainer_.release_batch();
    // The loader's threads had time to work ahead, or none yet: its batches in flight do not count.
    enter(Stage::kWhole, found_.recipe.data.prefetch + kSettle);
  }

  void last_stage() {
    done_ = !options_.profile;
    enter(Stage::kProfile, kSettle);
  }

  void profiled(const StepTiming& timing) {
    LibraryTimes times = parse_library_times(output_->text(env_));
    output_.reset();
    times.onednn_s /= double(timing.steps);
    times.mkl_s /= double(timing.steps);
    for (auto& [kind, seconds] : times.kinds) seconds /= double(timing.steps);
    found_.libraries = std::move(times);
    done_ = true;
  }

  StepTiming time_bare() {
    for (int i = 0; i < kSettle; ++i) bare_->step();
    const TrainResult before = mark();
    const int64_t start_ns = env_.now_ns();
    StepTiming timing;
    do {
      bare_->step();
      ++timing.steps;
    } while (!has_lasted(start_ns));
    const TrainResult now = mark();
    timing.samples = timing.steps * bare_->images();
    timing.wall_s = now.wall_s - before.wall_s;
    timing.cpu_s = cpu_s(now) - cpu_s(before);
    return timing;
  }

  bool has_lasted(int64_t start_ns) const {
    return double(env_.now_ns() - start_ns) >= options_.seconds * 1e9;
  }
  static double cpu_s(const TrainResult& so_far) { return so_far.cores_used * so_far.wall_s; }

  Env& env_;
  const StepBenchOptions options_;
  Trainer trainer_;
  at::Device device_ = at::kCPU;
  StepBench found_;
  std::optional<BareLoop> bare_;
  std::optional<LibraryOutput> output_;
  Stage stage_ = Stage::kWarmUp;
  int settle_ = kSettle + 1;  // the trainer asks once before the first step
  bool done_ = false;
  TrainResult begin_;  // of this measurement
  int64_t begin_ns_ = 0;
};

}  // namespace

std::optional<StepBench> bench_step(Env& env, const Recipe& recipe,
                                    const StepBenchOptions& options) {
  return StepBenchRun(env, recipe, options).run();
}

}  // namespace saturate
