#include "saturate/data/loader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <unordered_set>
#include <utility>

#include "base/cancel.h"
#include "base/mutex.h"
#include "base/network_wait.h"
#include "base/spans.h"
#include "base/thread_pool.h"
#include "data/batch_memory.h"
#include "data/batch_ring.h"
#include "data/loader_check.h"
#include "data/padding.h"
#include "data/read_ahead.h"
#include "data/sample_reader.h"
#include "data/source_index.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kSkippedKept = 100;

// Few enough to divide each batch evenly among threads, enough to amortise the cost of claiming.
size_t samples_a_claim(const LoaderOptions& options) {
  return std::clamp<size_t>(local_batch_size(options) / (4 * size_t(options.threads)), 1, 16);
}

}  // namespace

struct Loader::State {
  const Dataset& dataset;
  const LoaderOptions options;
  const AugmentOptions augment;
  AugmentOptions now;                 // of this epoch; before the first with the largest size
  std::vector<SampleColumn> columns;  // of this epoch, and an empty one after the last
  const std::shared_ptr<const std::vector<BatchColumn>> fields;  // null for images
  Padding padding;
  SourceIndex* const source_index;  // null: the dataset has none
  ScanIndex own_index;
  ScanIndex* const scan_index;  // null: off
  BufferPool buffers;
  CropRows rows;    // of this epoch and the next
  ReadAhead ahead;  // of nothing if samples are held: they are not read
  BatchRing ring;
  size_t taken = 0;   // batches of the epoch already consumed or skipped
  bool ended = true;  // stop() was called since the epoch began
  // The first sample of the epoch's order that has failed and must not be skipped: none after it is
  // begun, and their waits end.
  std::atomic<size_t> failed_at{SIZE_MAX};
  std::exception_ptr failure;  // the error that ended the epoch; consumer only
  uint32_t epoch = 0;          // consumer only

  mutable Mutex mutex;
  std::unordered_set<uint32_t> skipped_indices GUARDED_BY(mutex);
  std::vector<SkippedSample> skipped GUARDED_BY(mutex);
  std::exception_ptr lost GUARDED_BY(mutex);  // a failure outside any batch

  ThreadPool threads;  // last: its threads use all of the above

  State(const Dataset& data, const LoaderOptions& opt, const AugmentOptions& aug,
        BufferAllocator allocate)
      : dataset(data),
        options(opt),
        augment(aug),
        now(aug),
        columns(columns_of(data, opt, aug)),
        fields(fields_of(data, opt, aug, columns)),
        padding(data, columns, fields),
        source_index(data.source_index()),
        scan_index(source_index ? source_index->points() : &own_index),
        buffers(columns.back().offset, std::move(allocate)),
        rows(data, options, augment),
        ahead(data, opt.shuffle, opt.seed, size_t(opt.prefetch + 1) * local_batch_size(opt),
              opt.output == BatchOutput::kPlaces,
              // Orders by length are not known in advance.
              opt.train && (data.size() == 0 || data.length(0) == 0) ? &opt : nullptr, &rows,
              {opt.train ? opt.epochs : 0, [this](uint32_t later) { return own_order(later); }}),
        ring(size_t(opt.prefetch), local_batch_size(opt), samples_a_claim(opt), opt.wait_limit,
             [this](BatchSlot& slot) { provide_memory(slot); }),
        threads(opt.threads, "loader", opt.nice) {
    try {
      for (int i = 0; i < options.threads; ++i) threads.submit([this] { work(); });
    } catch (...) {
      ring.shut_down();  // otherwise the destructor would wait for threads that have begun
      throw;
    }
  }

  std::shared_ptr<std::byte> take_buffer() {
    return options.output == BatchOutput::kPlaces ? nullptr : buffers.take();
  }

  void provide_memory(BatchSlot& slot) {
    slot.batch.pixels = take_buffer();
    if (options.packs)
      slot.room.begin(slot.batch.pixels.get(), slot.batch.count(), columns[0].size);
  }

  void work() {
    std::optional<SampleReader> reader;
    std::optional<Claim> claimed;
    std::vector<SampleFailure> failures;
    size_t position = 0;  // in the epoch's order
    const auto is_unwanted = [&] { return ring.stopping() || position > failed_at; };
    const CancelScope scope(is_unwanted);
    const NetworkWaitScope network([this](bool waits) { ring.set_blocked(waits); });
    while (ring.claim(claimed, failures)) {
      for (size_t i = 0; i < claimed->count; ++i) {
        const size_t place = claimed->first + i;
        position = position_of(*claimed, place);
        if (!is_unwanted()) fill(reader, *claimed, place, failures);
      }
      if (!source_index || !source_index->is_due()) continue;
      ring.finish(claimed, failures);  // no batch waits for it
      source_index->tend();
    }
  }

  size_t position_of(const Claim& claim, size_t place) const {
    return claim.batch * local_batch_size(options) + place;
  }

  bool may_skip(const SampleFailure& failed) const {
    return options.on_error == OnError::kSkip && failed.data_error();
  }

  // Creates the reader for the first sample, which fails with it if memory is short.
  void fill(std::optional<SampleReader>& made, const Claim& claim, size_t place,
            std::vector<SampleFailure>& failures) {
    const Span span("sample");
    Batch& batch = claim.slot->batch;
    BatchSample& sample = batch.samples[place];
    try {
      SampleReader& reader =
          made ? *made : made.emplace(dataset, options, augment, scan_index, &rows);
      if (fields)
        reader.read_tensors(claim.epoch, sample, padding.extent(claim.batch, sample.index),
                            addresses_of(claim, place));
      else if (options.packs)
        reader.read(claim.epoch, sample, claim.slot->room);
      else
        reader.read(claim.epoch, sample, batch.pixels.get() + place * columns[0].size);
      sample.label = handed_out(sample.label);
      if (options.masks) reader.read_mask(masks_of(batch) + place * columns[1].size);
      sample.name.clear();
      if (options.names) sample.name = name_of(made, sample.index);
    } catch (...) {
      note_failure(made, claim, place, failures);
    }
  }

  // Where the fields of a sample are written.
  std::function<std::byte*(size_t)> addresses_of(const Claim& claim, size_t place) const {
    return [this, &claim, place](size_t field) {
      return claim.slot->batch.pixels.get() + columns[field].offset +
             place * padding.stride(field, claim.batch);
    };
  }

  // Called when filling a sample has thrown. No exception may leave a thread, as this would end the
  // process: not even when out of memory.
  void note_failure(const std::optional<SampleReader>& reader, const Claim& claim, size_t place,
                    std::vector<SampleFailure>& failures) {
    const std::exception_ptr error = std::current_exception();
    try {
      const uint32_t index = claim.slot->batch.samples[place].index;
      failures.push_back({place, name_of(reader, index), error});
      const size_t position = position_of(claim, place);
      for (size_t first = failed_at; position < first && !may_skip(failures.back());)
        if (failed_at.compare_exchange_weak(first, position)) break;
    } catch (...) {
      const MutexLock lock(mutex);
      lost = error;
    }
  }

  // The name of the sample that was last read; never empty.
  static std::string name_of(const std::optional<SampleReader>& reader, uint32_t index) {
    return reader && !reader->name().empty() ? reader->name() : "sample " + std::to_string(index);
  }

  int64_t handed_out(int64_t label) const {
    return label >= 0 && size_t(label) < options.labels.size() ? options.labels[size_t(label)]
                                                               : label;
  }

  uint8_t* masks_of(const Batch& batch) const {
    return reinterpret_cast<uint8_t*>(batch.pixels.get() + columns[1].offset);
  }

  // Fails with the first failure, in order, that must not be skipped; then removes the gaps, of
  // which a packing loader's pixels have none.
  void settle(BatchSlot& slot) {
    {
      const MutexLock lock(mutex);
      if (lost) std::rethrow_exception(lost);
    }
    auto& failures = slot.failures;
    if (failures.empty()) return;
    std::ranges::sort(failures, {}, &SampleFailure::slot);
    for (const SampleFailure& failed : failures)
      if (!may_skip(failed)) std::rethrow_exception(failed.error);
    note_skipped(slot);
    Batch& batch = slot.batch;
    auto failed = failures.begin();
    size_t kept = 0;
    for (size_t i = 0; i < batch.count(); ++i) {
      if (failed != failures.end() && failed->slot == i) {
        ++failed;
        continue;
      }
      if (kept != i) {
        for (size_t c = options.packs ? 1 : 0; c < columns.size(); ++c) {
          const size_t size = padding.stride(c, taken);
          if (size == 0) continue;
          std::byte* const values = batch.pixels.get() + columns[c].offset;
          std::memcpy(values + kept * size, values + i * size, size);
        }
        batch.samples[kept] = std::move(batch.samples[i]);
      }
      ++kept;
    }
    batch.samples.resize(kept);
  }

  void note_skipped(const BatchSlot& slot) {
    const MutexLock lock(mutex);
    for (const SampleFailure& failed : slot.failures)
      if (skipped_indices.insert(slot.batch.samples[failed.slot].index).second &&
          skipped.size() < kSkippedKept)
        skipped.push_back({failed.name, *failed.data_error()});
  }

  // Samples of all batches, over all processes.
  size_t epoch_size() const {
    const size_t size = epoch_samples(dataset.size(), options.shard);
    return options.drop_last ? size - size % options.batch : size;
  }
  size_t batches() const { return (epoch_size() + options.batch - 1) / options.batch; }
  bool alone() const { return options.shard.world == 1; }

  // The order of all processes.
  std::vector<uint32_t> whole_order(uint32_t number) const {
    auto order = epoch_order(dataset.size(), options.seed, number, options.shuffle);
    if (options.drop_last) order.resize(std::min(order.size(), epoch_size()));
    padding.group(number, options, order);
    return order;
  }
  // This one's.
  std::vector<uint32_t> own_order(std::vector<uint32_t> order) const {
    if (alone()) return order;
    return rank_order(order, options.batch, options.shard, epoch_size());
  }
  std::vector<uint32_t> own_order(uint32_t number) const { return own_order(whole_order(number)); }

  // REQUIRES: no thread fills a batch.
  void set_epoch(uint32_t number) {
    epoch = number;
    rows.begin(epoch);
    if (!options.train || augment.size_changes.empty()) return;
    now = augment.of_epoch(epoch);
    columns = columns_of(dataset, options, now);
  }

  // The properties of the next batch, and its number of samples over all processes.
  void describe(Batch& out) const {
    out.output = options.output;
    out.type = options.pixel_type();
    out.size = now.size;
    out.packs = options.packs;
    out.decoding_finishes = options.packs && !(options.train && has_effects(augment));
    out.columns = padding.columns(taken);
    out.mix = {};
    out.global_batch = std::min(options.batch, epoch_size() - taken * options.batch);
    out.place = taken;
  }

  bool next(Batch& out) {
    while (BatchSlot* slot = ring.front()) {
      const uint32_t first = slot->batch.samples.front().index;
      settle(*slot);
      const bool empty = slot->batch.samples.empty();
      if (!empty || !alone()) {
        std::swap(out, slot->batch);  // the ring fills the consumer's samples again
        describe(out);
        if (options.masks) out.masks = {out.pixels, reinterpret_cast<std::byte*>(masks_of(out))};
        if (alone()) out.global_batch = out.count();
        if (options.train && !empty)
          out.mix = draw_mix(now, {options.seed, epoch, first}, out.count());
      }
      ring.release();
      ++taken;
      ahead.advance(taken * options.batch, taken * local_batch_size(options));
      if (!empty || !alone()) return true;
    }
    out.samples.clear();
    // The last batch may have fewer samples than processes, and none for this one.
    if (alone() || ended || taken >= batches()) return false;
    describe(out);
    out.pixels = take_buffer();
    ++taken;
    return true;
  }
};

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment,
               BufferAllocator allocate) {
  check_loader(dataset, options, augment);
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
  if (state_->source_index) state_->source_index->begin_epoch();
  const LoaderOptions& options = state_->options;
  auto order = state_->whole_order(epoch);
  state_->padding.start(options.batch, order, state_->epoch_size());
  order = state_->own_order(std::move(order));
  const size_t end = order.size();
  state_->set_epoch(epoch);
  state_->ended = false;
  try {
    state_->taken = std::min(first_batch, batches());
    state_->failed_at = SIZE_MAX;
    state_->ahead.start(epoch, state_->taken * options.batch, order,
                        state_->taken * local_batch_size(options), end);
    state_->ring.start(epoch, std::move(order), state_->taken, end);
  } catch (...) {
    state_->failure = std::current_exception();  // else a part would be taken for the epoch
    throw;
  }
}

bool Loader::next(Batch& out) {
  out.pixels.reset();
  out.masks.reset();
  try {
    if (state_->failure) std::rethrow_exception(state_->failure);
    return state_->next(out);
  } catch (...) {
    out.samples.clear();
    state_->failure = std::current_exception();
    throw;
  }
}

bool Loader::wait(std::chrono::nanoseconds limit) {
  return state_->failure || state_->ring.wait(limit);
}

void Loader::stop() {
  state_->ring.stop();
  state_->ahead.withdraw();
  state_->ended = true;
  state_->failure = nullptr;
  const MutexLock lock(state_->mutex);
  state_->lost = nullptr;
}

size_t Loader::ready() const {
  return state_->ring.ready();
}

std::chrono::nanoseconds Loader::network_wait() const {
  return state_->ring.network_wait();
}

size_t Loader::skipped_count() const {
  const MutexLock lock(state_->mutex);
  return state_->skipped_indices.size();
}

std::string Loader::reject_sample(size_t index) const {
  Sample sample;
  state_->dataset.read(index, sample);
  if (state_->source_index) state_->source_index->remove(scan_key(sample.bytes));
  return sample.name;
}

std::vector<SkippedSample> Loader::skipped() const {
  const MutexLock lock(state_->mutex);
  return state_->skipped;
}

}  // namespace saturate
