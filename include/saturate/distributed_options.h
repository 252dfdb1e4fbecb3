// The part of a recipe about processes that train together. See recipe.h.
#pragma once

namespace saturate {

// Processes of one device each, or one process over several devices (see data_parallel.h).
enum class ParallelMode { kDdp, kDp };
enum class CollectiveBackend { kAuto, kGloo, kNccl };
// What becomes of gradients on their way: rounded, or products of two thin matrices.
enum class Compress { kNone, kBf16, kFp16, kPowerSgd };
// What becomes of samples that do not go evenly into the processes; see rank_order().
enum class Uneven { kJoin, kPad, kDrop };

struct DistributedOptions {
  ParallelMode mode = ParallelMode::kDdp;
  CollectiveBackend backend = CollectiveBackend::kAuto;
  double bucket_mb = 25;   // MiB
  double timeout_s = 300;  // seconds
  Compress compress = Compress::kNone;
  int powersgd_rank = 4;  // columns of the thin matrices
  Uneven uneven = Uneven::kJoin;
  bool find_unused = false;
  bool sync_bn = false;
  bool shard_optimizer = false;
};

}  // namespace saturate
