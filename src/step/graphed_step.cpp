#include "step/graphed_step.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/printable.h"
#include "saturate/data/error.h"

namespace saturate {

struct GraphedStep::Recording {
  explicit Recording(const Task& task) : counted(task) {}
  DeviceBatch inputs;      // the graph's own
  RunningMetrics counted;  // of the last replay
  std::unique_ptr<StepGraph> graph;
  int warm_ups = 0;
  bool is_recorded = false;
};

namespace {

// The tensors of a batch that a step reads; undefined if absent.
std::vector<at::Tensor*> inputs_of(DeviceBatch& batch) {
  std::vector<at::Tensor*> inputs = {&batch.images, &batch.labels, &batch.pixels, &batch.effects,
                                     &batch.places};
  for (at::Tensor& features : batch.features) inputs.push_back(&features);
  return inputs;
}

bool is_alike(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool is_alike(DeviceBatch& a, DeviceBatch& b) {
  const auto left = inputs_of(a), right = inputs_of(b);
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const at::Tensor* x, const at::Tensor* y) { return is_alike(*x, *y); });
}

// Whether the images of both have the same sides.
bool has_size_of(const DeviceBatch& a, const DeviceBatch& b) {
  const auto sides = [](const DeviceBatch& batch) {
    return (batch.pixels.defined() ? batch.pixels : batch.images).sizes().slice(1).vec();
  };
  return sides(a) == sides(b);
}

bool takes_rate_from_device(const OptimizerOptions& options) {
  return options.fused && traits_of(options).fused != FusedUpdate::kNone;
}

// "sgd, adam and adamw".
std::string names_of_fused() {
  std::vector<std::string_view> names;
  for (const auto& entry : optimizers())
    if (entry.traits.fused != FusedUpdate::kNone) names.push_back(entry.name);
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

}  // namespace

std::string why_no_graph(const Recipe& recipe, int processes) {
  const TrainOptions& train = recipe.train;
  const auto& augment = recipe.augment;
  if (processes > 1) return "several processes all-reduce gradients during backward";
  if (recipe.distributed.mode == ParallelMode::kDp)
    return "distributed.mode=dp splits each batch on the host";
  if (!train.compiled.empty()) return "train.compiled replaces the step already";
  if (train.detect_anomaly)
    return "debug.checks has anomaly, which checks each gradient on the host";
  if (train.checkpoint_segments != 0)
    return "train.checkpoint_segments restores the random state on the host";
  if (!train.create_on_device) return "debug.off has create_on_device, and copies from the host";
  if (recipe.watch.histograms > 0) return "watch.histograms reads gradients during the step";
  if (augment.mixup > 0 || augment.cutmix > 0)
    return "augment.mixup and augment.cutmix take their parameters from the host";
  if (!takes_rate_from_device(recipe.optimizer))
    return "the optimizer takes its learning rate from the host: " + names_of_fused() +
           " can read it on the device, without \"fused\" in debug.off";
  if (traits_of(recipe.schedule).is_cycle && recipe.schedule.cycle_momentum)
    return "schedule.cycle_momentum changes the momentum on the host";
  return "";
}

GraphedStep::GraphedStep(TrainStep& step, Optimizer& optimizer, const at::Device& device,
                         Ledger& ledger, GraphSetup setup)
    : step_(step),
      optimizer_(optimizer),
      ledger_(ledger),
      setup_(std::move(setup)),
      // CUDA's fused kernels read float; double matches the CPU's step with a host number.
      rate_(at::zeros({}, at::device(device).dtype(device.is_cpu() ? at::kDouble : at::kFloat))) {
  if (!optimizer_.read_rate_from(rate_))
    fail(ErrorKind::kRun, "the optimizer takes its learning rate from the host", "train.graph",
         "Set train.graph=off");
  // Creates the optimizer state now: the first step would allocate it between its activations, and
  // so keep their memory allocated beside the graph's.
  optimizer_.state();
}

GraphedStep::~GraphedStep() {
  optimizer_.read_rate_from({});
}

void GraphedStep::run(DeviceBatch& batch, double lr, RunningMetrics& metrics) {
  ++steps_;
  Recording* const recording = recording_for(batch);
  if (!recording) return run_plain(batch, lr, metrics);
  set_rate(lr);
  run_recorded(*recording, batch);
  if (!failure_.empty()) return run_plain(batch, lr, metrics);
  Ledger::Scope host(ledger_, Phase::kHost);
  metrics.add(recording->counted);
}

// One kernel launch, so only if the schedule has changed it.
void GraphedStep::set_rate(double lr) {
  if (std::exchange(set_rate_, lr) != lr) rate_.fill_(lr);
}

// Null if the batch has to take the eager step.
GraphedStep::Recording* GraphedStep::recording_for(const DeviceBatch& batch) {
  if (!failure_.empty() || batch.count() != setup_.batch || batch.mixed_labels.defined())
    return nullptr;
  DeviceBatch like = batch;
  for (const auto& recording : recordings_)
    if (is_alike(recording->inputs, like)) return recording.get();
  if (setup_.changes_size && !recordings_.empty() && !has_size_of(recordings_[0]->inputs, batch))
    recordings_.clear();
  if (recordings_.size() == kMostShapes) {
    stop_capturing("the inputs keep changing their shape");
    return nullptr;
  }
  for (at::Tensor* input : inputs_of(like))
    if (input->defined())
      *input = at::empty_strided(input->sizes(), input->strides(), input->options());
  recordings_.push_back(std::make_unique<Recording>(step_.task()));
  recordings_.back()->inputs = std::move(like);
  recordings_.back()->graph = setup_.make();
  return recordings_.back().get();
}

void GraphedStep::run_recorded(Recording& recording, const DeviceBatch& batch) {
  {
    Ledger::Scope copy(ledger_, Phase::kCopy);
    DeviceBatch from = batch;
    const auto to = inputs_of(recording.inputs), given = inputs_of(from);
    for (size_t i = 0; i < to.size(); ++i)
      if (to[i]->defined()) to[i]->copy_(*given[i], /*non_blocking=*/true);
  }
  // Reads nothing that changes between steps except the inputs and the learning-rate scalar: a host
  // number would be frozen at its captured value.
  const auto body = [this, &recording] {
    DeviceBatch inputs = recording.inputs;
    finish(inputs);
    recording.counted = RunningMetrics(step_.task());
    step_.run(inputs, std::numeric_limits<double>::quiet_NaN(), recording.counted);
  };
  Ledger::Scope scope(ledger_, Phase::kForward);
  if (recording.warm_ups < kWarmUp) {
    ++recording.warm_ups;
    recording.graph->warm_up(body);
  } else if (recording.is_recorded || record(recording, body)) {
    recording.graph->replay();
    ++replayed_;
  }
}

void GraphedStep::finish(DeviceBatch& batch) const {
  if (!batch.is_unfinished()) return;
  Ledger::Scope scope(ledger_, Phase::kAugment);
  setup_.finish(batch);
}

// False if capture fails.
bool GraphedStep::record(Recording& recording, const std::function<void()>& body) {
  try {
    const Ledger::HostOnly unmarked(ledger_);
    recording.graph->capture(body);
  } catch (const std::exception& error) {
    step_.abandon();
    stop_capturing(first_line(error.what()));
    return false;
  }
  ++recorded_;
  recording.is_recorded = true;
  return true;
}

void GraphedStep::run_plain(DeviceBatch& batch, double lr, RunningMetrics& metrics) {
  finish(batch);
  if (failure_.empty()) set_rate(lr);
  step_.run(batch, lr, metrics);
}

void GraphedStep::stop_capturing(const std::string& why) {
  failure_ = why;
  optimizer_.read_rate_from({});
  recordings_.clear();
}

}  // namespace saturate
