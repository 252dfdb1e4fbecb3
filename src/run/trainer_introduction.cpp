// The first lines of a run: what is trained, on what, how, and from where.
#include <fmt/format.h>

#include "base/option_row.h"
#include "run/trainer_state.h"

namespace saturate {
namespace {

// A key's value as a recipe has it.
std::string choice_text(const Recipe& recipe, std::string_view key) {
  for (const OptionRow& row : option_table())
    if (row.key == key) return std::get<std::string>(row.get(recipe));
  return "";
}

// "bf16 (chosen by auto)".
std::string chosen(const Recipe& asked, const Recipe& found, std::string_view key) {
  return choice_text(found, key) + (choice_text(asked, key) == "auto" ? " (chosen by auto)" : "");
}

std::string parameters_of(Model& model) {
  int64_t all = 0, trained = 0;
  for (const auto& [name, tensor] : model.parameters()) {
    all += tensor.numel();
    trained += tensor.requires_grad() ? tensor.numel() : 0;
  }
  return fmt::format("{} parameters", all) +
         (trained < all ? fmt::format(", {} of them trained", trained) : "");
}

}  // namespace

void Trainer::State::introduce(const Recipe& asked) {
  const int processes = shard().world;
  log->note(fmt::format("model       {}, {}", recipe.model.name, parameters_of(*model)));
  log->note(fmt::format("data        {}: {} images of {} classes", recipe.data.source, data->size(),
                        data->classes().size()));
  if (evaluator)
    log->note(fmt::format("evaluation  {}: {} images", recipe.data.eval_source, evaluator->size()));
  log->note(fmt::format("device      {}, {} thread{}{}, precision {}",
                        chosen(asked, recipe, "train.device"), recipe.train.threads,
                        recipe.train.threads == 1 ? "" : "s",
                        processes > 1 ? fmt::format(" in each of {} processes", processes) : "",
                        chosen(asked, recipe, "precision.mode")));
  if (recipe.precision.mode == PrecisionMode::kFp16O3)
    log->warn(
        "precision.mode=fp16-o3 is for comparison: weights, statistics and the optimizer are in "
        "fp16 alone, where small updates are lost and training may diverge. To train, set fp16-o2 "
        "or bf16");
  log->note(fmt::format("steps       {} batches of {} images an epoch, {} in {:g} epochs",
                        epoch_steps, recipe.train.batch, total_steps, recipe.train.epochs));
  log->note(fmt::format("run folder  {}{}", options.out,
                        options.resume ? fmt::format(", from step {}", position.step) : ""));
}

}  // namespace saturate
