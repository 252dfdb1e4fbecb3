// From the loader's batches to tensors on the device that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "saturate/held_images.h"
#include "saturate/ledger.h"
#include "saturate/loader.h"
#include "saturate/recipe.h"
#include "saturate/stream_clock.h"

namespace saturate {

// What images and labels are still to be made of, on the device.
struct UnfinishedBatch {
  // [N, 3, S, S] normalised, or bytes [N * S * S * 3] with what is to be done to them: effects
  // [N lists] and, where the pixels are in held images, places [N] instead of the pixels.
  at::Tensor pixels, effects, places;
  int side = 0;  // S
  bool is_bytes = false;
  bool has_masks = false;  // the labels are masks as they were read, uint8
};

struct DeviceBatch {
  at::Tensor
      images;  // [N, 3, S, S] float, bfloat16 or half, channels_last where asked, on the device
  // [N] int64, on the device; of segmentation [N, S, S], kIgnoredLabel where a pixel does not
  // count.
  at::Tensor labels;
  std::vector<std::string> names;  // [N], where the loader gives them
  // Of mixed images: `labels` are the heavier ones, with weight lambda, and these have the rest.
  at::Tensor mixed_labels = {};  // [N] int64, on the device; undefined where nothing is mixed
  double lambda = 1;             // 0.5 to 1
  int64_t whole = 0;             // images of the step over all processes
  int64_t place = 0;             // in its epoch, those that on_error left out counted
  // Of a pipeline with an encoder: what Model::encode() makes of the images; else empty.
  std::vector<at::Tensor> features = {};
  // Of Feeder::leave_unfinished(), until finish(): there are no images yet.
  std::optional<UnfinishedBatch> unfinished = {};
  int64_t count() const { return labels.defined() ? labels.size(0) : 0; }
};

// torch's ignore_index.
constexpr int64_t kIgnoredLabel = -100;

// Page-locked memory for a GPU, plain memory (the loader's own) for the CPU.
BufferAllocator batch_allocator(const at::Device& device);

// Mixes images and labels on their device, the images in place: there the pixels pass through the
// fastest memory, and the loader's batches stay what their samples alone make them. REQUIRES:
// batch.images [N, 3, S, S], not needed as they were; mix.offset < N.
void mix_batch(const Mix& mix, DeviceBatch& batch);

// Whether this build can carry out a batch's effects and normalise it on a GPU.
bool has_finish_kernel();

// Stages of the way to the step that run beside it.
struct PipelineSetup {
  PipelineOptions stages;
  // stages.encoder: what Model::encode() does, without gradients; on another thread than the
  // caller's.
  std::function<std::vector<at::Tensor>(const at::Tensor& images)> encode = {};
  // Tests: called where a stage of that name begins, and may take its time.
  std::function<void(const char* stage)> before = {};
};

// Takes batches from `loader`, which must outlive it. On the CPU the tensors share the loader's
// memory, which returns to its pool when the last tensor is gone: nothing is copied. On a GPU the
// copy has been made when next() returns. Batches of bytes, or of places in resident
// images, are finished on the device, on its current stream: their effects, then `augment`'s
// normalisation. Waiting is charged to kWait,
// moving to kCopy, finishing to kAugment.
//
// With a pipeline the stages that it names are done on streams of their own, for later batches
// while the step is on this one; next() then waits for them, which is charged to kWait. What comes
// out is the same.
class Feeder {
 public:
  // `held`: a ResidentDataset's images, on `device`, which the loader's places refer to.
  // `clock`: receives the work that the device's streams are given; may be null, and must
  // outlive this.
  Feeder(Loader& loader, const at::Device& device, bool channels_last, Ledger& ledger,
         const AugmentOptions& augment = {}, HeldImages held = {}, StreamClock* clock = nullptr);
  ~Feeder();

  // From the next epoch on. REQUIRES: an epoch begins with start_epoch() from here on.
  void use_pipeline(PipelineSetup setup);

  // As the loader's, and forgets what is under way.
  void start_epoch(uint32_t epoch, size_t first_batch = 0);
  void stop();
  // Waits for the stages under way: until next() nothing runs beside the caller.
  void settle();

  // False at the end of the epoch.
  bool next(DeviceBatch& out);

  // From the next batch on the last stage, where no stream of its own does it, is left to
  // finish(), so that a step can be recorded with it. REQUIRES: nothing is mixed.
  void leave_unfinished(bool leaves);
  // Makes images and labels, once; changes the bytes. Nothing where they are made already.
  void finish(DeviceBatch& batch) const;

  // From now on next() gives this batch every time, and leaves the loader alone.
  void hold(DeviceBatch batch);
  void release();
  bool holds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
