// The option table's rows for [distributed], which have an effect where several processes train.
#include "recipe/compound_rows.h"

namespace saturate {

std::vector<OptionRow> distributed_rows() {
  const auto compress = SATURATE_MEMBER(distributed.compress);
  return {
      choice(SATURATE_OPTION(distributed.mode),
             {{"ddp", ParallelMode::kDdp}, {"dp", ParallelMode::kDp}},
             "ddp: each process has one device. dp: one process splits each batch over all of its "
             "GPUs, two or more, and copies the model to them in each step, like DataParallel; "
             "slower than ddp, for which it is the baseline."),
      choice(SATURATE_OPTION(distributed.backend),
             {{"auto", CollectiveBackend::kAuto},
              {"gloo", CollectiveBackend::kGloo},
              {"nccl", CollectiveBackend::kNccl}},
             "What transfers gradients between processes; auto: nccl between GPUs; between CPUs "
             "shared memory if all processes are on one machine, else gloo. gloo: always gloo, "
             "through sockets."),
      number(SATURATE_OPTION(distributed.bucket_mb), {0.001, 1 << 20}, "MiB",
             "Size of the gradient buckets, each all-reduced as soon as backward has filled it; "
             "the first is at most 1 MiB."),
      number(
          SATURATE_OPTION(distributed.timeout_s), {1, 86400}, "seconds",
          "Longest wait for another process before the run fails. If it is 300, processes wait a "
          "minute longer than a loader does for data: 11 minutes, or data.timeout_s and 2 "
          "minutes if that is longer."),
      one_word("distributed.compress",
               {Word("none").sets(compress, Compress::kNone),
                Word("bf16").sets(compress, Compress::kBf16),
                Word("fp16").sets(compress, Compress::kFp16),
                Word("powersgd")
                    .sets(compress, Compress::kPowerSgd)
                    .takes("rank", SATURATE_MEMBER(distributed.powersgd_rank), {1, 1024})},
               "bf16, fp16: rounds gradients for transfer, half the bytes. powersgd: sends each "
               "gradient matrix as two low-rank factors, with error feedback to the next step; a "
               "higher rank (1 to 1024, without one 4) is more accurate and sends more bytes. "
               "Results differ from those of one process."),
      choice(SATURATE_OPTION(distributed.uneven),
             {{"join", Uneven::kJoin}, {"pad", Uneven::kPad}, {"drop", Uneven::kDrop}},
             "If an epoch does not divide evenly among the processes: with join some have fewer "
             "images, or none, in the last step, and each image counts once; pad repeats the "
             "epoch's first images and drop omits its last, like Python's DistributedSampler."),
      flag(SATURATE_OPTION(distributed.find_unused),
           "Searches the graph in each step for parameters without a gradient, for which the "
           "reducer would otherwise wait; costs a graph traversal."),
      flag(SATURATE_OPTION(distributed.sync_bn),
           "BatchNorm computes its statistics over the images of all processes, with two "
           "all-reduces per layer; false: over each process's own."),
      flag(SATURATE_OPTION(distributed.shard_optimizer),
           "Each process keeps the optimizer state of its share of the parameters, updates these, "
           "and sends them to the others (ZeRO, stage 1): less memory, one more collective."),
  };
}

namespace {

bool is_o2(PrecisionMode mode) {
  return mode == PrecisionMode::kFp16O2 || mode == PrecisionMode::kBf16O2;
}

// Refuses options that distributed.mode=dp does not support.
void validate_data_parallel(const Recipe& recipe, const std::string& where) {
  const TrainOptions& train = recipe.train;
  const std::string remedy = "Remove it, or set distributed.mode=ddp";
  const auto refuse = [&](bool set, const char* key) {
    if (set) fail_option(key, "is not supported with distributed.mode = \"dp\"", remedy, where);
  };
  refuse(train.batch == kAutomatic, "train.batch=auto");
  refuse(train.checkpoint_segments != 0, "train.checkpoint_segments");
  refuse(!train.compiled.empty(), "train.compiled");
  refuse(train.task == TaskKind::kSegment, "train.task=segment");
  refuse(recipe.pipeline.encoder, "pipeline.encoder");
  refuse(recipe.distributed.sync_bn, "distributed.sync_bn");
  refuse(recipe.distributed.shard_optimizer, "distributed.shard_optimizer");
  refuse(recipe.precision.mode == PrecisionMode::kFp16O3, "precision.mode=fp16-o3");
}

}  // namespace

void validate_distributed(const Recipe& recipe, const std::string& where) {
  if (recipe.distributed.mode == ParallelMode::kDp) validate_data_parallel(recipe, where);
  if (recipe.distributed.compress == Compress::kPowerSgd &&
      (recipe.precision.mode == PrecisionMode::kFp16 ||
       recipe.precision.mode == PrecisionMode::kFp16O2))
    fail_option("distributed.compress",
                "is powersgd, whose error feedback would keep an fp16 overflow forever",
                "Set precision.mode to bf16, or distributed.compress to bf16", where);
  if (recipe.distributed.find_unused && recipe.train.checkpoint_segments != 0)
    fail_option("distributed.find_unused", "cannot search in train.checkpoint_segments",
                "Name the parameters in optimizer.freeze, or set one of the two", where);
  if (recipe.distributed.sync_bn && traits_of(recipe.model).is_file)
    fail_option("distributed.sync_bn", "cannot change the program in model.file",
                "Remove it, or choose another model.name", where);
  if (recipe.distributed.shard_optimizer && is_o2(recipe.precision.mode))
    fail_option("distributed.shard_optimizer", "does not shard the fp32 master weights of -o2",
                "Set precision.mode to bf16 or fp16, or remove it", where);
}

void validate_world(const Recipe& recipe, int processes) {
  const std::string where = std::to_string(processes) + " processes";
  const TrainOptions& train = recipe.train;
  if (recipe.distributed.mode == ParallelMode::kDp)
    fail_option("distributed.mode", "is dp, which is one process over several GPUs",
                "Set it to ddp, or start one process", where);
  if (train.batch == kAutomatic)
    fail_option("train.batch", "is auto, which supports one process only",
                "Give the global batch size as a number", where);
  if (train.batch < processes)
    fail_option("train.batch", "is smaller than the number of processes",
                "Set it to at least one image per process: it counts the images of all processes",
                where);
  if (!train.compiled.empty() && train.batch % (processes * train.accumulate) != 0)
    fail_option("train.compiled", "needs micro-batches of equal size",
                "Make train.batch a multiple of the processes times train.accumulate", where);
  if (!train.compiled.empty() && recipe.distributed.sync_bn)
    fail_option("train.compiled", "computes BatchNorm's statistics over one process's images",
                "Remove it, or set distributed.sync_bn=false", where);
  if (recipe.pipeline.encoder)
    fail_option("pipeline.encoder", "supports one process only", "Remove it", where);
  if (recipe.precision.mode == PrecisionMode::kFp16O3)
    fail_option("precision.mode", "= fp16-o3 supports one process only",
                "Set it to fp16-o2 or bf16", where);
  if (train.accumulate > 1 && is_o2(recipe.precision.mode))
    fail_option("train.accumulate", "sums gradients of -o2 outside the model",
                "Set precision.mode to bf16 or fp16, or train.accumulate=1", where);
  if (recipe.distributed.backend == CollectiveBackend::kNccl && train.device == "cpu")
    fail_option("distributed.backend", "is nccl, which connects GPUs, and train.device is cpu",
                "Set it to auto", where);
}

}  // namespace saturate
