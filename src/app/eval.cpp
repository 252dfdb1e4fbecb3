// saturate eval: the accuracy of a saved model.
#include <ATen/ops/max.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "app/command.h"
#include "app/generate.h"
#include "base/printable.h"
#include "data/csv_format.h"
#include "record/class_results.h"
#include "record/json_fields.h"
#include "record/metric_text.h"
#include "run/checkpoint.h"
#include "run/setup.h"
#include "saturate/evaluator.h"
#include "saturate/progress.h"
#include "step/switches.h"
#include "task/class_counts.h"

namespace saturate {
namespace {

struct EvalArguments {
  SavedModelArguments model;
  std::string data, json, predictions;
  std::vector<std::string> overrides;
  GenerationArguments generation;
};

std::string to_json(const Metrics& metrics, const std::optional<ClassResults>& by_class) {
  nlohmann::ordered_json json = {
      {"samples", metrics.samples},
      {"loss", or_null(metrics.samples > 0 ? std::optional(metrics.loss) : std::nullopt)}};
  if (by_class) json["accuracy"] = or_null(metrics.value("accuracy"));
  if (by_class) json["accuracy5"] = or_null(metrics.value("accuracy5"));
  for (const auto& [name, value] : metrics.values) json[name == "iou" ? "mean_iou" : name] = value;
  if (by_class) add_json(json, *by_class);
  return json_text(json);
}

// One line per sample: its name, label, prediction and probability.
class Predictions {
 public:
  explicit Predictions(const std::vector<std::string>& classes) : classes_(classes) {}

  void add(const DeviceBatch& batch, const at::Tensor& logits) {
    const auto [probability, prediction] = at::max(at::softmax(logits, 1).cpu(), 1);
    const at::Tensor labels = batch.labels.cpu();
    for (int64_t i = 0; i < batch.count(); ++i)
      text_ += fmt::format("{},{},{},{:.6f}\n", csv_field(batch.names[size_t(i)]),
                           name_of(labels.const_data_ptr<int64_t>()[i]),
                           name_of(prediction.const_data_ptr<int64_t>()[i]),
                           probability.const_data_ptr<float>()[i]);
  }
  const std::string& text() const { return text_; }

 private:
  std::string name_of(int64_t label) const {  // a model may have more outputs than classes
    return label < int64_t(classes_.size()) ? csv_field(classes_[size_t(label)])
                                            : std::to_string(label);
  }

  const std::vector<std::string>& classes_;
  std::string text_ = "sample,label,prediction,probability\n";
};

void report_skipped(const Evaluator& evaluator) {
  for (const auto& sample : evaluator.skipped())
    print_warning("skipped " + sample.name + ": " + sample.reason);
}

ClassResults results_of(const Answers& answers, const Metrics& metrics,
                        const std::vector<std::string>& classes) {
  if (!metrics.pixels.empty()) return class_results(metrics.pixels, classes);
  const at::Tensor cells = answers.cells();
  return class_results({cells.const_data_ptr<int64_t>(), size_t(cells.numel())}, answers.outputs(),
                       classes);
}

void require_one_purpose(const EvalArguments& arguments) {
  if (!arguments.generation.is_asked() && arguments.data.empty())
    fail(ErrorKind::kUsage, "--data is missing", "saturate eval",
         "Give a source to evaluate on, or --generate for a text of a language model");
  if (arguments.generation.is_asked() &&
      !(arguments.data.empty() && arguments.json.empty() && arguments.predictions.empty()))
    fail(ErrorKind::kUsage, "--generate evaluates nothing", "--generate",
         "Remove it, or --data, --json and --predictions");
}

[[noreturn]] void refuse_predictions(TaskKind kind) {
  fail(ErrorKind::kUsage,
       "--predictions writes one class per sample, and the run is " +
           std::string(kind == TaskKind::kSegment    ? "segmentation"
                       : kind == TaskKind::kRegress  ? "regression"
                       : kind == TaskKind::kLanguage ? "of a language model"
                                                     : "of several labels"),
       "--predictions", "Remove it");
}

int eval(const EvalArguments& arguments) {
  require_one_purpose(arguments);
  Env& env = Env::posix();
  require_outputs({arguments.json, arguments.predictions});
  std::string path;
  const Checkpoint checkpoint = read_saved_model(env, arguments.model, path);
  Recipe recipe = parse_saved_recipe(checkpoint.recipe_toml, path, arguments.overrides);
  const at::Device device = resolve_device(recipe.train.device);
  resolve_machine(recipe, device);  // --set may have restored "auto" values
  const SwitchesScope switches;
  switches.set({.threads = recipe.train.threads});
  const auto model = make_model(recipe.model, model_input(env, recipe, checkpoint));
  model->to(device, recipe.train.channels_last);
  load_into(*model, checkpoint.model, path);
  const bool averaged = !checkpoint.average.empty() && !arguments.model.plain;
  if (averaged) load_average(*model, checkpoint.average, path);

  if (arguments.generation.is_asked()) {
    print_generated(*model, device, recipe, checkpoint.fields, arguments.generation);
    return 0;
  }
  const bool wants_names = !arguments.predictions.empty();
  const TaskKind kind = recipe.train.task;
  const bool classifies = kind == TaskKind::kClassify || kind == TaskKind::kAuto;
  if (wants_names && !classifies) refuse_predictions(kind);
  Evaluator evaluator(env, recipe, arguments.data, checkpoint.classes, device, wants_names, {},
                      nullptr, checkpoint.fields);
  if (const std::string warning = evaluator.warning(); !warning.empty()) print_warning(warning);
  Predictions predictions(checkpoint.classes);
  const char* const unit = checkpoint.fields.empty() ? "images" : "samples";
  Progress progress(env, "eval", unit, int64_t(evaluator.size()),
                    recipe.watch.progress ? Progress::Style::kAuto : Progress::Style::kSilent);
  const auto task = make_task(recipe.train, recipe.model.classes, model->facets());
  Answers answers;
  int64_t done = 0;
  const auto observer = [&](const DeviceBatch& batch, const at::Tensor& logits) {
    if (classifies) answers.add(logits, batch.labels);
    if (wants_names) predictions.add(batch, logits);
    progress.update(done += batch.count(), "");
    return true;
  };
  const Metrics metrics = *evaluator.run(*model, *task, observer);
  progress.finish();
  report_skipped(evaluator);
  std::optional<ClassResults> by_class;
  if (classifies || (kind == TaskKind::kSegment && metrics.weight() > 0))
    by_class = results_of(answers, metrics, checkpoint.classes);
  write_and_print(
      {{arguments.json, to_json(metrics, by_class)}, {arguments.predictions, predictions.text()}},
      [&] {
        fmt::print("{}  ({}{})\n", result_text(metrics, unit), printable(path),
                   averaged ? ", averaged weights" : "");
        if (by_class) fmt::print("\n{}", format_class_results(*by_class));
      });
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<EvalArguments>(
      app, exit_code, "eval", "Evaluate a saved model on a source", eval);
  add_saved_model(command, arguments.model);
  command.add_option("--data", arguments.data,
                     "Source, as data.source of a recipe; needed without --generate");
  add_settings(command, arguments.overrides, "--set",
               "section.key=value: overrides the run's recipe; may be repeated");
  command.add_option("--predictions", arguments.predictions,
                     "Write a CSV file: each sample's name, label, prediction and probability");
  command.add_option("--json", arguments.json,
                     "Write the result to this file too, with every class and the whole confusion "
                     "matrix");
  add_generation(command, arguments.generation);
}

}  // namespace saturate
