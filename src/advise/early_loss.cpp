#include "advise/early_loss.h"

#include <sstream>

#include "advise/stretch.h"
#include "record/metrics.h"
#include "saturate/data/env.h"

namespace saturate {
namespace {

double mean_of_last_quarter(Env& env, const std::string& folder, int64_t samples) {
  const auto bytes = read_file(env, folder + "/metrics.jsonl");
  std::istringstream lines(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  double sum = 0, weight = 0;
  int64_t before = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = from_json_line(line);
    if (!record || record->kind != "step" || !record->loss) continue;
    const double own = double(record->samples - before);
    before = record->samples;
    if (4 * record->samples <= 3 * samples) continue;
    sum += own * *record->loss;
    weight += own;
  }
  return sum / weight;
}

}  // namespace

std::optional<double> early_loss(Env& env, Recipe recipe, const std::string& folder,
                                 int64_t samples, const std::function<bool()>& should_stop) {
  recipe.data.eval_source.clear();
  recipe.train.max_minutes = 0;
  recipe.train.early_stop = 0;
  recipe.watch.every = 1;
  int64_t trained = 0;
  {
    Trainer trainer(env, recipe, measured_options(folder, should_stop));
    while (trained < samples && trainer.step()) trained = trainer.so_far().samples;
  }  // its records are complete
  if (should_stop()) return std::nullopt;
  return mean_of_last_quarter(env, folder, trained);
}

}  // namespace saturate
