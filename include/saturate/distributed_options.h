// The part of a recipe about distributed training. See recipe.h.
#pragma once

namespace saturate {

// Processes with one device each, or one process with several devices (see data_parallel.h).
enum class ParallelMode { kDdp, kDp };
enum class CollectiveBackend { kAuto, kGloo, kNccl };
// Gradient compression for transfer: rounding, or low-rank factors.
enum class Compress { kNone, kBf16, kFp16, kPowerSgd };
// Handling of samples that do not divide evenly among the processes; see rank_order().
enum class Uneven { kJoin, kPad, kDrop };

struct DistributedOptions {
  ParallelMode mode = ParallelMode::kDdp;
  CollectiveBackend backend = CollectiveBackend::kAuto;
  double bucket_mb = 25;   // MiB
  double timeout_s = 300;  // seconds
  Compress compress = Compress::kNone;
  int powersgd_rank = 4;  // rank of the factors
  Uneven uneven = Uneven::kJoin;
  bool find_unused = false;
  bool sync_bn = false;
  bool shard_optimizer = false;
};

}  // namespace saturate
