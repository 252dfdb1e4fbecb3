// The part of a recipe about input: where samples come from, and what becomes of them on the way to
// a batch. See recipe.h.
#pragma once

#include <string>
#include <vector>

namespace saturate {

enum class DecodeMode { kExact, kFast };
enum class ShuffleMode { kFull, kBlock, kNone };
enum class CacheMode { kNone, kRam };
enum class CacheForm { kEncoded, kDecoded };
enum class StageMode { kNone, kTmpfs };
enum class OnError { kFail, kSkip };
enum class CropKind { kNone, kCenter, kRandomResized, kPad };
enum class PadMode { kZero, kReflect };

// The order of an epoch; see epoch_order().
struct ShuffleOptions {
  ShuffleMode mode = ShuffleMode::kFull;
  int block = 128;  // kBlock: samples in one
};

// What is kept of a source once it has been read; see cache_dataset().
struct CacheOptions {
  CacheMode mode = CacheMode::kNone;
  CacheForm form = CacheForm::kEncoded;
  double gb = 0;  // 1e9 bytes, at most; 0: half of the memory that is available at the start
};

// Where a source's samples are copied before the first is used; see stage_dataset().
struct StageOptions {
  StageMode mode = StageMode::kNone;
  std::string folder = "/dev/shm";
};

struct DataOptions {
  std::string source;
  std::string eval_source;
  int threads = 0;   // 0: one per available core
  int prefetch = 4;  // batches
  DecodeMode decode = DecodeMode::kExact;
  OnError on_error = OnError::kFail;
  ShuffleOptions shuffle;
  CacheOptions cache;
  StageOptions stage;
};

struct AugmentOptions {
  int size = 0;  // output side, pixels; 0: the size of the first training image
  CropKind crop = CropKind::kNone;
  int padding = 4;  // kPad, pixels at size `size`
  PadMode pad_mode = PadMode::kZero;
  double scale_min = 0.08, scale_max = 1.0;         // kRandomResized: share of the image's area
  double ratio_min = 3.0 / 4, ratio_max = 4.0 / 3;  // kRandomResized: width over height
  double flip = 0.5;                                // probability of a horizontal flip
  double eval_resize = 1.0;  // evaluation: shorter side is size * eval_resize, then centre crop
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> std = {0.229, 0.224, 0.225};
};

}  // namespace saturate
