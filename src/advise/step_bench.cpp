#include "advise/step_bench.h"

#include <ATen/native/verbose_wrapper.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "advise/measured_trainer.h"
#include "base/files.h"
#include "run/setup.h"
#include "saturate/data/error.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/task.h"
#include "step/precision.h"
#include "task/cross_entropy.h"

namespace saturate {
namespace {

constexpr double kLr = 0;    // as measured_recipe()
constexpr int kWarmUp = 10;  // steps before bench_ledger()'s first round

// The minimum of a LibTorch step: model, loss, backward and one fused optimizer call over all
// parameters, on one batch; no loader, no metrics, no clock, no loss scaling, no clipping.
// Optimizers without a fused operator, and those with master weights, are the recipe's own.
class BareLoop {
 public:
  // `recipe`: resolved. `batch`: on the recipe's device.
  BareLoop(const ModelInput& input, const Recipe& recipe, const DeviceBatch& batch)
      : recipe_(recipe), count_(batch.count()) {
    model_ = make_model(recipe.model, input);
    task_ = make_task(recipe.train, recipe.model.classes, model_->facets());
    model_->to(batch.images.device(), recipe.train.channels_last);
    if (const ModelFacets facets = model_->facets(); facets.wanted_images > 0)
      facets.prepare(batch.images);
    store_all_in_half(*model_, recipe.precision.mode);
    model_->set_training(true);
    make_update();
    const int64_t each = micro_batch_size(recipe.train), batches = (count_ + each - 1) / each;
    const auto images = batch.images.tensor_split(batches),
               labels = batch.labels.tensor_split(batches);
    for (size_t i = 0; i < size_t(batches); ++i)
      micro_batches_.push_back({images[i], labels[i], {}});
  }

  void step() {
    for (const DeviceBatch& batch : micro_batches_) forward_backward(batch);
    if (optimizer_) {
      optimizer_->step(kLr);
      optimizer_->zero_grad();
      return;
    }
    const c10::NoGradGuard no_grad;
    gradients_.clear();
    for (const at::Tensor& parameter : parameters_) gradients_.push_back(parameter.grad());
    fused_update();
    for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }
  int64_t images() const { return count_; }  // in a step

 private:
  void make_update() {
    const PrecisionMode mode = recipe_.precision.mode;
    auto groups = make_parameter_groups(recipe_.optimizer, model_->parameters());
    if (fused() == FusedUpdate::kNone || has_master_weights(mode) ||
        mode == PrecisionMode::kFp16O3) {
      optimizer_ = make_optimizer(recipe_.optimizer, std::move(groups), mode);
      return;
    }
    for (const ParameterGroup& group : groups)
      for (const NamedTensor& named : group.parameters) {
        const at::Tensor& parameter = parameters_.emplace_back(named.tensor);
        first_.push_back(at::zeros_like(parameter.detach()));
        if (fused() == FusedUpdate::kSgd) continue;
        second_.push_back(at::zeros_like(parameter.detach()));
        counts_.push_back(at::zeros({}, parameter.options().dtype(at::kFloat)));
      }
  }

  FusedUpdate fused() const { return traits_of(recipe_.optimizer).fused; }

  void forward_backward(const DeviceBatch& batch) {
    at::Tensor loss;
    {
      std::optional<AutocastScope> autocast;
      if (reduced_type(recipe_.precision.mode))
        autocast.emplace(recipe_.precision.mode, batch.images.device().type());
      at::Tensor logits = model_->forward(batch.images);
      if (autocast) logits = logits.to(at::kFloat);
      const bool tokens = recipe_.train.task == TaskKind::kLanguage;
      const bool numbers =
          recipe_.train.task == TaskKind::kRegress || recipe_.train.task == TaskKind::kMultilabel;
      loss = numbers ? task_->mean_loss(logits, batch.labels, 0)
                     : cross_entropy(tokens ? logits.flatten(0, 1) : logits,
                                     tokens ? batch.labels.flatten() : batch.labels,
                                     recipe_.train.label_smoothing);
      const double loss_weight = double(batch.count()) / double(count_);
      if (loss_weight != 1) loss = loss * loss_weight;
    }
    loss.backward();
    if (optimizer_) optimizer_->take_gradients();
  }

  void fused_update() {
    const OptimizerOptions& o = recipe_.optimizer;
    if (fused() == FusedUpdate::kSgd) {
      at::_fused_sgd_(parameters_, gradients_, o.momentum == 0 ? std::vector<at::Tensor>() : first_,
                      o.weight_decay, o.momentum, kLr, /*dampening=*/0.0, o.nesterov,
                      /*maximize=*/false, /*is_first_step=*/false);
      return;
    }
    at::_foreach_add_(counts_, 1);
    // at::_fused_adam_ has overloads: one number for the learning rate here.
    using Fused =
        void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                 at::TensorList, double, double, double, double, double, bool, bool,
                 const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);
    const Fused adam =
        fused() == FusedUpdate::kAdam ? Fused(at::_fused_adam_) : Fused(at::_fused_adamw_);
    adam(parameters_, gradients_, first_, second_, /*max_exp_avg_sqs=*/{}, counts_, kLr, o.beta1,
         o.beta2, o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
         /*found_inf=*/{});
  }

  const Recipe recipe_;
  const int64_t count_;  // images of all micro-batches
  std::vector<DeviceBatch> micro_batches_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<const Task> task_;
  std::unique_ptr<Optimizer> optimizer_;  // null with a fused operator
  std::vector<at::Tensor> parameters_, gradients_, first_, second_, counts_;
};

// "onednn_verbose,v1,primitive,exec,cpu,convolution,IMPLEMENTATION,...,MILLISECONDS"
void add_onednn(const std::string& line, LibraryTimes& times) {
  std::vector<std::string> fields = split_text(line, ',');
  fields.resize(6);
  if (fields[3] != "exec") return;
  const double seconds = std::atof(line.c_str() + line.rfind(',') + 1) * 1e-3;
  times.onednn_s += seconds;
  times.kinds[fields[5]] += seconds;
}

// "MKL_VERBOSE SGEMM(N,T,...) 12.34us CNR:OFF ...", unlike its first line, which has words before a
// bracket.
void add_mkl(const std::string& line, LibraryTimes& times) {
  const size_t name = line.find(' '), open = line.find_first_of(" (", name + 1),
               close = line.find(") ");
  if (close == std::string::npos || line[open] != '(') return;
  char* unit = nullptr;
  const double value = std::strtod(line.c_str() + close + 2, &unit);
  const double factor = *unit == 'n' ? 1e-9 : *unit == 'u' ? 1e-6 : *unit == 'm' ? 1e-3 : 1;
  times.mkl_s += value * factor;
  times.kinds[line.substr(name + 1, open - name - 1)] += value * factor;
}

// While it exists, oneDNN (convolutions, bf16 products) and MKL (fp32 products) print every call to
// stdout, and everything that this process prints there goes to a file. For one at a time.
class LibraryOutput {
 public:
  // Fails with kRun if the file cannot be written.
  explicit LibraryOutput(std::string path) : path_(std::move(path)) {
    std::fflush(stdout);
    const int file = open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0)
      fail(ErrorKind::kRun, "the file cannot be written", path_,
           "Look at the folder's space and rights");
    stdout_ = dup(STDOUT_FILENO);
    dup2(file, STDOUT_FILENO);
    close(file);
    set_verbose(true);
  }
  ~LibraryOutput() {
    set_verbose(false);
    std::fflush(stdout);
    dup2(stdout_, STDOUT_FILENO);
    close(stdout_);
  }
  LibraryOutput(const LibraryOutput&) = delete;
  LibraryOutput& operator=(const LibraryOutput&) = delete;

  // From everything printed so far.
  LibraryTimes times(Env& env) const {
    std::fflush(stdout);
    return parse_library_times(text_of_file(env, path_));
  }

 private:
  static void set_verbose(bool on) {
    torch::verbose::_mkldnn_set_verbose(on);
    torch::verbose::_mkl_set_verbose(on);
  }

  const std::string path_;
  int stdout_;  // the real one
};

class StepBenchRun {
 public:
  StepBenchRun(Env& env, const Recipe& recipe, const StepBenchOptions& options)
      : env_(env),
        options_(options),
        trainer_(env, measured_recipe(recipe),
                 measured_options(options.folder, options.should_stop)) {
    found_.recipe = trainer_.recipe();
  }

  // Four interleaved measurements within one run.
  std::optional<StepBench> run() {
    if (!time_steps(kSettle)) return std::nullopt;
    found_.memory_peak_bytes = trainer_.so_far().memory_peak_bytes;
    bare_.emplace(model_input_of(trainer_), found_.recipe, hold_batch(trainer_));
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

  // False if the run was stopped, as profile().
  bool measure_round() {
    release_batch(trainer_);
    // The loader may have worked ahead, or not begun: its batches in flight do not count.
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
    LibraryTimes times = output.times(env_);
    times.onednn_s /= double(timing->steps);
    times.mkl_s /= double(timing->steps);
    for (auto& [kind, seconds] : times.kinds) seconds /= double(timing->steps);
    found_.libraries = std::move(times);
    return true;
  }

  StepTiming time_bare() {
    for (int i = 0; i < kSettle; ++i) bare_->step();
    const Stretch stretch(env_, trainer_);
    int64_t steps = 0;
    do {
      bare_->step();
      ++steps;
    } while (stretch.elapsed_s() < options_.seconds);
    StepTiming timing = stretch.timing();  // its wall time and the CPU's
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

LibraryTimes parse_library_times(const std::string& text) {
  LibraryTimes times;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("onednn_verbose,")) add_onednn(line, times);
    if (line.starts_with("MKL_VERBOSE ")) add_mkl(line, times);
  }
  return times;
}

std::optional<StepBench> bench_step(Env& env, const Recipe& recipe,
                                    const StepBenchOptions& options) {
  return StepBenchRun(env, recipe, options).run();
}

std::optional<Rounds> bench_ledger(Env& env, const Recipe& recipe,
                                   const StepBenchOptions& options) {
  Trainer trainer(env, measured_recipe(recipe),
                  measured_options(options.folder, options.should_stop));
  for (int i = 0; i < kWarmUp; ++i)
    if (!trainer.step()) return std::nullopt;
  hold_batch(trainer);
  Rounds found;
  // Turns 0 and 1 are the first round, 2 and 3 the second, in exchanged order.
  for (int turn = 0; turn < 2 * options.rounds; ++turn) {
    const bool is_on = (turn % 2 == 0) == (turn / 2 % 2 == 0);
    set_ledger(trainer, is_on);
    const auto timing = time_steps(env, trainer, options.seconds, turn == 0 ? 0 : kSettle);
    if (!timing) return std::nullopt;
    (is_on ? found.before : found.after).push_back(timing->images_per_s());
  }
  return found;
}

}  // namespace saturate
