// SPDX-License-Identifier: BSD-3-Clause
// From the loader's batches to tensors on the training device.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/ledger.h"

namespace saturate {

class StreamClock;
class UnpackCheck;

// A dataset's images on the training device, to which a loader's places refer: either images at the
// batch's size, or whole images. A copy shares the memory.
struct HeldImages {
  at::Tensor images;  // [N, H, W, 3] uint8, of a batch's size
  // Whole images: the bytes of [N] HeldPhoto, and of ResizeFilters up to their longest side.
  at::Tensor photos, filters, filter_values;
  std::vector<at::Tensor> pixels;  // memory that `photos` point to
  bool any() const { return images.defined() || photos.defined(); }
};

struct DeviceBatch {
  // The model's input, on the device: [N, 3, H, W] float, bfloat16 or half, channels_last where
  // asked; or for samples that are tensors [N, ...] as of input_of().
  at::Tensor images;
  // On the device: [N] int64 classes; for segmentation [N, H, W], or of volumes [N, D, H, W],
  // with kIgnoredLabel at ignored pixels and voxels; for another target of tensors [N, ...], float,
  // or int64 if it is of whole numbers, with kIgnoredLabel at the padding of tokens.
  at::Tensor labels;
  std::vector<std::string> names;  // [N], if the loader provides them
  // For mixed images: `labels` are the heavier ones, with weight lambda, and these have the rest.
  at::Tensor mixed_labels = {};  // [N] int64, on the device; undefined without mixing
  double lambda = 1;             // 0.5 to 1
  int64_t global_batch = 0;      // images on all ranks
  int64_t place = 0;             // index in its epoch, including those skipped by on_error
  // For a pipeline with an encoder: EncoderDecoder::encode() of the images; else empty.
  std::vector<at::Tensor> features = {};
  // After Feeder::leave_unfinished(), until finish(): what images and labels are computed from.
  // Normalised pixels [N, 3, H, W], or uint8 [N, H, W, 3] and effects [N lists], or effects and
  // places [N] in held images. Labels that are masks are as stored, uint8. For volumes: the memory
  // of their columns; labels are a part of it, unless they are classes.
  at::Tensor pixels = {}, effects = {}, places = {};
  std::shared_ptr<const std::vector<BatchColumn>> columns = {};  // of unfinished volumes
  // Before Feeder::next() has taken it: of samples that a GPU decodes.
  std::shared_ptr<UnpackCheck> unpacked = {};
  bool is_unfinished() const { return pixels.defined() || places.defined(); }
  int64_t count() const { return labels.defined() ? labels.size(0) : 0; }
};

// A model's input made of the fields that are not the target. One field: itself, whole numbers as
// int64, all others as float32; a volume as float32 [channels, depth, height, width], levels from 0
// to 1. Several: flattened, and concatenated in their order, as float32.
// Sequences: float32 [channels + 1, length], is_sequence; the channels of one after another, those
// of [length, ...] flattened, and last the mask: 1 at the places of a sample, 0 for padding. Of
// other fields there may be one, the lengths, which is not an input.
// Tokens whose target is the token after each, both sequences of one vocabulary: int64 [length],
// is_sequence, without a mask: padding is token 0.
// Fails with kUsage if there is none.
TensorField input_of(std::span<const TensorField> fields);
// The field that is the target; null if there is none.
const TensorField* target_of(std::span<const TensorField> fields);
// Whether it is one class for each sample.
bool is_class(const TensorField& target);

// torch's ignore_index.
constexpr int64_t kIgnoredLabel = -100;

// Pinned memory for a GPU, plain if none is left; plain memory (the loader's own) for the CPU.
BufferAllocator batch_allocator(const at::Device& device);

// Mixes images and labels on their device, the images in place: memory is fastest there, and the
// loader's batches depend on their samples only. REQUIRES: batch.images [N, 3, H, W] may be
// overwritten; mix.offset < N.
void mix_batch(const Mix& mix, DeviceBatch& batch);

// Images of a loader with LoaderOptions::packs, by what decodes them.
struct DecodedImages {
  int64_t on_device = 0;  // packed JPEGs
  int64_t by_loader = 0;  // all others, on the loader's threads
};

// Input stages that overlap the step.
struct PipelineSetup {
  PipelineOptions stages;
  // stages.encoder: calls EncoderDecoder::encode() without gradients; on another thread than the
  // caller's.
  std::function<std::vector<at::Tensor>(const at::Tensor& images)> encode = {};
  // For tests: called with a stage's name when the stage begins; may block.
  std::function<void(const char* stage)> before = {};
};

// Takes batches from `loader`, which must outlive it. On the CPU the tensors share the loader's
// memory, without a copy, unless a type changes; it returns to the pool with the last tensor. On a
// GPU the copy is complete when next() returns. Batches of bytes, or of places in held images, are
// finished on the device, on its current stream: their effects, then `augment`'s normalisation. So
// are batches of unfinished volumes, by their own records. Samples that the loader packed are
// decoded there too. A damaged one of a batch that next() has returned makes a later next(), or
// stop(), fail with kData, naming its index, and all calls after it; on the CPU, the same next().
// Waiting is charged to kWait, copying to kCopy, finishing to kAugment.
//
// With a pipeline its stages run on separate streams, for later batches during the present step;
// next() then waits for them, charged to kWait. The results are the same.
class Feeder {
 public:
  // `held`: the images, on `device`, to which the loader's places refer. `clock`: receives the work
  // given to the device's streams; may be null, and must outlive this.
  Feeder(Loader& loader, const at::Device& device, bool channels_last, Ledger& ledger,
         const AugmentOptions& augment = {}, HeldImages held = {}, StreamClock* clock = nullptr);
  ~Feeder();

  // From the next epoch on. REQUIRES: further epochs begin with start_epoch().
  void use_pipeline(PipelineSetup setup);
  // Waits for the stages in flight, and destroys them; the loader continues.
  void drop_pipeline() noexcept;

  // As the loader's, and drops batches in flight.
  void start_epoch(uint32_t epoch, size_t first_batch = 0);
  void stop();
  // Waits for the stages in flight: until next() nothing runs concurrently.
  void settle();

  // False at the end of the epoch.
  bool next(DeviceBatch& out);

  // From the next batch on the last stage, unless it has its own stream, is left to finish(), so
  // that a captured step can include it. REQUIRES: no mixing.
  void leave_unfinished(bool leaves);
  // Computes images and labels, once; modifies the bytes. Does nothing if they exist already.
  void finish(DeviceBatch& batch) const;

  // All images taken from the loader so far; 0 without LoaderOptions::packs. For next()'s thread.
  DecodedImages decoded() const;

  // From now on next() returns this held batch every time, and does not use the loader.
  void hold(DeviceBatch batch);
  void release();
  bool holds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
