// SPDX-License-Identifier: BSD-3-Clause
// Effects on a training sample's pixels, after crop, resize and flip, and before normalisation.
//
// A sample's effects are a short list, applied in order to uint8 RGB pixels; each rounds to whole
// levels. The list depends only on options, seed, epoch and sample, and is all that is needed to
// apply it, so CPU threads and a CUDA kernel run the same passes over the same lists
// (src/image/effect_passes.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "saturate/data/augment.h"
#include "saturate/data/data_options.h"
#include "saturate/data/pixel.h"
#include "saturate/data/random.h"

namespace saturate {

// The formulas of torchvision.transforms.v2.functional. Values are Effect::value.
enum class EffectKind : int32_t {
  kAffine,        // [6] row-major 2 x 3: from an output pixel's centre to a place in the input, in
                  // pixels from the image's centre. Bilinear; outside the image is black.
  kBrightness,    // [1] factor
  kContrast,      // [1] factor on the distance from the mean grey
  kSaturation,    // [1] factor on the distance from the pixel's grey
  kHue,           // [1] turns of the colour wheel, -0.5 to 0.5
  kGrey,          // [0]
  kBlur,          // [1] standard deviation of the Gaussian, pixels; truncated at three of them
  kErase,         // [7] x, y, width, height of the box, then the fill levels
  kSharpness,     // [1] factor on the distance from a 3 x 3 smoothing; keeps the border
  kPosterize,     // [1] bits kept
  kSolarize,      // [1] inverts levels from this one on
  kAutocontrast,  // [0] each channel stretched to 0..255
  kEqualize,      // [0] each channel's histogram equalised, as Pillow does it
  kNoise,         // [3] standard deviation of Gaussian noise, levels; the lower and the upper 16
                  // bits of its seed
};

struct Effect {
  EffectKind kind;
  float value[7];
};

constexpr int kMaxEffects = 17;

struct EffectList {
  int32_t count = 0;
  Effect effect[kMaxEffects];

  // REQUIRES: count < kMaxEffects.
  Effect& add(EffectKind kind, float value = 0) {
    effect[count] = {kind, {value}};
    return effect[count++];
  }
};

// Identifies all randomness of one sample.
struct SampleKey {
  uint64_t seed;
  uint32_t epoch;
  uint64_t index;
  RandomStream stream(RandomUse use) const { return {seed, epoch, index, use}; }
  // For an effect without a RandomUse, which are the kinds after kEqualize.
  RandomStream stream(EffectKind kind) const { return stream(RandomUse(100 + uint32_t(kind))); }
};

// The kAffine matrix of torchvision's F.affine(angle, translate, scale, shear, center): degrees,
// pixels, a factor, degrees. `center` in pixels from the image's centre.
struct AffineSpec {
  double angle = 0, translate_x = 0, translate_y = 0, scale = 1, shear_x = 0, shear_y = 0;
  double center_x = 0, center_y = 0;
};
void set_affine(const AffineSpec& spec, Effect& effect);

// Drawn like torchvision's RandomAffine.
AffineSpec draw_affine(const AugmentOptions& options, const SampleKey& key);

// Whether training samples may have effects.
bool has_effects(const AugmentOptions& options);

// The effects of one training sample, in this order: affine, the policy's, brightness, contrast,
// saturation, hue, grey, blur, noise, erase. Each operation has its own random stream, so enabling
// one does not change the others' draws. REQUIRES: options.size is set.
EffectList draw_effects(const AugmentOptions& options, const SampleKey& key);

// Scratch memory of apply_effects; grows to the largest image and is kept. One per thread.
struct EffectScratch {
  std::vector<uint8_t> pixels;  // [height, width, 3]
  std::vector<float> rows;      // for kBlur
};

// `pixels` [size.height, size.width, 3], modified in place.
void apply_effects(const EffectList& list, const ImageSize& size, EffectScratch& scratch,
                   uint8_t* pixels);

// A segmentation mask with one class number per pixel.
struct Mask {
  int width, height;
  const uint8_t* classes;  // [height, width]
};
// Transforms a mask like its image, by apply_transform() and the kAffine effects of `list`, each
// with nearest-pixel sampling. `outside` is the class outside the image. `out` [size.height,
// size.width].
void transform_mask(const AugmentOptions& options, const SampleTransform& transform,
                    const EffectList& list, const Mask& mask, uint8_t outside, uint8_t* out);

// The pixels of a sample in a held dataset: its image, already at the batch's size, seen through a
// shifted window, then mirrored. If whole images are held: `crop` of its image, resized to the
// batch's size, then mirrored.
struct HeldPlace {
  uint32_t index = 0;                // position in the dataset
  int16_t shift_x = 0, shift_y = 0;  // as SampleTransform's
  int32_t flip = 0;                  // 1: left to right
  Box crop = {};                     // for whole images only
};

// Where a loader that packs JPEGs has put a sample, in the memory of its batch.
struct PackedPlace {
  static constexpr size_t kUnit = 64;
  uint32_t at = 0;     // in units of kUnit bytes
  uint32_t bytes = 0;  // of a packed JPEG (src/image/packed_jpeg.h); 0: the sample's pixels
};

// A whole held image, [height, width, 3].
struct HeldPhoto {
  const uint8_t* pixels;
  int32_t width, height;
};

// Resizer's filter from one input length to S outputs, a side of the batch, within a table of
// filters: from filters[begin] on the first inputs of the S outputs, each read as uint16_t, then
// weights [S][pitch], of which `taps` are used. A weight of 1 is 1 << precision. See
// resize_filters().
struct HeldFilter {
  int64_t begin;
  int32_t taps, pitch, precision;
};

// The filters from every length 1 to `longest` to size.width, then, for another height, those to
// size.height: by_length [longest + 1] of each, the first unused. REQUIRES: longest <=
// kLongestHeld.
constexpr int kLongestHeld = 16384;  // pixels a side
struct ResizeFilters {
  std::vector<HeldFilter> by_length;
  std::vector<int16_t> values;
};
ResizeFilters resize_filters(int longest, const ImageSize& size);

// The kernel's view of a batch to convert from uint8 to normalised values, all on one device,
// without overlapping memory except for `rows`. Fastest if pointers are multiples of 16 bytes.
struct FinishArguments {
  uint8_t* images;            // [count, height, width, 3], undefined afterwards; held images: also
                              // before
  const EffectList* effects;  // [count]
  uint8_t* spare;             // like images; undefined afterwards
  int64_t count;
  ImageSize size;
  Normalize normalize;
  void* out;  // [count, height, width, 3] of `type` (NHWC, torch's channels_last)
  // If not null, images are first copied from here, [any, height, width, 3], according to `places`.
  const uint8_t* held = nullptr;
  const HeldPlace* places = nullptr;  // [count]
  PadMode pad_mode = PadMode::kZero;
  PixelType type = PixelType::kFloat32;  // not kUint8; 16-bit types are the floats rounded once
  // [count, height, width, 3], undefined afterwards, if a list has kBlur. Null: uses `out`, which
  // must then be kFloat32.
  float* rows = nullptr;
  // If not null, images are first cropped and resized from here, according to `places`, with the
  // filters of resize_filters(their longest side, size): those to the height from filters[down] on.
  const HeldPhoto* photos = nullptr;  // [any]
  const HeldFilter* filters = nullptr;
  int64_t down = 0;
  const int16_t* filter_values = nullptr;
};

// Copies each image if there are places, applies its effects, normalises and rounds it, on the
// calling thread: the reference for the kernel below, and equal to apply_transform(),
// apply_effects() and convert_pixels().
void finish_batch_cpu(const FinishArguments& batch);

// The same on the current GPU, in one kernel; equal except for the last bits of a blur's weights.
// If the batch is small, an image whose effects each need one pixel, or an affine first, is shared
// by several thread blocks; any other has one. Enqueues on `stream` (a cudaStream_t) and returns;
// the caller keeps the buffers alive and unchanged until the stream has passed. Fails with kRun if
// the launch fails. Defined in saturate_kernels, which a build without nvcc lacks.
void finish_batch_cuda(const FinishArguments& batch, void* stream);

// ---- Volumes: [depth, height, width, channels] -------------------------------------------------
//
// A volume is cropped, flipped and warped by one resampling, without rounding between them; then
// its values change, voxel by voxel. As for images, the record below is all that is needed to do
// so, and CPU threads and a CUDA kernel compute the same formulas (src/image/volume_passes.h).

// The type of a voxel's channels. Labels are copied from the nearest voxel.
enum class VoxelType : int32_t { kFloat32, kUint8, kLabel8, kLabel16, kLabel32, kLabel64 };
SATURATE_HOST_DEVICE constexpr size_t bytes_of(VoxelType type) {
  return type == VoxelType::kLabel64                                  ? 8
         : type == VoxelType::kFloat32 || type == VoxelType::kLabel32 ? 4
         : type == VoxelType::kLabel16                                ? 2
                                                                      : 1;
}

// A volume before and after its transform.
struct VolumeForm {
  int32_t in[3], out[3];  // depth, height, width; each dimension of `in` below 2^15
  int32_t channels = 1;
  VoxelType type = VoxelType::kFloat32;
  PadMode pad_mode = PadMode::kZero;  // outside the volume
  uint64_t outside = 0;               // kZero: the bits of a label outside the volume
  SATURATE_HOST_DEVICE int64_t values_in() const {
    return int64_t{in[0]} * in[1] * in[2] * channels;
  }
  SATURATE_HOST_DEVICE int64_t values_out() const {
    return int64_t{out[0]} * out[1] * out[2] * channels;
  }
};

// One volume's transform.
struct VolumeEffects {
  // Row-major 3 x 4: from an output voxel (depth, height, width, 1) to a place in the input, in
  // voxels from the first one's centre. Trilinear.
  float matrix[12] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
  // value -> low + range * ((value - low) / range) ^ gamma, and 0 for the negative of the bracket.
  float gamma = 1, low = 0, range = 1;
  float scale = 1, shift = 0;  // then value * scale + shift
  float noise = 0;             // then normal noise of this standard deviation is added
  uint32_t seed = 0;           // of the noise
};

// The smallest and largest value of a volume, and their mean: contrast and gamma refer to them.
struct VolumeRange {
  float low = 0, high = 1, mean = 0;
};
// REQUIRES: n > 0, and a type that is not a label.
VolumeRange volume_range(VoxelType type, const void* values, size_t n);
// Whether draw_volume() needs it.
bool needs_volume_range(const AugmentOptions& options);
// Whether draw_volume() may resample, and not only crop, flip and shift by whole voxels; and
// whether it may change values.
bool warps_volumes(const AugmentOptions& options);
bool changes_volumes(const AugmentOptions& options);

// Fails with kUsage, naming the key, if an option is set that volumes do not have.
void check_volume_options(const AugmentOptions& options);

// The size after the crop: options.size, a cube's side, along each axis that is longer than it. [3]
// each.
void set_volume_size(const AugmentOptions& options, const int32_t* in, int32_t* out);

// A training volume's transform: crop, flips, affine and intensity, each from its own random
// stream. A dimension of one voxel is neither rotated, sheared nor shifted. `form` is of the
// values, and has its sizes set.
VolumeEffects draw_volume(const AugmentOptions& options, const SampleKey& key,
                          const VolumeForm& form, const VolumeRange& range);
// The crop of evaluation, in the centre.
VolumeEffects eval_volume(const VolumeForm& form);

// Scratch memory of apply_volume; one per thread.
struct VolumeScratch {
  std::vector<float> values, row;
};

// Transforms one volume on the calling thread. `in` and `out` are aligned to their type.
void apply_volume(const VolumeForm& form, const VolumeEffects& effects, const void* in,
                  VolumeScratch& scratch, void* out);

// The kernel's view of a batch of volumes of one form, all on one device.
struct VolumeArguments {
  VolumeForm form;
  const void* in;                // [count, in[0], in[1], in[2], channels]
  const VolumeEffects* effects;  // [count]
  void* out;                     // [count, out[0], out[1], out[2], channels]
  int64_t count;
};

// Transforms the batch voxel by voxel on the calling thread: the reference for the kernel below,
// and equal to apply_volume() except for a gamma's last bits.
void transform_volumes_cpu(const VolumeArguments& batch);
// The same on the current GPU. Enqueues on `stream` (a cudaStream_t) and returns; fails with kRun
// if the launch fails. Defined in saturate_kernels, which a build without nvcc lacks.
void transform_volumes_cuda(const VolumeArguments& batch, void* stream);

// ---- Batches -----------------------------------------------------------------------------------

// MixUp (Zhang et al. 2018) and CutMix (Yun et al. 2019): a training batch mixed with itself.
//
// Sample i is mixed with sample (i - offset) mod count, as in torchvision's v2.MixUp and v2.CutMix
// with an offset of 1. The parameters are drawn here; feed.h applies them on the device, and
// mix_images() to a batch in the host's memory.
enum class MixKind { kNone, kMixUp, kCutMix };

struct Mix {
  MixKind kind = MixKind::kNone;
  double lambda = 1;  // weight of a sample's own label; kMixUp: of its pixels too
  size_t offset = 0;  // 1 to count - 1
  Box box;            // kCutMix: the pixels taken from the other sample
};

// One Beta(alpha, alpha) draw per batch; if both are on, one is chosen at random. `batch`
// identifies the batch by its first sample. kNone if both are off, or count is below 2.
Mix draw_mix(const AugmentOptions& options, const SampleKey& batch, size_t count);

// Mixes finished images in place: `pixels` is [count, 3, height, width] if `planar`, else [count,
// height, width, 3]. Equal to feed.h's mix_batch() within rounding. Labels are left to the caller.
// REQUIRES: `type` is not kUint8 for kMixUp; mix.offset < count.
void mix_images(const Mix& mix, PixelType type, bool planar, size_t count, const ImageSize& size,
                std::byte* pixels);

}  // namespace saturate
