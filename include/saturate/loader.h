// The loader: reads, decodes and augments samples on threads of its own and hands out whole batches
// in order, a bounded number of them ahead.
//
// The sequence of batches is a pure function of (dataset, options, seed, epoch): the number of
// threads, the machine's speed and the buffer allocator have no influence. Resuming needs only the
// epoch and the index of the next batch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "saturate/augment.h"
#include "saturate/data_options.h"
#include "saturate/dataset.h"
#include "saturate/distributed_options.h"
#include "saturate/effects.h"
#include "saturate/mix.h"

namespace saturate {

// Blocks whose samples kBlock mixes.
constexpr size_t kShuffleWindow = 8;

// The order of an epoch, a permutation of [0, size): kFull draws any with equal probability; kNone
// is the identity. kBlock cuts [0, size) into blocks of `block` and draws an order of them, then
// one of the samples of each kShuffleWindow consecutive blocks: a sample may come at any place of
// the epoch, but those of one block come within one window.
std::vector<uint32_t> epoch_order(size_t size, uint64_t seed, uint32_t epoch,
                                  const ShuffleOptions& shuffle);

// A process's place among those that share a dataset.
struct Shard {
  int rank = 0, world = 1;
  Uneven uneven = Uneven::kJoin;
};

// Samples of an epoch of `size`, over all processes: as many, or under kPad rounded up and under
// kDrop down to a multiple of the world.
size_t epoch_samples(size_t size, const Shard& shard);

// What one process takes of an epoch's order: of each `batch` consecutive samples those at
// places [rank::world]. Where the world divides the batch, this is torch.utils.data's
// DistributedSampler over the same order, read in batches of batch / world: kPad and kDrop are its
// drop_last=False and True; kJoin neither repeats nor drops, so that ranks may differ by a sample.
std::vector<uint32_t> rank_order(const std::vector<uint32_t>& order, size_t batch,
                                 const Shard& shard);

// Allocates `bytes` (aligned to at least 64) and frees it with the last owner; pinned memory on a
// GPU.
using BufferAllocator = std::function<std::shared_ptr<std::byte>(size_t bytes)>;

// Images [count, size, size, 3] (NHWC), or [count, 3, size, size] where planar: uint8 as decoded,
// or bfloat16, float16 or float32, normalised.
struct Batch {
  std::shared_ptr<std::byte> pixels;  // goes back to the loader's pool when the last owner drops it
  // Under LoaderOptions::masks: uint8 [count, size, size], what each pixel shows, kIgnoredClass
  // where the image did not reach.
  std::shared_ptr<std::byte> masks;
  PixelType type = PixelType::kFloat32;
  bool planar = false;
  int size = 0;                    // side of an image, pixels
  std::vector<int64_t> labels;     // [count]
  std::vector<uint32_t> indices;   // [count], positions in the dataset
  std::vector<std::string> names;  // [count], where LoaderOptions::names asks for them
  // [count], where LoaderOptions::finish is off: what the consumer still has to do to each image.
  std::vector<EffectList> effects;
  // [count], under LoaderOptions::places, where `pixels` is null.
  std::vector<HeldPlace> places;
  Mix mix;  // for the consumer to carry out: the pixels are not mixed yet
  // Samples of this batch over all processes; those that kSkip left out count among several.
  size_t whole = 0;
  // Which batch of the epoch this is, as start_epoch() counts: those passed over too.
  size_t place = 0;
  size_t count() const { return labels.size(); }
};

struct LoaderOptions {
  size_t batch = 128;  // of all processes together
  Shard shard;         // which part of each batch is this one's
  int threads = 1;
  int nice = 0;      // added to the nice level of the threads, which then give way to others
  int prefetch = 4;  // batches being filled or waiting, at most
  ShuffleOptions shuffle;
  bool drop_last = false;  // leave out a last batch that is not full
  bool train = true;       // random augmentation, else eval_transform
  OnError on_error = OnError::kFail;
  PixelType type = PixelType::kFloat32;
  bool planar = false;  // NCHW; not of kUint8
  bool names = false;   // batches carry the names of their samples
  bool masks = false;   // batches carry masks, which the dataset must have; not with places
  bool finish = true;   // carry out effects, else leave them to the consumer; off: kUint8 alone
  // Say where a consumer that holds the dataset's images finds each sample, instead of giving its
  // pixels. It holds them cut as in evaluation; those of training under kRandomResized whole, and
  // then the dataset gives their width and height. kUint8 without finish alone.
  bool places = false;
  DecodeMode decode = DecodeMode::kExact;
  // What each label of the dataset is handed out as, where its classes have other numbers in the
  // model, or not all of them are there. Empty: as it is.
  std::vector<int64_t> labels;
  uint64_t seed = 0;
  // Longest wait for a batch or for the threads to stop, before the run is given up.
  std::chrono::nanoseconds wait_limit = std::chrono::minutes(10);
};

// A sample left out under OnError::kSkip.
struct SkippedSample {
  std::string name;
  std::string reason;
};

// start_epoch(), next() and stop() belong to one consumer thread; the counters may be read from
// any.
class Loader {
 public:
  // `dataset` must outlive the loader. `augment.size` must be set. `allocate` may be empty; it is
  // called on the consumer's thread. Fails with kUsage on options out of range.
  Loader(const Dataset& dataset, const LoaderOptions& options, const AugmentOptions& augment,
         BufferAllocator allocate = {});
  // Waits for the samples being read. Batches handed out stay valid.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Batches of an epoch.
  size_t batches() const;

  // Begins to fill batches from `first_batch` on, ending any epoch under way.
  void start_epoch(uint32_t epoch, size_t first_batch = 0);

  // Waits for the next batch; false when the epoch is over. A sample that cannot be read or decoded
  // makes this fail with its error, the first in order (kFail), or leaves it out of its batch
  // (kSkip; a batch left empty is passed over, but given out among several processes, which take
  // every step together). Fails with kRun when no batch comes within the wait
  // limit. After a failure every call fails alike until start_epoch(). Drops what `out` held.
  bool next(Batch& out);

  // Waits for at most `limit` until next() would not wait; false where it still would. For who has
  // to look at something else meanwhile, as at signals.
  bool wait(std::chrono::nanoseconds limit);

  // Ends the epoch under way and waits for the threads to stop filling.
  void stop();

  // Batches that next() would return without waiting.
  size_t ready() const;
  // Different samples left out so far under kSkip: how many, and the first hundred.
  size_t skipped_count() const;
  std::vector<SkippedSample> skipped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
