// SPDX-License-Identifier: BSD-3-Clause
// The loader: separate threads read, decode and augment samples; whole batches are delivered in
// order, with a bounded number of them prefetched.
//
// The sequence of batches is a pure function of (dataset, options, seed, epoch): the number of
// threads, the machine's speed and the buffer allocator have no influence. Resuming needs only the
// epoch and the index of the next batch.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "saturate/data/augment.h"
#include "saturate/data/data_options.h"
#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"
#include "saturate/data/world.h"

namespace saturate {

// Number of blocks that kBlock shuffles together.
constexpr size_t kShuffleWindow = 8;

// The order of an epoch, a permutation of [0, size): kFull is uniformly random; kNone is the
// identity. kBlock splits [0, size) into blocks of `block`, shuffles the blocks, then the samples
// of each kShuffleWindow consecutive blocks: a sample may appear anywhere in the epoch, but those
// of one block are within one window.
std::vector<uint32_t> epoch_order(size_t size, uint64_t seed, uint32_t epoch,
                                  const ShuffleOptions& shuffle);

// The order with samples of similar length together: in windows of 50 batches, but at most a
// quarter of the epoch, whole batches are filled by length, and then shuffled. Ties keep their
// order, and the samples of an incomplete last batch remain in it. `lengths`: by sample.
std::vector<uint32_t> length_order(std::vector<uint32_t> order, size_t batch, uint64_t seed,
                                   uint32_t epoch, const std::vector<uint32_t>& lengths);

// A process's rank among those that share a dataset.
struct Shard {
  int rank = 0, world = 1;
  Uneven uneven = Uneven::kJoin;
  // Ranks of this machine, which share its cache on disk; 0 processes: unknown.
  int first_local = 0, local_size = 0;
};

// Samples of an epoch of `size`, over all processes: the same number, or under kPad rounded up and
// under kDrop down to a multiple of the world size.
size_t epoch_samples(size_t size, const Shard& shard);

// One process's samples of an epoch's order: of each `batch` consecutive samples those at
// [rank::world]. If the world size divides the batch, this is torch.utils.data's DistributedSampler
// over the same order, in batches of batch / world: kPad and kDrop are its drop_last=False and
// True; kJoin neither repeats nor drops, so that ranks may differ by a sample. `samples`: of the
// epoch over all processes; epoch_samples(), or fewer if its last batch is dropped.
std::vector<uint32_t> rank_order(const std::vector<uint32_t>& order, size_t batch,
                                 const Shard& shard, size_t samples);
inline std::vector<uint32_t> rank_order(const std::vector<uint32_t>& order, size_t batch,
                                        const Shard& shard) {
  return rank_order(order, batch, shard, epoch_samples(order.size(), shard));
}

// Allocates `bytes` (aligned to at least 64), freed with the last owner; pinned memory on a GPU.
using BufferAllocator = std::function<std::shared_ptr<std::byte>(size_t bytes)>;

// The form in which a batch contains its images.
enum class BatchOutput {
  kInterleaved,  // finished pixels, [count, height, width, 3] (NHWC)
  kPlanar,       // finished pixels, [count, 3, height, width] (NCHW); never uint8
  kUnfinished,   // uint8 as decoded, NHWC; the consumer applies the effects and normalises
  // No pixels: the consumer holds the images, and finishes them. They are held cropped as in
  // evaluation; for training under kRandomResized whole.
  kPlaces,
  kTensors,  // the fields of batch_fields(), as columns; only volumes are augmented
  // The same, but in training the consumer warps volumes and changes their values: see
  // BatchColumn::form.
  kUnfinishedTensors,
};

// A field of all samples of a batch: [count, shape...] from `offset` of Batch::pixels on.
struct BatchColumn {
  TensorField field;
  size_t offset = 0;  // bytes, a multiple of 64
  // With kUnfinishedTensors, of a volume or its labels that are not finished: [count, in...] is at
  // `offset`, and [count] VolumeEffects are at `effects`, which make [count, out...] of it.
  std::optional<VolumeForm> form = {};
  size_t effects = 0;  // bytes, a multiple of 64
  size_t bytes_in_batch() const {
    return form ? size_t(form->values_in()) * bytes_of(form->type) : field.bytes();
  }
};

// The volume whose voxels' labels the target is: whole numbers of its depth, height and width. Null
// if there is none.
const TensorField* labelled_volume(std::span<const TensorField> fields);
// The fields of Dataset::tensors() as batches have them: volumes, and a target that is the labels
// of their voxels, have the size after the crop. Sequences have the longest size, rounded up to a
// multiple of 8; a batch's own columns have that of the longest sample of the global batch. After
// them comes "mask", bool [length]: whether a place is the sample's, and not padding, which is 0.
// Fails with kUsage on options that volumes do not have, and on sequences of different sizes.
std::vector<TensorField> batch_fields(const Dataset& dataset, const AugmentOptions& augment);

// One sample of a batch.
struct BatchSample {
  uint32_t index = 0;  // into the dataset
  int64_t label = 0;
  std::string name = {};    // with LoaderOptions::names, else empty
  HeldPlace place = {};     // with kPlaces
  EffectList effects = {};  // the remaining work on the image; empty if it is finished
  PackedPlace stored = {};  // with LoaderOptions::packs
  bool is_packed() const { return stored.bytes > 0; }
};

struct Batch {
  // Null with kPlaces; of tensors, all columns. Returns to the loader's pool when the last owner
  // drops it.
  std::shared_ptr<std::byte> pixels;
  // With LoaderOptions::packs: pixels, or a packed JPEG, are where BatchSample::stored says, and
  // not one sample after the other. The places depend on the threads' speed.
  bool packs = false;
  // With `packs`: samples have no effects, so that the Feeder's decoding normalises too.
  bool decoding_finishes = false;
  std::shared_ptr<const std::vector<BatchColumn>> columns;  // of tensors; else null
  // With LoaderOptions::masks: uint8 [count, height, width], the class of each pixel, kIgnoredClass
  // outside the image.
  std::shared_ptr<std::byte> masks;
  BatchOutput output = BatchOutput::kInterleaved;
  PixelType type = PixelType::kFloat32;  // of the pixels
  ImageSize size;                        // of an image
  std::vector<BatchSample> samples;      // [count]
  Mix mix;                               // applied by the consumer: the pixels are not mixed yet
  // Size of the global batch; with several processes samples skipped by kSkip count.
  size_t global_batch = 0;
  // Index in the epoch, including skipped batches.
  size_t place = 0;
  size_t count() const { return samples.size(); }
};

// A sample whose pixels the consumer of kPlaces holds.
struct HeldSample {
  int width = 0, height = 0;  // pixels, as held; 0 if the sample could not be read
  int64_t label = 0;
  std::string name;
};

struct LoaderOptions {
  size_t batch = 128;  // global batch size
  Shard shard;         // this process's part of each batch
  int threads = 1;
  int nice = 0;      // added to the threads' nice level, to lower their priority
  int prefetch = 4;  // maximum number of batches being filled or waiting
  ShuffleOptions shuffle;
  bool drop_last = false;  // skip an incomplete last batch
  // Epochs of the run. At the end of each but the last, a training loader announces the first
  // samples of the next to a source that is far away, which fetches them until that begins. 0:
  // none.
  uint32_t epochs = 0;
  bool train = true;  // random augmentation; else eval_transform
  OnError on_error = OnError::kFail;
  // One of tensors if and only if the dataset's samples are.
  BatchOutput output = BatchOutput::kInterleaved;
  // The type of finished pixels: uint8 as decoded, or bfloat16, float16 or float32, normalised.
  PixelType type = PixelType::kFloat32;
  bool names = false;  // batches carry their samples' names
  bool masks = false;  // batches carry masks, which the dataset must have; not with kPlaces
  // For kPlaces, [dataset.size()]; must outlive the loader. The dataset itself is only read to
  // report why one could not be.
  std::span<const HeldSample> held;
  DecodeMode decode = DecodeMode::kExact;
  // Only with kUnfinished and kFast: of a JPEG that can be decoded in parts, the batch has a packed
  // JPEG (src/image/packed_jpeg.h) instead of pixels, which a Feeder decodes on its device. It may
  // be larger than them, if others of the batch are smaller.
  bool packs = false;
  // Maps the dataset's labels to the model's, if its classes have other numbers there or some are
  // missing. Empty: identity.
  std::vector<int64_t> labels;
  uint64_t seed = 0;
  // Longest wait for a batch or for the threads to stop, before the run fails.
  std::chrono::nanoseconds wait_limit = std::chrono::minutes(10);

  bool has_tensors() const {
    return output == BatchOutput::kTensors || output == BatchOutput::kUnfinishedTensors;
  }
  bool finishes() const {
    return output == BatchOutput::kInterleaved || output == BatchOutput::kPlanar;
  }
  PixelType pixel_type() const { return finishes() ? type : PixelType::kUint8; }
};

// LoaderOptions::wait_limit for data that may be in a store: a store that is away must fail first,
// since its error says what is wrong.
inline std::chrono::nanoseconds wait_limit_for(const StoreOptions& store) {
  const std::chrono::seconds longer(int64_t(store.timeout_s) + 60);
  return std::max(LoaderOptions().wait_limit, std::chrono::nanoseconds(longer));
}

// start_epoch(), next() and stop() belong to one consumer thread; counters may be read from any
// thread.
class Loader {
 public:
  // `dataset` must outlive the loader. `augment.size` must be set, except for tensors. `allocate`
  // may be empty; it is called on the consumer's thread. Fails with kUsage on options out of range.
  Loader(const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment,
         BufferAllocator allocate = {});
  // Waits for the samples being read, and cancels reads that wait for a store. Delivered batches
  // stay valid.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Number of batches in an epoch.
  size_t batches() const;

  // Begins to fill batches from `first_batch` on, ending the present epoch.
  void start_epoch(uint32_t epoch, size_t first_batch = 0);

  // Waits for the next batch; false at the end of the epoch. A sample that cannot be read or
  // decoded makes this fail with the first such error in order (kFail), or is skipped (kSkip; an
  // empty batch is skipped too, except with several processes, which make all steps together).
  // Fails with kRun if no batch comes within the wait limit. After a failure every call fails in
  // the same way until start_epoch(). Drops the contents of `out`, and uses the memory of its
  // samples again.
  bool next(Batch& out);

  // Waits at most `limit` until next() would not wait; false on timeout. For callers that must also
  // check for signals.
  bool wait(std::chrono::nanoseconds limit);

  // Ends the present epoch and waits for the threads to stop filling; reads that wait for a store
  // are cancelled, and what the epoch has announced to it is not fetched any more.
  void stop();

  // Number of batches that next() would return without waiting.
  size_t ready() const;
  // The network's part of the time that next() and wait() have waited for batches so far: at each
  // moment the fraction of the working threads that waited for bytes of a store. 0 for local data.
  std::chrono::nanoseconds network_wait() const;
  // Distinct samples skipped so far under kSkip: their number, and the first hundred.
  size_t skipped_count() const;
  // For a packed sample that could not be decoded: removes its entry in data.index, which may be
  // wrong, so that the next run decodes it on the CPU. Returns its name in messages, such as its
  // path. Any thread. Reads the sample, and fails as Dataset::read().
  std::string reject_sample(size_t index) const;
  std::vector<SkippedSample> skipped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
