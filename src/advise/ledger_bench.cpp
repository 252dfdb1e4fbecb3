#include "saturate/ledger_bench.h"

#include "advise/measured_recipe.h"
#include "advise/stretch.h"

namespace saturate {
namespace {

constexpr int kWarmUp = 10;  // steps before the first round

class LedgerBenchRun {
 public:
  LedgerBenchRun(Env& env, const Recipe& recipe, const LedgerBenchOptions& options)
      : options_(options),
        stretch_(env),
        trainer_(env, measured_recipe(recipe),
                 measured_options(options.folder, [this] { return should_stop(); })) {
    found_.recipe = trainer_.recipe();
  }

  std::optional<LedgerBench> run() {
    running_ = true;
    trainer_.run();
    return done_ ? std::optional(std::move(found_)) : std::nullopt;
  }

 private:
  // Asked while data is copied, too.
  bool should_stop() { return done_ || options_.should_stop() || (running_ && between_steps()); }

  // True when all has been measured.
  bool between_steps() {
    if (settle_ > 0) {
      if (--settle_ == 0) begin();
      return false;
    }
    if (stretch_.elapsed_s() < options_.seconds) return false;
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
    stretch_.begin(trainer_);
  }

  void end() {
    const auto samples = double(stretch_.timing(trainer_).samples);
    const double rate = samples / stretch_.elapsed_s();  // phases are not charged where it is off
    (is_on() ? found_.on : found_.off).push_back(rate);
    done_ = ++turn_ == 2 * options_.rounds;
    trainer_.set_ledger(done_ || is_on());
    settle_ = kSettle;
  }

  const LedgerBenchOptions options_;
  Stretch stretch_;
  LedgerBench found_;
  int turn_ = 0, settle_ = kWarmUp;
  bool running_ = false, done_ = false, held_ = false;
  Trainer trainer_;  // last: it asks the others
};

}  // namespace

std::optional<LedgerBench> bench_ledger(Env& env, const Recipe& recipe,
                                        const LedgerBenchOptions& options) {
  return LedgerBenchRun(env, recipe, options).run();
}

}  // namespace saturate
