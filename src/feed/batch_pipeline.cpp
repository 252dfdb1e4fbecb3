#include "feed/batch_pipeline.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/spans.h"
#include "feed/device_stream.h"
#include "trace/stream_clock.h"

namespace saturate {

struct BatchPipeline::Flight {
  Batch batch;  // until the copy is done
  DeviceBatch out;
  Stream::Buffer host, copied, finished, features;
  std::shared_ptr<Event> copy_done, ready;
  bool is_finished = false;
};

namespace {

void keep_on_current_stream(const at::Device& device, const std::vector<at::Tensor>& tensors) {
  if (device.is_cpu()) return;
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) tensor.record_stream(current);
}

// Keeps the allocator from reusing `buffer`, made on another stream, before this one is done with
// it. `tensors` returns the buffer's tensors, and is called once they exist.
void keep(Stream& on, Stream::Buffer buffer, const at::Device& device,
          std::function<std::vector<at::Tensor>()> tensors, const Place& place = Place::current()) {
  on.keeps(buffer, place);
  on.submit([device, tensors = std::move(tensors)] { keep_on_current_stream(device, tensors()); });
}

// The CPU's streams have no other memory.
bool is_pinned(const at::Device& device, const Batch& batch) {
  return device.is_cpu() || !batch.pixels ||
         at::from_blob(batch.pixels.get(), {1}, at::TensorOptions(at::kByte)).is_pinned();
}

// Whether finishing the batch is work for Phase::kAugment, as without a pipeline. The loader has
// finished plain tensors, and decoding some packed batches.
bool is_augmented_here(const Batch& batch) {
  const auto is_unfinished = [](const BatchColumn& column) { return column.form.has_value(); };
  return batch.columns ? std::ranges::any_of(*batch.columns, is_unfinished)
                       : batch.type == PixelType::kUint8 && !batch.decoding_finishes;
}

}  // namespace

BatchPipeline::BatchPipeline(const BatchStages& stages, PipelineSetup setup, StreamClock* clock)
    : stages_(stages),
      setup_(std::move(setup)),
      clock_(clock),
      checker_(setup_.stages.check ? std::make_unique<StreamChecker>() : nullptr),
      step_(make_current_stream(kStepStream, stages.device(), checker_.get())),
      weights_(step_->makes("the model's weights")) {
  const PipelineOptions& on = setup_.stages;
  if (on.copy == Toggle::kOn) copy_ = add_stream("copy");
  if (on.augment) finish_ = add_stream("augment");
  if (on.encoder) encode_ = add_stream("encoder");
  if (!finish_) finish_ = encode_;
  if (!copy_) copy_ = finish_;
}

BatchPipeline::~BatchPipeline() {
  reset();
}

Stream* BatchPipeline::add_stream(const char* name) {
  // at::init_num_threads: gives operators as many threads as the step has.
  streams_.push_back(stages_.device().is_cpu()
                         ? make_thread_stream(name, checker_.get(),
                                              [] {
                                                at::init_num_threads();
                                                start_compute_threads();
                                              })
                         : make_device_stream(name, stages_.device(), checker_.get()));
  return streams_.back().get();
}

// Orders earlier work of the caller's stream before that of the others: it moved weights and images
// to the device.
void BatchPipeline::wait_for_step() {
  step_->writes(weights_);
  const auto set_up = step_->record();
  for (const auto& stream : streams_) stream->wait(set_up);
}

void BatchPipeline::launch(Batch& batch) {
  if (!std::exchange(begun_, true)) wait_for_step();
  auto flight = std::make_shared<Flight>();
  flight->batch = std::exchange(batch, std::exchange(spare_, {}));
  flights_.push_back(flight);
  copy(*flight);
  if (finish_) {
    if (finish_ != copy_) finish_->wait(flight->copy_done);
    finish(*flight, *finish_);
    flight->ready = finish_->record();
  }
  if (encode_) {
    if (encode_ != finish_) encode_->wait(flight->ready);
    encode(*flight);
    flight->ready = encode_->record();
  }
}

void BatchPipeline::submit(Stream& on, const char* stage, std::function<void()> work) {
  on.submit([this, &on, stage, work = std::move(work)] {
    const Span span(stage);
    const StreamClock::Work busy(clock_, on.name());
    if (setup_.before) setup_.before(stage);
    work();
  });
}

void BatchPipeline::copy(Flight& flight) {
  flight.host = copy_->host_memory("the loader's batch", is_pinned(stages_.device(), flight.batch));
  flight.copied = copy_->makes("the batch as it was copied");
  copy_->copies_async(flight.host, flight.copied);
  submit(*copy_, "copy",
         [this, &flight] { stages_.copy(flight.batch, flight.out, /*async=*/true); });
  flight.copy_done = flight.ready = copy_->record();
}

void BatchPipeline::finish(Flight& flight, Stream& on, bool leave) {
  on.reads(flight.copied);
  if (&on != copy_)
    keep(on, flight.copied, stages_.device(), [&out = flight.out] {
      return std::vector{out.images, out.pixels, out.effects, out.places, out.labels};
    });
  flight.finished = on.makes("the batch");
  flight.is_finished = true;
  submit(on, "augment", [this, &flight, leave] {
    if (leave) return;
    stages_.finish(flight.out);
    mix_batch(flight.batch.mix, flight.out);
  });
}

void BatchPipeline::encode(Flight& flight) {
  encode_->reads(weights_);
  encode_->reads(flight.finished);
  if (encode_ != finish_)
    keep(*encode_, flight.finished, stages_.device(),
         [&out = flight.out] { return std::vector{out.images}; });
  flight.features = encode_->makes("its features");
  submit(*encode_, "encode",
         [this, &flight] { flight.out.features = setup_.encode(flight.out.images); });
}

void BatchPipeline::deliver(DeviceBatch& out, bool leave, Ledger& ledger) {
  std::optional<Ledger::Scope> scope(std::in_place, ledger, Phase::kWait);
  if (used_) release(*used_);
  used_ = std::move(flights_.front());
  flights_.pop_front();
  Flight& flight = *used_;
  step_->wait(flight.ready);
  if (!flight.is_finished) {
    if (is_augmented_here(flight.batch)) scope.reset(), scope.emplace(ledger, Phase::kAugment);
    finish(flight, *step_, leave);
  }
  out = std::move(flight.out);
  step_->reads(flight.finished);
  if (finish_)
    keep(*step_, flight.finished, stages_.device(), [&out] {
      return std::vector{out.images, out.labels, out.mixed_labels};
    });
  if (encode_) {
    step_->reads(flight.features);
    keep(*step_, flight.features, stages_.device(), [&out] { return out.features; });
  }
  step_->frees(flight.copied);
  copied_.push_back(used_);
  drop_copied();
}

// Returns host memory to the loader as soon as its copies are done.
void BatchPipeline::drop_copied() {
  while (!copied_.empty() && copy_->is_done(copied_.front()->copy_done)) {
    copy_->frees(copied_.front()->host);
    spare_ = std::move(copied_.front()->batch);
    spare_.pixels.reset();
    spare_.masks.reset();
    copied_.pop_front();
  }
}

// The step is done with the batch.
void BatchPipeline::release(Flight& flight) {
  step_->frees(flight.finished);
  if (encode_) step_->frees(flight.features);
}

void BatchPipeline::settle() {
  for (const auto& flight : flights_) step_->host_waits(flight->ready);
}

// Waits for the streams, not for the batches: a delivered batch may still be copied from the
// loader's memory, and one that failed to launch has no event.
void BatchPipeline::reset() {
  for (const auto& stream : streams_) {
    try {
      step_->host_waits(stream->record());
    } catch (...) {  // of a discarded batch
    }
  }
  flights_.clear();
  copied_.clear();
  used_.reset();
  begun_ = false;
}

}  // namespace saturate
