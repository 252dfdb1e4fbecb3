#include "saturate/feed.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "feed/batch_pipeline.h"
#include "feed/batch_stages.h"
#include "feed/batch_unpacker.h"
#include "trace/stream_clock.h"

namespace saturate {

BufferAllocator batch_allocator(const at::Device& device) {
  if (device.is_cpu()) return {};
  return [](size_t bytes) {
    at::Tensor memory = host_bytes(int64_t(bytes));
    auto* data = static_cast<std::byte*>(memory.data_ptr());
    return std::shared_ptr<std::byte>(data, [memory](std::byte*) mutable { memory.reset(); });
  };
}

struct Feeder::State {
  Loader& loader;
  BatchStages stages;
  Ledger& ledger;
  StreamClock* clock;
  Batch batch = {};  // the loader's next
  std::optional<DeviceBatch> held = {};
  std::unique_ptr<BatchPipeline> pipeline = {};  // null: no pipeline
  bool more = true;                              // the loader may have more batches of the epoch
  bool leaves = false;                           // leave the last stage to finish()
  std::deque<std::shared_ptr<UnpackCheck>> checks = {};  // of batches returned by next()
  std::exception_ptr failure = {};  // the loader's, thrown after the batches before it
  std::chrono::nanoseconds network_wait = loader.network_wait();  // when the ledger was last told
  DecodedImages decoded = {};

  void tell_network_wait() {
    const auto now = loader.network_wait();
    ledger.add_network_wait((now - std::exchange(network_wait, now)).count());
  }

  bool take() {
    Ledger::Scope wait(ledger, Phase::kWait);
    bool found = false;
    try {
      found = loader.next(batch);
    } catch (...) {
      tell_network_wait();  // the wait for a store that stayed away
      throw;
    }
    tell_network_wait();
    if (found && batch.packs) {
      const auto packed = std::ranges::count(batch.samples, true, &BatchSample::is_packed);
      decoded.on_device += packed;
      decoded.by_loader += int64_t(batch.count()) - packed;
    }
    return found;
  }

  bool next_in_order(DeviceBatch& out) {
    out = {};  // return the last batch's memory to the loader before waiting for the next
    if (!take()) return false;
    const StreamClock::Work busy(clock, kStepStream);
    {
      Ledger::Scope copy(ledger, Phase::kCopy);
      stages.copy(batch, out, /*async=*/false);
    }
    batch.pixels.reset();
    batch.masks.reset();
    const bool augments = out.effects.defined() || out.columns;
    Ledger::Scope finish(ledger, augments ? Phase::kAugment : Phase::kCopy);
    if (leaves) return true;
    stages.finish(out);
    mix_batch(batch.mix, out);
    return true;
  }

  // Launches as many batches as are ready, but at least one.
  void fill_pipeline() {
    while (more && !pipeline->is_full() && (pipeline->is_empty() || loader.ready() > 0)) {
      try {
        more = take();
      } catch (...) {
        more = false;
        failure = std::current_exception();
      }
      if (more) pipeline->launch(batch);
    }
  }

  bool next_in_pipeline(DeviceBatch& out) {
    out = {};
    fill_pipeline();
    if (pipeline->is_empty()) {
      if (failure) std::rethrow_exception(failure);
      return false;
    }
    pipeline->deliver(out, leaves, ledger);
    return true;
  }

  // Looks at the batches that next() has returned. One that fails stays, so that it fails again.
  void check_returned(bool wait) {
    if (checks.empty()) return;
    const Ledger::Scope scope(ledger, Phase::kWait);
    while (!checks.empty() && checks.front()->passes(wait, loader)) checks.pop_front();
  }

  void forget() {
    if (pipeline) pipeline->reset();
    more = true;
    failure = nullptr;
  }
};

Feeder::Feeder(Loader& loader, const at::Device& device, bool channels_last, Ledger& ledger,
               const AugmentOptions& augment, HeldImages held, StreamClock* clock)
    : state_(new State{loader, {device, channels_last, augment, std::move(held)}, ledger, clock}) {}

Feeder::~Feeder() = default;

void Feeder::use_pipeline(PipelineSetup setup) {
  state_->pipeline =
      std::make_unique<BatchPipeline>(state_->stages, std::move(setup), state_->clock);
}

void Feeder::drop_pipeline() noexcept {
  state_->pipeline.reset();
}

void Feeder::start_epoch(uint32_t epoch, size_t first_batch) {
  state_->forget();
  state_->loader.start_epoch(epoch, first_batch);
}

void Feeder::stop() {
  state_->forget();
  state_->loader.stop();
  state_->check_returned(/*wait=*/true);
}

void Feeder::settle() {
  if (state_->pipeline) state_->pipeline->settle();
}

bool Feeder::next(DeviceBatch& out) {
  if (state_->held) {
    out = *state_->held;
    return true;
  }
  state_->check_returned(/*wait=*/false);
  const bool found = state_->pipeline ? state_->next_in_pipeline(out) : state_->next_in_order(out);
  if (!found) state_->check_returned(/*wait=*/true);
  if (out.unpacked) state_->checks.push_back(std::move(out.unpacked));
  return found;
}

void Feeder::leave_unfinished(bool leaves) {
  state_->leaves = leaves;
}

void Feeder::finish(DeviceBatch& batch) const {
  state_->stages.finish(batch);
}

DecodedImages Feeder::decoded() const {
  return state_->decoded;
}

void Feeder::hold(DeviceBatch batch) {
  state_->held = std::move(batch);
}
void Feeder::release() {
  state_->held.reset();
}
bool Feeder::holds() const {
  return state_->held.has_value();
}

}  // namespace saturate
