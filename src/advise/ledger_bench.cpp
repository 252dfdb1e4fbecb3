#include "advise/ledger_bench.h"

#include "advise/measured_trainer.h"
#include "advise/stretch.h"

namespace saturate {
namespace {

constexpr int kWarmUp = 10;  // steps before the first round

}  // namespace

std::optional<LedgerBench> bench_ledger(Env& env, const Recipe& recipe,
                                        const LedgerBenchOptions& options) {
  Trainer trainer(env, measured_recipe(recipe),
                  measured_options(options.folder, options.should_stop));
  LedgerBench found;
  found.recipe = trainer.recipe();
  for (int i = 0; i < kWarmUp; ++i)
    if (!trainer.step()) return std::nullopt;
  hold_batch(trainer);
  // Turns 0 and 1 are the first round, 2 and 3 the second, in exchanged order.
  for (int turn = 0; turn < 2 * options.rounds; ++turn) {
    const bool is_on = (turn % 2 == 0) == (turn / 2 % 2 == 0);
    set_ledger(trainer, is_on);
    const auto timing = time_steps(env, trainer, options.seconds, turn == 0 ? 0 : kSettle);
    if (!timing) return std::nullopt;
    (is_on ? found.on : found.off).push_back(timing->images_per_s());
  }
  return found;
}

}  // namespace saturate
