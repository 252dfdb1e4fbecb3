#include "saturate/data/loader.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "base/spans.h"
#include "base/thread_pool.h"
#include "data/batch_ring.h"
#include "data/buffer_pool.h"
#include "data/read_ahead.h"
#include "data/require.h"
#include "data/sample_reader.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kSkippedKept = 100;

size_t image_bytes(const LoaderOptions& options, const AugmentOptions& augment) {
  if (options.places) return 0;
  return size_t(augment.size) * size_t(augment.size) * 3 * bytes_of(options.type);
}

size_t mask_bytes(const LoaderOptions& options, const AugmentOptions& augment) {
  return options.masks ? size_t(augment.size) * size_t(augment.size) : 0;
}

// This process's samples of a full batch.
size_t share_of_batch(const LoaderOptions& options) {
  const size_t world = size_t(options.shard.world), rank = size_t(options.shard.rank);
  return (options.batch + world - 1 - rank) / world;
}

// Few enough to divide each batch evenly among threads, enough to amortise the cost of claiming.
size_t samples_a_claim(const LoaderOptions& options) {
  return std::clamp<size_t>(share_of_batch(options) / (4 * size_t(options.threads)), 1, 16);
}

void check(const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment) {
  require(options.batch > 0, "batch is empty", "train.batch", "Set it to 1 or more");
  require(options.batch >= size_t(options.shard.world), "some processes have no sample",
          "train.batch", "Give each at least one");
  require(options.threads > 0, "no loader thread", "data.threads", "Set it to 1 or more");
  require(options.nice >= 0, "loader threads cannot have a raised priority", "data.nice",
          "Set it to 0 or more");
  require(options.prefetch > 0, "no batch in flight", "data.prefetch", "Set it to 1 or more");
  require(!options.planar || options.type != PixelType::kUint8, "bytes are never planar",
          "LoaderOptions::planar", "Ask for kFloat32");
  require(options.finish || options.type == PixelType::kUint8, "floats cannot be left unfinished",
          "LoaderOptions::finish", "Ask for kUint8");
  require(!options.places || !options.finish, "places need unfinished batches",
          "LoaderOptions::places", "Leave the batches unfinished");
  require(!options.masks || dataset.has_masks(), "the source has no masks", "data.source",
          "Give masks:PATH, or synth:masks=true,...");
  require(!options.masks || !options.places, "masks cannot be combined with places",
          "LoaderOptions::masks", "Leave places out");
  require(augment.size > 0, "size of the images is not set", "augment.size", "Set it to 1 or more");
  require(augment.policy_ops <= 8, "more operations than an EffectList has room for",
          "augment.policy", "Give rand 8 operations or less");
  make_normalize(augment);  // fails here, and not on a thread, which could not report it
  require(options.shuffle.block > 0, "no sample in a block", "data.shuffle", "Set it to 1 or more");
  require(dataset.size() <= UINT32_MAX, "source has more than 2^32 - 1 samples", "data.source",
          "Split it");
}

bool is_data_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.kind() == ErrorKind::kData;
  } catch (...) {
    return false;
  }
}

std::string reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.reason();
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

struct Loader::State {
  const Dataset& dataset;
  const LoaderOptions options;
  const AugmentOptions augment;
  const size_t image_size, mask_size;  // bytes
  BufferPool buffers;
  ReadAhead ahead;
  BatchRing ring;
  size_t taken = 0;            // batches of the epoch already consumed or skipped
  bool ended = true;           // stop() was called since the epoch began
  std::exception_ptr failure;  // the error that ended the epoch; consumer only
  uint32_t epoch = 0;          // consumer only

  mutable std::mutex mutex;
  std::unordered_set<uint32_t> skipped_indices;  // guarded by mutex
  std::vector<SkippedSample> skipped;            // guarded by mutex
  std::exception_ptr lost;                       // a failure outside any batch; guarded by mutex

  ThreadPool threads;  // last: its threads use all of the above

  State(const Dataset& data, const LoaderOptions& opt, const AugmentOptions& aug,
        BufferAllocator allocate)
      : dataset(data),
        options(opt),
        augment(aug),
        image_size(image_bytes(opt, aug)),
        mask_size(mask_bytes(opt, aug)),
        buffers((image_size + mask_size) * share_of_batch(opt), std::move(allocate)),
        ahead(data, opt.shuffle, opt.seed),
        ring(size_t(opt.prefetch), share_of_batch(opt), samples_a_claim(opt), !opt.finish,
             opt.places, opt.wait_limit,
             [this] { return options.places ? nullptr : buffers.take(); }),
        threads(opt.threads, "loader", opt.nice) {
    try {
      for (int i = 0; i < options.threads; ++i) threads.submit([this] { work(); });
    } catch (...) {
      ring.shut_down();  // otherwise the destructor would wait for threads that have begun
      throw;
    }
  }

  void work() {
    std::optional<SampleReader> reader;
    std::optional<Claim> claimed;
    std::vector<SampleFailure> failures;
    while (ring.claim(claimed, failures)) {
      const size_t end = claimed->first + claimed->count;
      for (size_t place = claimed->first; place < end && !ring.stopping(); ++place)
        fill(reader, *claimed, place, failures);
    }
  }

  // Creates the reader for the first sample, which fails with it if memory is short.
  void fill(std::optional<SampleReader>& made, const Claim& claim, size_t place,
            std::vector<SampleFailure>& failures) {
    const Span span("sample");
    BatchSlot& slot = *claim.slot;
    try {
      SampleReader& reader = made ? *made : made.emplace(dataset, options, augment);
      const uint32_t index = slot.indices[place];
      EffectList* const effects = options.finish ? nullptr : &slot.effects[place];
      slot.labels[place] = handed_out(
          options.places
              ? reader.locate(claim.epoch, index, slot.places[place], *effects)
              : reader.read(claim.epoch, index, slot.pixels.get() + place * image_size, effects));
      if (options.masks) reader.read_mask(masks_of(slot) + place * mask_size);
      if (options.names) slot.names[place] = reader.name();
    } catch (...) {
      note_failure(made, slot, place, failures);
    }
  }

  // Called when filling a sample has thrown. No exception may leave a thread, as this would end the
  // process: not even when out of memory.
  void note_failure(const std::optional<SampleReader>& reader, const BatchSlot& slot, size_t place,
                    std::vector<SampleFailure>& failures) {
    const std::exception_ptr error = std::current_exception();
    try {
      const bool named = reader && !reader->name().empty();
      failures.push_back(
          {place, named ? reader->name() : "sample " + std::to_string(slot.indices[place]), error});
    } catch (...) {
      std::lock_guard lock(mutex);
      lost = error;
    }
  }

  int64_t handed_out(int64_t label) const {
    return label >= 0 && size_t(label) < options.labels.size() ? options.labels[size_t(label)]
                                                               : label;
  }

  // They are stored behind the images of a full batch.
  uint8_t* masks_of(const BatchSlot& slot) const {
    return reinterpret_cast<uint8_t*>(slot.pixels.get() + image_size * share_of_batch(options));
  }

  // Fails with the first failure, in order, that must not be skipped; then removes the gaps.
  void settle(BatchSlot& slot) {
    {
      std::lock_guard lock(mutex);
      if (lost) std::rethrow_exception(lost);
    }
    auto& failures = slot.failures;
    if (failures.empty()) return;
    std::sort(failures.begin(), failures.end(),
              [](const auto& a, const auto& b) { return a.slot < b.slot; });
    for (const SampleFailure& failed : failures)
      if (options.on_error == OnError::kFail || !is_data_error(failed.error))
        std::rethrow_exception(failed.error);
    note_skipped(slot);
    for (const SampleFailure& failed : failures) slot.labels[failed.slot] = kHole;
    size_t kept = 0;
    for (size_t i = 0; i < slot.labels.size(); ++i) {
      if (slot.labels[i] == kHole) continue;
      if (kept != i) {
        if (!options.places)
          std::memcpy(slot.pixels.get() + kept * image_size, slot.pixels.get() + i * image_size,
                      image_size);
        if (options.masks)
          std::memcpy(masks_of(slot) + kept * mask_size, masks_of(slot) + i * mask_size, mask_size);
        slot.labels[kept] = slot.labels[i];
        slot.indices[kept] = slot.indices[i];
        if (options.names) slot.names[kept] = std::move(slot.names[i]);
        if (!options.finish) slot.effects[kept] = slot.effects[i];
        if (options.places) slot.places[kept] = slot.places[i];
      }
      ++kept;
    }
    slot.labels.resize(kept);
    slot.indices.resize(kept);
    if (options.names) slot.names.resize(kept);
    if (!options.finish) slot.effects.resize(kept);
    if (options.places) slot.places.resize(kept);
  }

  void note_skipped(const BatchSlot& slot) {
    std::lock_guard lock(mutex);
    for (const SampleFailure& failed : slot.failures)
      if (skipped_indices.insert(slot.indices[failed.slot]).second && skipped.size() < kSkippedKept)
        skipped.push_back({failed.name, reason_of(failed.error)});
  }
  static constexpr int64_t kHole = INT64_MIN;  // never a dataset's label

  size_t epoch_size() const { return epoch_samples(dataset.size(), options.shard); }
  size_t batches() const {
    const size_t size = epoch_size(), batch = options.batch;
    return options.drop_last ? size / batch : (size + batch - 1) / batch;
  }
  bool alone() const { return options.shard.world == 1; }

  // The properties of the next batch, and its number of samples over all processes.
  void describe(Batch& out) const {
    out.type = options.type;
    out.planar = options.planar;
    out.size = augment.size;
    out.whole = std::min(options.batch, epoch_size() - taken * options.batch);
    out.place = taken;
  }

  bool next(Batch& out) {
    while (BatchSlot* slot = ring.front()) {
      const uint32_t first = slot->indices.front();
      settle(*slot);
      const bool empty = slot->labels.empty();
      if (!empty || !alone()) {
        describe(out);
        if (options.masks)
          out.masks = {slot->pixels, reinterpret_cast<std::byte*>(masks_of(*slot))};
        out.pixels = std::move(slot->pixels);
        out.labels.swap(slot->labels);
        out.indices.swap(slot->indices);
        if (options.names) out.names.swap(slot->names);
        out.effects.swap(slot->effects);
        out.places.swap(slot->places);
        if (alone()) out.whole = out.count();
        out.mix = options.train && !empty
                      ? draw_mix(augment, {options.seed, epoch, first}, out.count())
                      : Mix();
      }
      ring.release();
      ahead.advance(++taken * options.batch);
      if (!empty || !alone()) return true;
    }
    // The last batch may have fewer samples than processes, and none for this one.
    if (alone() || ended || taken >= batches()) return false;
    describe(out);
    if (!options.places) out.pixels = buffers.take();
    ++taken;
    return true;
  }
};

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment,
               BufferAllocator allocate) {
  check(dataset, options, augment);
  state_ = std::make_unique<State>(dataset, options, augment, std::move(allocate));
}

Loader::~Loader() {
  state_->ring.shut_down();
}

size_t Loader::batches() const {
  return state_->batches();
}

void Loader::start_epoch(uint32_t epoch, size_t first_batch) {
  stop();
  const LoaderOptions& options = state_->options;
  auto order = epoch_order(state_->dataset.size(), options.seed, epoch, options.shuffle);
  if (options.drop_last) order.resize(std::min(order.size(), batches() * options.batch));
  if (!state_->alone()) order = rank_order(order, options.batch, options.shard);
  const size_t end = std::min(order.size(), batches() * share_of_batch(options));
  state_->epoch = epoch;
  state_->ended = false;
  try {
    state_->taken = std::min(first_batch, batches());
    state_->ahead.start(epoch, state_->taken * options.batch);
    state_->ring.start(epoch, std::move(order), state_->taken, end);
  } catch (...) {
    state_->failure =
        std::current_exception();  // otherwise a part of the epoch would be taken for all of it
    throw;
  }
}

bool Loader::next(Batch& out) {
  out.pixels.reset();
  out.masks.reset();
  out.labels.clear();
  out.indices.clear();
  out.names.clear();
  out.effects.clear();
  out.places.clear();
  if (state_->failure) std::rethrow_exception(state_->failure);
  try {
    return state_->next(out);
  } catch (...) {
    state_->failure = std::current_exception();
    throw;
  }
}

bool Loader::wait(std::chrono::nanoseconds limit) {
  return state_->failure || state_->ring.wait(limit);
}

void Loader::stop() {
  state_->ring.stop();
  state_->ended = true;
  state_->failure = nullptr;
  std::lock_guard lock(state_->mutex);
  state_->lost = nullptr;
}

size_t Loader::ready() const {
  return state_->ring.ready();
}

size_t Loader::skipped_count() const {
  std::lock_guard lock(state_->mutex);
  return state_->skipped_indices.size();
}

std::vector<SkippedSample> Loader::skipped() const {
  std::lock_guard lock(state_->mutex);
  return state_->skipped;
}

}  // namespace saturate
