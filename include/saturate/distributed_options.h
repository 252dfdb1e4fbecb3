// The part of a recipe about processes that train together. See recipe.h.
#pragma once

namespace saturate {

enum class CollectiveBackend { kAuto, kGloo, kNccl };
// What gradients are rounded to on their way.
enum class Compress { kNone, kBf16, kFp16 };
// What becomes of samples that do not go evenly into the processes; see rank_order().
enum class Uneven { kJoin, kPad, kDrop };

struct DistributedOptions {
  CollectiveBackend backend = CollectiveBackend::kAuto;
  double bucket_mb = 25;   // MiB
  double timeout_s = 300;  // seconds
  Compress compress = Compress::kNone;
  Uneven uneven = Uneven::kJoin;
  bool find_unused = false;
  bool sync_bn = false;
  bool shard_optimizer = false;
};

}  // namespace saturate
