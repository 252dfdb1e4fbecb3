// What a run shows of itself beside its records: telemetry, a trace, samples, histograms.
#include <ATen/ops/full.h>

#include "run/trainer_state.h"
#include "saturate/class_results.h"
#include "saturate/error.h"
#include "saturate/flop_counter.h"
#include "saturate/histograms.h"

namespace saturate {

std::unique_ptr<TelemetryLog> Trainer::State::make_telemetry() {
  if (recipe.watch.telemetry_hz == 0) return nullptr;
  TelemetryLog::Sources sources;
  sources.hz = recipe.watch.telemetry_hz;
  sources.queue = [this] { return double(loader.ready()); };
  if (device.is_cuda()) sources.gpu = device.has_index() ? device.index() : 0;
  sources.precision = recipe.precision.mode;
  return std::make_unique<TelemetryLog>(env, std::move(sources));
}

void Trainer::State::prepare_watching() {
  const WatchOptions& watch = recipe.watch;
  if (!watch.trace.empty() || device.is_cuda())
    tracer = std::make_unique<Tracer>(env, ledger, parse_trace(watch.trace, "watch.trace"), device,
                                      options.out);
  // Its pages tell of one class for an image.
  if (watch.samples > 0 && recipe.train.task == Task::kClassify)
    gallery = std::make_unique<SampleGallery>(env, options.out, data->classes(), recipe.augment,
                                              watch.samples);
  if (watch.histograms > 0)
    step->observe_gradients([this] {
      if (is_multiple(position.step + 1, recipe.watch.histograms)) write_histograms();
    });
}

// A run goes on without what it would have shown.
template <class Body>
void Trainer::State::or_warn(const char* what, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    log->warn(std::string(what) + " are not kept, the run goes on: " + error.what());
  }
}

// Finishing changes the bytes, which the step still needs.
DeviceBatch Trainer::State::finished_copy(DeviceBatch batch) const {
  if (batch.unfinished && batch.unfinished->pixels.defined())
    batch.unfinished->pixels = batch.unfinished->pixels.clone();
  feeder.finish(batch);
  return batch;
}

void Trainer::State::compute_step(DeviceBatch& batch) {
  const StreamClock::Work busy(streams.get(), kStepStream);
  if (graphed)
    graphed->run(batch, lr, running);
  else
    step->run(batch, lr, running);
}

void Trainer::State::run_step(DeviceBatch& batch) {
  if (gallery && result.samples == 0) {
    Ledger::Scope host(ledger, Phase::kHost);
    const DeviceBatch shown = finished_copy(batch);
    or_warn("samples of training", [&] {
      log->images(position.step + 1, gallery->write_training(position.step + 1, shown));
    });
  }
  if (!telemetry || result.samples > 0) return compute_step(batch);
  const FlopCounter counter;
  compute_step(batch);
  // A compiled step is not seen into, nor an encoder on another thread: unknown, rather than the
  // little beside it.
  const bool sees_all = recipe.train.compiled.empty() && !recipe.pipeline.encoder;
  if (counter.flop() > 0 && batch.count() > 0 && sees_all)
    telemetry->set_flop_per_sample(double(counter.flop()) / double(batch.count()));
}

void Trainer::State::write_histograms() {
  Ledger::Scope host(ledger, Phase::kHost);
  std::vector<NamedTensor> parameters = model->parameters(), gradients;
  for (const auto& [name, tensor] : parameters) gradients.push_back({name, tensor.grad()});
  auto histograms = histograms_of("parameters", parameters);
  for (auto& histogram : histograms_of("gradients", gradients))
    histograms.push_back(std::move(histogram));
  log->histograms(position.step + 1, histograms);
}

void Trainer::State::trace(bool ended_run) {
  if (!tracer) return;
  const auto note =
      ended_run ? tracer->finish(position.step) : tracer->between_steps(position.step);
  if (!note) return;
  if (note->is_warning)
    log->warn(note->text);
  else
    log->note(note->text);
}

// The cells of all ranks, filled up with -1 to one length.
at::Tensor Trainer::State::all_answers() {
  const at::Tensor own = answers.cells();
  if (!group) return own;
  Ledger::Scope scope(ledger, Phase::kReduce);
  const at::Tensor most = at::full({1}, own.size(0), at::kLong);
  group->max(most);
  if (most.item<int64_t>() == 0) return own;
  const at::Tensor padded = at::full({most.item<int64_t>()}, -1, at::kLong);
  padded.narrow(0, 0, own.size(0)).copy_(own);
  return group->gather(padded).flatten();
}

// Collective.
void Trainer::State::write_classes(const Metrics& found) {
  const bool segments = recipe.train.task == Task::kSegment;
  const at::Tensor cells = segments ? at::Tensor() : all_answers();
  if (!is_first()) return;
  const int64_t outputs = answers.outputs() > 0 ? answers.outputs() : recipe.model.classes;
  ClassResults results =
      segments ? class_results(found.pixels, data->classes())
               : class_results({cells.const_data_ptr<int64_t>(), size_t(cells.numel())}, outputs,
                               data->classes());
  results.step = position.step;
  or_warn("results by class", [&] {
    write_atomically(env, options.out + "/classes.json", class_results_json(results));
  });
}

void Trainer::State::write_mistakes() {
  if (gallery) or_warn("mistakes", [&] { gallery->write_mistakes(position.step); });
}

}  // namespace saturate
