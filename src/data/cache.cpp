// Samples cached in memory. Cached samples stay until the end, so readers need no lock and get
// pointers, not copies. If the budget is too small, the order of reading determines which samples
// are cached, but never their contents.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/cgroup.h"
#include "base/local_processes.h"
#include "base/mutex.h"
#include "base/system_file.h"
#include "base/thread_pool.h"
#include "data/read_sample.h"
#include "data/scratch_pool.h"
#include "data/source_index.h"
#include "data/sources.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"

namespace saturate {
namespace {

std::atomic<uint64_t> held{0};  // bytes, over all caches

// More than any machine has; 2^64 and more would overflow uint64_t.
constexpr double kMostBytes = 1e18;

struct Kept {
  Sample sample;          // kEncoded
  DecodedSample decoded;  // kDecoded
  uint64_t bytes() const {
    return sizeof *this + sample.bytes.capacity() + sample.name.capacity() +
           sample.mask.bytes.capacity() + sample.mask.name.capacity() +
           decoded.image.pixels.capacity() + decoded.name.capacity() +
           decoded.mask.classes.capacity();
  }
};

class CachedDataset : public WrappedSource<Dataset> {
 public:
  CachedDataset(std::unique_ptr<Dataset> source, const CacheOptions& options)
      : WrappedSource(std::move(source)),
        decodes_(options.form == CacheForm::kDecoded && source_->tensors().empty()),
        limit_(options.gb > 0 ? uint64_t(std::min(options.gb * 1e9, kMostBytes))
                              : held + available_memory() / 2 / local_processes()),
        slots_(source_->size()) {}
  ~CachedDataset() override {
    for (const std::atomic<Kept*>& slot : slots_) {
      if (const Kept* kept = slot) held -= kept->bytes();
      delete slot;
    }
    for (const auto& [index, kept] : dropped_)
      if (kept) held -= kept->bytes();
  }

  size_t size() const override { return slots_.size(); }
  uint64_t request_bytes() const override { return UINT64_MAX; }  // it keeps whole samples
  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    if (look_ahead() == 0) return source_->advise(advice, first, count);
    for (size_t i = first; i < first + count; ++i) {
      if (advice == ReadAdvice::kDamaged)
        drop(i);
      else if (slots_[i].load(std::memory_order_acquire))
        continue;
      source_->advise(advice, i, 1);
    }
  }

  void read(size_t index, Sample& out) const override {
    if (const Kept* kept = slots_[index].load(std::memory_order_acquire))
      return decodes_ ? copy(kept->decoded, out) : void(out = kept->sample);
    source_->read(index, out);
    if (decodes_ || full_.load(std::memory_order_relaxed)) return;
    auto kept = std::make_unique<Kept>();
    kept->sample = out;
    keep(index, std::move(kept));
  }

  const DecodedSample* decoded(size_t index) const override {
    if (!decodes_) return nullptr;
    const Kept* kept = slots_[index].load(std::memory_order_acquire);
    if (kept == nullptr && !full_.load(std::memory_order_relaxed)) kept = decode(index);
    return kept == nullptr ? nullptr : &kept->decoded;
  }

 private:
  // A damaged sample is read again once; its readers may still use the copy.
  void drop(size_t index) const {
    const MutexLock lock(mutex_);
    if (dropped_.try_emplace(index).second) dropped_[index].reset(slots_[index].exchange(nullptr));
  }
  struct Scratch {
    Decoder decoder;
    Sample sample;
  };

  static void copy(const DecodedSample& from, Sample& out) {
    set_raw(from.image, out);
    out.label = from.label;
    out.name = from.name;
    const auto numbers = std::as_bytes(std::span(from.mask.classes));
    out.mask.bytes.assign(numbers.begin(), numbers.end());
    out.mask.is_raw = true;
    out.mask.width = from.mask.width;
    out.mask.height = from.mask.height;
    out.mask.name = from.name;
  }

  // Null for a broken sample: reading it then reports the error with its name.
  const Kept* decode(size_t index) const {
    const ScratchPool<Scratch>::Lent scratch(scratch_);
    auto kept = std::make_unique<Kept>();
    try {
      read_sample(*source_, index, scratch->sample);
      decode_sample(scratch->decoder, scratch->sample, kept->decoded.image);
      const Image& image = kept->decoded.image;
      if (has_masks())
        decode_mask(scratch->sample, image.width, image.height, classes().size(),
                    kept->decoded.mask);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kData) throw;
      return nullptr;
    }
    kept->decoded.label = scratch->sample.label;
    kept->decoded.name = scratch->sample.name;
    return keep(index, std::move(kept));
  }

  // The cached sample of that index; null if the budget does not allow it.
  const Kept* keep(size_t index, std::unique_ptr<Kept> fresh) const {
    const uint64_t bytes = fresh->bytes();
    if (held.fetch_add(bytes) + bytes > limit_) {
      held -= bytes;
      full_ = true;
      return nullptr;
    }
    Kept* before = nullptr;
    if (slots_[index].compare_exchange_strong(before, fresh.get(), std::memory_order_acq_rel))
      return fresh.release();
    held -= bytes;  // another thread was faster
    return before;
  }

  const bool decodes_;
  const uint64_t limit_;  // of held
  mutable std::atomic<bool> full_{false};
  mutable std::vector<std::atomic<Kept*>> slots_;  // by sample; entries change only by drop()
  mutable Mutex mutex_;
  mutable std::map<size_t, std::unique_ptr<const Kept>> dropped_ GUARDED_BY(mutex_);
  mutable ScratchPool<Scratch> scratch_;
};

}  // namespace

uint64_t available_memory() {
  uint64_t available = system_number("/proc/meminfo", "MemAvailable:") * 1024;
  if (available == 0)
    available = uint64_t(sysconf(_SC_AVPHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  return std::min(available, cgroup_memory().left);
}

std::unique_ptr<Dataset> cache_dataset(std::unique_ptr<Dataset> source,
                                       const CacheOptions& options) {
  if (options.mode != CacheMode::kRam) return source;
  return std::make_unique<CachedDataset>(std::move(source), options);
}

uint64_t cached_bytes() {
  return held;
}

std::unique_ptr<Dataset> open_input(Env& env, const std::string& uri, const DataOptions& options,
                                    const ProgressCallback& progress) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  auto opened =
      open_dataset(env, with_training_fit(env, uri, options.source), options.store_options());
  auto data = cache_dataset(
      stage_dataset(env, std::move(opened), uri, options.stage, threads, progress), options.cache);
  if (options.decode != DecodeMode::kFast) return data;
  return with_index(std::move(data), open_source_index(env, uri, options.index));
}

}  // namespace saturate
