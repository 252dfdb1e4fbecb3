// Four measurements take turns within one run: the trainer asks between steps whether to stop, and
// what it asks decides what the next steps are.
#include "saturate/step_bench.h"

#include "advise/bare_loop.h"
#include "advise/library_times.h"
#include "advise/measured_recipe.h"
#include "advise/stretch.h"

namespace saturate {
namespace {

class StepBenchRun {
 public:
  StepBenchRun(Env& env, const Recipe& recipe, const StepBenchOptions& options)
      : env_(env),
        options_(options),
        stretch_(env),
        trainer_(env, measured_recipe(recipe),
                 measured_options(options.folder, [this] { return should_stop(); })) {
    found_.recipe = trainer_.recipe();
  }

  std::optional<StepBench> run() {
    running_ = true;
    trainer_.run();
    return done_ ? std::optional(std::move(found_)) : std::nullopt;
  }

 private:
  enum class Stage { kWarmUp, kWhole, kHeld, kProfile };

  // Asked while data is copied, too.
  bool should_stop() { return done_ || options_.should_stop() || (running_ && between_steps()); }

  // True when all has been measured.
  bool between_steps() {
    if (settle_ > 0) {
      if (--settle_ == 0) begin();
      return false;
    }
    if (has_lasted(stretch_)) end();
    return done_;
  }

  void enter(Stage stage, int settle) {
    stage_ = stage;
    settle_ = settle;
  }

  void begin() {
    if (stage_ == Stage::kProfile) output_.emplace(options_.folder + "/libraries.txt");
    stretch_.begin(trainer_);
  }

  void end() {
    const StepTiming timing = stretch_.timing(trainer_);
    switch (stage_) {
      case Stage::kWarmUp:
        found_.memory_peak_bytes = trainer_.so_far().memory_peak_bytes;
        bare_.emplace(found_.recipe, trainer_.hold_batch());
        time_bare();
        return start_round();
      case Stage::kWhole:
        found_.whole.push_back(timing);
        found_.input.push_back(time_input(env_, trainer_, options_.seconds, options_.should_stop));
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
    Stretch stretch(env_);
    stretch.begin(trainer_);
    int64_t steps = 0;
    do {
      bare_->step();
      ++steps;
    } while (!has_lasted(stretch));
    StepTiming timing = stretch.timing(trainer_);  // its wall time and the CPU's
    timing.steps = steps;
    timing.samples = steps * bare_->images();
    timing.phases = {};
    return timing;
  }

  bool has_lasted(const Stretch& stretch) const { return stretch.elapsed_s() >= options_.seconds; }

  Env& env_;
  const StepBenchOptions options_;
  Stretch stretch_;
  StepBench found_;
  std::optional<BareLoop> bare_;
  std::optional<LibraryOutput> output_;
  Stage stage_ = Stage::kWarmUp;
  int settle_ = kSettle + 1;  // the trainer asks once before the first step
  bool running_ = false, done_ = false;
  Trainer trainer_;  // last: it asks the others
};

}  // namespace

std::optional<StepBench> bench_step(Env& env, const Recipe& recipe,
                                    const StepBenchOptions& options) {
  return StepBenchRun(env, recipe, options).run();
}

}  // namespace saturate
