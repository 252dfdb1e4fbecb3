// Tells a source what an epoch reads next. Storage with slow seeks, in an epoch of
// ShuffleMode::kBlock, is told blocks of samples, so that it can read each in one go; a source that
// is far away (Dataset::look_ahead) is told sample by sample, in the order of use, and,
// if several machines share the epochs, when this machine reads each sample again. More samples
// follow, for its cache on disk (ReadAdvice::kToDisk), which bounds their bytes. At the end of an
// epoch it is told the first samples of the next one, which it fetches until that begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "data/crop_rows.h"
#include "saturate/data/dataset.h"
#include "saturate/data/loader.h"

namespace saturate {

// The most samples announced at a time, for memory and disk together. A source takes up to 1 KB of
// memory for each, beside its bytes.
constexpr size_t kMostAnnounced = 60'000;

// The block order that epoch_order() uses for kBlock.
std::vector<uint32_t> epoch_blocks(size_t size, uint64_t seed, uint32_t epoch, size_t block);

// The epochs after the one that is read.
struct LaterEpochs {
  uint32_t count = 0;  // epochs in all; up to 1: nothing is announced for later
  // The samples that this process reads in an epoch, in order.
  std::function<std::vector<uint32_t>(uint32_t epoch)> order = {};
};

// For the loader's consumer only. Hints of blocks are given on a separate thread: on some systems
// they block until reading has begun. Samples are announced before they can be read: one that is
// announced later would be fetched twice.
class ReadAhead {
 public:
  // Does nothing if the source needs no hints, or is `idle`: never read. At most `in_flight`
  // samples of this process after those delivered may have been read. `data` must outlive this.
  // `training`: divides the epochs among machines; null: samples are not read again. `rows`:
  // chooses the rows of images that are read; null: all. They must outlive this. `later`: whose
  // samples are announced, as ReadAdvice::kLater, at the end of an epoch.
  ReadAhead(const Dataset& data, const ShuffleOptions& shuffle, uint64_t seed, size_t in_flight,
            bool idle, const LoaderOptions* training = nullptr, CropRows* rows = nullptr,
            LaterEpochs later = {});
  // Withdraws what has not been read.
  ~ReadAhead();

  // An epoch begins: this process reads order[first, end), of which the sample at `first` is about
  // the one at `place` of the whole epoch. What was announced of it before is withdrawn, unless
  // this is all of the epoch after the last one. REQUIRES: `rows` has begun it.
  void start(uint32_t epoch, size_t place, const std::vector<uint32_t>& order, size_t first,
             size_t end);
  // The samples of this process before index `first` of its order have been delivered, which are
  // about those before `place` of the whole epoch.
  void advance(size_t place, size_t first);
  // Withdraws what was announced of this epoch and has not been read. Samples of the next one stay.
  void withdraw();

 private:
  void hint_blocks(size_t place);
  void announce(size_t delivered);
  void announce_to_disk();
  void announce_later();
  // An epoch of which samples are announced begins: they come soon.
  void take_later();
  // In which epoch this machine reads a sample again that it reads in epoch_ + `after`.
  uint64_t next_use(uint32_t index, int after) const;
  void look_at_later_epochs(uint32_t epoch);
  void withdraw_later();
  const Dataset& data_;
  const ShuffleOptions shuffle_;
  const uint64_t seed_;
  const size_t in_flight_;
  CropRows* const rows_;          // may be null
  const uint64_t budget_;         // bytes announced and not delivered; 0: blocks are hinted
  std::vector<uint32_t> blocks_;  // of the epoch
  size_t next_ = 0;               // next of blocks_, or of order_, to hint
  std::vector<uint32_t> order_;   // of this process, up to the end
  size_t delivered_ = 0;          // of order_
  std::deque<uint64_t> sizes_;    // bytes of order_[delivered_, next_)
  uint64_t announced_ = 0;        // their sum
  size_t stored_ = 0;             // from next_ to here, samples are announced for the disk
  bool has_delivered_ = false;
  uint32_t epoch_ = 0;  // begun last
  // The next epoch:
  const LaterEpochs later_;
  std::vector<uint32_t> later_order_;  // empty: not needed yet
  std::deque<uint64_t> later_sizes_;   // bytes of its first samples, announced
  uint64_t later_announced_ = 0;       // their sum
  std::vector<bool> unread_;           // by sample: this epoch has announced, not delivered it
  // Several machines share the epochs:
  Shard shard_;
  size_t batch_ = 0;             // 0: they do not
  std::vector<uint8_t> visits_;  // of each sample; bit k: this machine reads it in epoch_ + 1 + k
  std::unique_ptr<ThreadPool> thread_;
};

}  // namespace saturate
