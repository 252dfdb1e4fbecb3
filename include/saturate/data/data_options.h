// SPDX-License-Identifier: BSD-3-Clause
// The part of a recipe about input: where samples come from, and how they become batches. See
// recipe.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "saturate/data/pixel.h"

namespace saturate {

enum class DecodeMode { kExact, kFast };
enum class DecodeDevice { kAuto, kCpu, kCuda };
enum class ShuffleMode { kFull, kBlock, kNone };
enum class CacheMode { kNone, kRam, kDevice };
enum class CacheForm { kEncoded, kDecoded };
enum class StageMode { kNone, kTmpfs };
enum class IndexMode { kAuto, kOff, kFile };
enum class OnError { kFail, kSkip };
enum class CropKind { kNone, kCenter, kRandomResized, kPad, kRandom, kLetterbox };
enum class PadMode { kZero, kReflect };
enum class AugmentDevice { kAuto, kCpu, kCuda };
enum class PixelType { kUint8, kBfloat16, kFloat16, kFloat32 };
enum class Policy { kNone, kTrivial, kRand };

// "224" for a square, else "224x320", height first.
inline std::string text_of(const ImageSize& size) {
  return std::to_string(size.height) + (size.is_square() ? "" : "x" + std::to_string(size.width));
}

// Training images have this size from an epoch on.
struct SizeChange {
  int epoch = 0;
  ImageSize size;
  bool operator==(const SizeChange&) const = default;
};

// A sample skipped under OnError::kSkip.
struct SkippedSample {
  std::string name;
  std::string reason;
};

// The order of an epoch; see epoch_order().
struct ShuffleOptions {
  ShuffleMode mode = ShuffleMode::kFull;
  int block = 128;  // kBlock: samples per block
};

// How samples are cached after they are read; see cache_dataset() and, for kDevice, resident.h.
struct CacheOptions {
  CacheMode mode = CacheMode::kNone;
  CacheForm form = CacheForm::kEncoded;
  // 1e9 bytes, maximum; 0: half of the memory available at the start, divided among the processes
  // of the run on this machine.
  double gb = 0;
};

// Where samples are copied before the first is used; see stage_dataset().
struct StageOptions {
  StageMode mode = StageMode::kNone;
  std::string folder = "/dev/shm";
};

// Where positions inside JPEG scans are kept, from which later epochs decode only the parts that a
// crop needs; for DecodeMode::kFast.
struct IndexOptions {
  IndexMode mode = IndexMode::kAuto;
  std::string path;  // kFile
};

// How objects of http(s)://, s3:// and gs:// are read.
struct StoreOptions {
  std::string cache_dir;    // where ranges of them are kept; empty: nowhere
  double cache_gb = 0;      // 1e9 bytes, maximum; 0: half of the free space and the cache together
  double timeout_s = 300;   // for a range, with all attempts
  int read_ahead_mb = 128;  // MiB announced by loaders, being fetched or waiting to be read
};

struct DataOptions {
  std::string source;
  std::string eval_source;
  int threads = 0;   // 0: one per available core
  int nice = -1;     // added to the threads' nice level; -1: depends on where the step runs
  int prefetch = 4;  // batches
  DecodeMode decode = DecodeMode::kExact;
  DecodeDevice decode_device = DecodeDevice::kAuto;  // kCuda: with kFast only
  OnError on_error = OnError::kFail;
  ShuffleOptions shuffle;
  CacheOptions cache;
  StageOptions stage;
  IndexOptions index;
  StoreOptions store;  // use store_options()

  // `store` with the budget of both caches, cache.gb.
  StoreOptions store_options() const {
    StoreOptions all = store;
    all.cache_gb = cache.gb;
    return all;
  }
};

struct AugmentOptions {
  AugmentDevice device = AugmentDevice::kAuto;  // for effects and normalisation
  PixelType output = PixelType::kFloat32;       // of the model's input; kUint8 is not allowed
  ImageSize size;  // of the output; not set: a square of the first training image's shorter side
  // Sizes of training images by epoch, the first from epoch 0 on; `size` is the last and largest.
  // Empty: always `size`.
  std::vector<SizeChange> size_changes;
  CropKind crop = CropKind::kNone;
  int padding = 4;  // kPad, pixels of the output
  PadMode pad_mode = PadMode::kZero;
  double scale_min = 0.08, scale_max = 1.0;         // kRandomResized: share of the image's area
  double ratio_min = 3.0 / 4, ratio_max = 4.0 / 3;  // kRandomResized: width over height
  double flip = 0.5;                                // probability of a horizontal flip
  bool flip_alternate = false;                      // drawn once, then inverted each epoch
  // Training effects, in this order (saturate/effects.h); 0 is off.
  double rotate = 0, shear = 0;  // degrees, maximum, either way
  double translate = 0;          // share of width and of height, maximum, either way
  double zoom = 0;               // share, maximum, either way
  Policy policy = Policy::kNone;
  int policy_ops = 2, policy_magnitude = 9;             // kRand
  double brightness = 0, contrast = 0, saturation = 0;  // factors are within 1 - x and 1 + x
  bool contrast_gamma =
      false;        // volumes: contrast is an exponent, log-uniform in 1 / (1 + x), 1 + x
  double hue = 0;   // turns, maximum, either way
  double grey = 0;  // probability
  double blur = 0;  // probability
  double blur_sigma_min = 0.1, blur_sigma_max = 2;        // pixels
  double gaussian_noise = 0;                              // standard deviation, share of range
  double erase = 0;                                       // probability
  double erase_scale_min = 0.02, erase_scale_max = 0.33;  // share of the image's area
  double erase_ratio_min = 0.3, erase_ratio_max = 3.3;    // height over width
  // For a training batch: alpha of the Beta distribution of lambda; 0 is off.
  double mixup = 0, cutmix = 0;
  double eval_resize = 1.0;  // evaluation: resized to cover size * eval_resize, then centre crop
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> std = {0.229, 0.224, 0.225};

  // The options of an epoch's training images, with their size.
  AugmentOptions of_epoch(uint32_t epoch) const {
    AugmentOptions options = *this;
    for (const SizeChange& change : size_changes)
      if (uint32_t(change.epoch) <= epoch) options.size = change.size;
    return options;
  }
};

}  // namespace saturate
