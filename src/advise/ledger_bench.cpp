#include "saturate/ledger_bench.h"

#include "advise/measured_recipe.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

constexpr int kSettle = 2;   // steps after a change that are not measured
constexpr int kWarmUp = 10;  // steps before the first round

class LedgerBenchRun {
 public:
  LedgerBenchRun(Env& env, const Recipe& recipe, const LedgerBenchOptions& options)
      : env_(env), options_(options), trainer_(env, measured_recipe(recipe), trainer_options()) {
    found_.recipe = trainer_.recipe();
  }

  std::optional<LedgerBench> run() {
    trainer_.run();
    return done_ ? std::optional(std::move(found_)) : std::nullopt;
  }

 private:
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
    if (double(env_.now_ns() - begin_ns_) < options_.seconds * 1e9) return false;
    end();
    return done_;
  }

  // Measurements 0 and 1 are the first round, 2 and 3 the second, in exchanged order.
  bool is_on() const { return (turn_ % 2 == 0) == (turn_ / 2 % 2 == 0); }

  void begin() {
    if (!held_) {
      trainer_.hold_batch();
      held_ = true;
    }
    samples_ = trainer_.so_far().samples;
    begin_ns_ = env_.now_ns();
  }

  void end() {
    const double seconds = double(env_.now_ns() - begin_ns_) * 1e-9;
    const double rate = double(trainer_.so_far().samples - samples_) / seconds;
    (is_on() ? found_.on : found_.off).push_back(rate);
    done_ = ++turn_ == 2 * options_.rounds;
    trainer_.set_ledger(done_ || is_on());
    settle_ = kSettle;
  }

  Env& env_;
  const LedgerBenchOptions options_;
  Trainer trainer_;
  LedgerBench found_;
  int turn_ = 0, settle_ = kWarmUp;
  bool done_ = false, held_ = false;
  int64_t samples_ = 0, begin_ns_ = 0;
};

}  // namespace

std::optional<LedgerBench> bench_ledger(Env& env, const Recipe& recipe,
                                        const LedgerBenchOptions& options) {
  return LedgerBenchRun(env, recipe, options).run();
}

}  // namespace saturate
