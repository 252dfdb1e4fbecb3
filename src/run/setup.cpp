#include "run/setup.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/printable.h"
#include "base/thread_pool.h"
#include "data/batch_memory.h"
#include "data/read_sample.h"
#include "data/read_undamaged.h"
#include "feed/finish_batch.h"
#include "reduce/binding.h"
#include "run/batch_search.h"
#include "run/checkpoint.h"
#include "run/single_image.h"
#include "saturate/data/image.h"
#include "saturate/data/world.h"
#include "saturate/train_step.h"
#include "step/precision.h"
#include "step/switches.h"
#include "trace/host.h"

namespace saturate {
namespace {

// For loader threads that share the step's cores. If one of the step's threads waits for a core,
// all the others wait at the end of the operation; no thread waits for a loader's.
constexpr int kLoaderNice = 10;

// 16-bit images need a model that computes in the same type.
void check_output(const Recipe& recipe) {
  const PixelType output = recipe.augment.output;
  if (output == PixelType::kFloat32) return;
  const bool is_fp16 = output == PixelType::kFloat16;
  if (reduced_type(recipe.precision.mode) == (is_fp16 ? at::kHalf : at::kBFloat16)) return;
  const std::string half = is_fp16 ? "fp16" : "bf16";
  fail(ErrorKind::kUsage, half + " images are for a model that computes in " + half,
       "augment.output", "Set precision.mode=" + half + ", or augment.output=fp32");
}

void warn_of_idle_gpu(const std::string& root) {
  static std::atomic<bool> warned = false;
  const std::string text = this_world().rank > 0 ? "" : idle_gpu_warning(at::hasCUDA(), root);
  if (!text.empty() && !warned.exchange(true)) print_warning(text);
}

// Empty if there is one.
std::string why_no_kernel(const at::Device& device) {
  if (!device.is_cuda()) return "the run is not on a GPU";
  return has_finish_kernel() ? "" : "this build has no kernel for it";
}

AugmentDevice resolve_augment_device(AugmentDevice asked, const at::Device& device) {
  const std::string problem = why_no_kernel(device);
  if (asked == AugmentDevice::kCuda && !problem.empty())
    fail(ErrorKind::kUsage, problem, "augment.device", "Set augment.device=auto");
  if (asked != AugmentDevice::kAuto) return asked;
  return problem.empty() ? AugmentDevice::kCuda : AugmentDevice::kCpu;
}

// REQUIRES: augment.device is resolved.
DecodeDevice resolve_decode_device(const Recipe& recipe, const at::Device& device) {
  if (recipe.data.decode_device != DecodeDevice::kCuda) return DecodeDevice::kCpu;
  const std::string problem = why_no_kernel(device);
  if (!problem.empty())
    fail(ErrorKind::kUsage, problem, "data.decode_device=cuda", "Set data.decode_device=auto");
  if (recipe.augment.device != AugmentDevice::kCuda)
    fail(ErrorKind::kUsage, "it needs augmentation on the GPU, and augment.device is cpu",
         "data.decode_device=cuda", "Set augment.device=cuda, or data.decode_device=cpu");
  return DecodeDevice::kCuda;
}

// The shorter side of the first image, skipping broken ones under data.on_error=skip.
int first_image_side(const Dataset& data, OnError on_error) {
  Decoder decoder;
  Sample sample;
  for (size_t i = 0;; ++i) {
    try {
      return read_undamaged(data, i, 1, [&] {
        read_sample_once(data, i, sample);
        const ImageInfo info = probe_sample(decoder, sample);
        return std::min(info.width, info.height);
      });
    } catch (const Error& error) {
      const bool is_broken = error.kind() == ErrorKind::kData;
      if (!is_broken || on_error == OnError::kFail || i + 1 == data.size()) throw;
    }
  }
}

// Sets the batch by the number of images that fit in memory at once.
void set_batch(TrainOptions& train, int fit) {
  train.batch = train.effective_batch > 0 ? train.effective_batch : fit;
  train.accumulate = (train.batch + fit - 1) / fit;
}

// Memory of the size that the evaluation's held images will have.
at::Tensor room_for_evaluation(Env& env, const Recipe& recipe, const at::Device& device,
                               const Dataset* evaluated) {
  const DataOptions& from = recipe.data;
  if (from.cache.mode != CacheMode::kDevice || from.eval_source.empty()) return {};
  std::shared_ptr<const Dataset> opened;
  if (!evaluated) evaluated = (opened = open_input(env, from.eval_source, from)).get();
  return allocate_images(int64_t(evaluated->size()), recipe.augment.size, device, from.eval_source);
}

LoaderOptions for_data(LoaderOptions options, const Dataset& data, const ResidentImages* resident) {
  if (resident) options.held = resident->samples();
  if (data.tensors().empty()) return options;
  options.output = options.output == BatchOutput::kUnfinished ? BatchOutput::kUnfinishedTensors
                                                              : BatchOutput::kTensors;
  options.masks = false;
  options.type = PixelType::kFloat32;
  return options;
}

void find_batch(Env& env, Recipe& recipe, const Dataset& data, const at::Device& device,
                const Dataset* evaluated) {
  const at::Tensor room = room_for_evaluation(env, recipe, device, evaluated);
  TrainOptions& train = recipe.train;
  const int64_t most = train.effective_batch > 0 ? train.effective_batch
                                                 : std::min<int64_t>(int64_t(data.size()), 1 << 20);
  const SwitchesScope switches;
  switches.set({.threads = train.threads});
  TensorSamples tensors{batch_fields(data, recipe.augment)};
  const LoaderOptions loading = for_data(train_loader_options(recipe), data, nullptr);
  for (const SampleColumn& column : columns_of(data, loading, recipe.augment))
    tensors.loaded += int64_t(column.size);
  int fit = int(find_micro_batch(env, recipe, device, most, tensors));
  set_batch(train, fit);
  while (fit > 2 && fewest_together(recipe, data.size(), {}) == 1) set_batch(train, --fit);
  train.effective_batch = 0;  // it is train.batch now
  if (train.eval_batch == 0) train.eval_batch = micro_batch_size(train);
}

}  // namespace

std::string idle_gpu_warning(bool has_cuda, const std::string& root) {
  // A container may show the driver without access to a GPU.
  std::error_code none;
  const bool has_access = std::filesystem::exists(root + "/dev/nvidiactl", none);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool is_hidden = visible && (*visible == '\0' || *visible == '-');
  if (!has_access || is_hidden || gpus_of_machine(root).empty()) return "";
  return has_cuda
             ? "this machine has a GPU that CUDA does not find, and the run is on the CPU: see "
               "whether nvidia-smi works, and whether the driver supports CUDA 13"
             : "this machine has a GPU, and the run is on the CPU: LibTorch has no CUDA here. "
               "Run tools/setup.sh --full and rebuild, or set train.device=cpu";
}

at::Device resolve_device(const std::string& name, const std::string& root) {
  const bool has_gpu = at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  if (name == "auto" && !has_gpu) warn_of_idle_gpu(root);
  if (name == "cpu" || (name == "auto" && !has_gpu)) return at::kCPU;
  if (!has_gpu)
    fail(ErrorKind::kUsage, "there is no GPU that this build can use", "train.device",
         "Set train.device=cpu; `saturate env` shows what was found");
  return at::Device(at::kCUDA, 0);
}

std::vector<at::Device> other_devices(const Recipe& recipe, const at::Device& device) {
  if (recipe.distributed.mode != ParallelMode::kDp) return {};
  const int count = device.is_cuda() ? gpu_count() : 0;
  if (count < 2)
    fail(ErrorKind::kUsage,
         fmt::format("distributed.mode is dp, which needs two GPUs or more in one process, and "
                     "there {} {}",
                     count == 1 ? "is" : "are", count),
         "distributed.mode",
         "Set distributed.mode=ddp, or train on a machine with more GPUs (`saturate env` shows "
         "what was found)");
  std::vector<at::Device> others;
  for (int i = 1; i < count; ++i) others.emplace_back(at::kCUDA, i);
  return others;
}

int micro_batch_size(const TrainOptions& train) {
  return (train.batch + train.accumulate - 1) / train.accumulate;
}

void require_samples(const Dataset& data, const std::string& source) {
  if (data.size() == 0)
    fail(ErrorKind::kData, "the source has no samples", source,
         "Check what the program's dataset selects");
}

void require_masks(TaskKind task, const Dataset& data, const std::string& source) {
  if (data.tensors().empty() &&
      (task == TaskKind::kRegress || task == TaskKind::kMultilabel || task == TaskKind::kLanguage))
    fail(ErrorKind::kUsage, "each image of the source has a class and no other target", source,
         "Set train.task=classify, or give a source of tensors");
  const bool segments = task == TaskKind::kSegment;
  if (!data.tensors().empty()) return;  // resolve_tensors() has checked the target
  if (segments == data.has_masks()) return;
  if (segments)
    fail(ErrorKind::kUsage, "the source has no masks, and train.task is segment", source,
         "Give masks:PATH, or synth:masks=true,...");
  fail(ErrorKind::kUsage,
       "the source has masks and no class for an image, and train.task is classify", source,
       "Set train.task=segment");
}

void resolve_machine(Recipe& recipe, const at::Device& device) {
  if (recipe.data.threads == 0) recipe.data.threads = available_cores();
  if (recipe.train.threads == 0) recipe.train.threads = available_cores();
  if (recipe.data.nice < 0) recipe.data.nice = device.is_cuda() ? 0 : kLoaderNice;
  recipe.train.device = device.is_cuda() ? "cuda" : "cpu";
  recipe.precision.mode = resolve_precision(recipe.precision.mode, device);
  PipelineOptions& pipeline = recipe.pipeline;
  if (pipeline.copy == Toggle::kAuto) pipeline.copy = device.is_cuda() ? Toggle::kOn : Toggle::kOff;
  if (pipeline.check && !pipeline.any())
    fail(ErrorKind::kUsage, "the run has no pipeline on a CPU", "debug.checks=streams",
         "Set pipeline.copy, pipeline.augment or pipeline.encoder, or remove it");
}

namespace {

// Settings of the images', or volumes', device and type. REQUIRES: the precision is resolved.
void resolve_images(Recipe& recipe, const at::Device& device) {
  check_output(recipe);
  if (recipe.data.cache.mode == CacheMode::kDevice && device.is_cuda() && !has_finish_kernel())
    fail(ErrorKind::kUsage, "this build has no kernel for images in GPU memory", "data.cache",
         "Set data.cache=ram");
  recipe.augment.device = resolve_augment_device(recipe.augment.device, device);
  recipe.data.decode_device = resolve_decode_device(recipe, device);
  if (recipe.pipeline.augment && device.is_cuda() && recipe.augment.device != AugmentDevice::kCuda)
    fail(ErrorKind::kUsage, "it needs augmentation on the GPU, and augment.device is cpu",
         "pipeline.augment",
         "Set augment.device=cuda, with a build that has the kernel, or remove it");
}

void resolve_classes(Recipe& recipe, const Dataset& data) {
  const int classes = int(data.classes().size());
  if (classes == 0)
    fail(ErrorKind::kData, "the source names no classes", recipe.data.source,
         "A program's own dataset must return them in classes()");
  if (recipe.model.classes == 0) recipe.model.classes = classes;
  if (recipe.model.classes < classes)
    fail(ErrorKind::kUsage,
         fmt::format("model.classes is {}, but the training source has {} classes",
                     recipe.model.classes, classes),
         recipe.data.source, "Remove model.classes to use the number in the data");
}

}  // namespace

Recipe resolve_recipe(Recipe recipe, const Dataset& data, const at::Device& device) {
  const bool has_tensors = !data.tensors().empty();
  if (has_tensors)
    resolve_tensors(recipe, data);
  else if (recipe.train.task == TaskKind::kAuto)
    recipe.train.task = TaskKind::kClassify;
  if (!has_tensors && recipe.train.loss != RegressionLoss::kMse)
    fail(ErrorKind::kUsage, "it is for train.task=regress, and the source has images", "train.loss",
         "Remove it");
  require_masks(recipe.train.task, data, recipe.data.source);
  if (!has_tensors || recipe.train.task == TaskKind::kClassify) resolve_classes(recipe, data);
  if (!has_tensors && !recipe.augment.size.is_set())
    recipe.augment.size = first_image_side(data, recipe.data.on_error);
  if (!has_tensors && recipe.train.eval_shift >= recipe.augment.size.shorter())
    fail(ErrorKind::kUsage,
         fmt::format("train.tta shifts by {}, and images have only {} pixels a side",
                     recipe.train.eval_shift, recipe.augment.size.shorter()),
         recipe.data.source, "Shift by a pixel or two");
  resolve_machine(recipe, device);
  if (!has_tensors || std::ranges::any_of(data.tensors(), &TensorField::is_volume))
    resolve_images(recipe, device);
  return recipe;
}

ModelInput model_input(Env& env, const Recipe& recipe, const std::vector<TensorField>& fields) {
  ModelInput input{recipe.model.classes, recipe.augment.size, env};
  if (!fields.empty()) input.tensor = input_of(fields);
  for (const SizeChange& change : recipe.augment.size_changes)
    input.other_sizes.push_back(change.size);
  return input;
}

ModelInput model_input(Env& env, const Recipe& recipe, const Checkpoint& checkpoint) {
  ModelInput input = model_input(env, recipe, checkpoint.fields);
  input.size = checkpoint.image_size;
  return input;
}

Recipe resolve_batch(Env& env, Recipe recipe, const Dataset& data, const at::Device& device,
                     const Dataset* evaluated) {
  if (recipe.train.batch == kAutomatic) find_batch(env, recipe, data, device, evaluated);
  if (recipe.train.eval_batch == 0) recipe.train.eval_batch = recipe.train.batch;
  return recipe;
}

DistributedOptions group_options(const Recipe& recipe) {
  DistributedOptions options = recipe.distributed;
  if (options.timeout_s != DistributedOptions().timeout_s) return options;
  const std::chrono::duration<double> for_data = wait_limit_for(recipe.data.store);
  options.timeout_s = std::max(options.timeout_s, for_data.count() + 60);
  return options;
}

LoaderOptions train_loader_options(const Recipe& recipe) {
  LoaderOptions options;
  options.batch = size_t(recipe.train.batch);
  options.threads = recipe.data.threads;
  options.nice = std::max(0, recipe.data.nice);
  options.prefetch = recipe.data.prefetch;
  options.shuffle = recipe.data.shuffle;
  options.drop_last = recipe.train.drop_last;
  options.on_error = recipe.data.on_error;
  options.decode = recipe.data.decode;
  options.masks = recipe.train.task == TaskKind::kSegment;
  // The GPU's kernel takes the bytes as they are cut, as does a pipeline's own stage; so do those
  // of volumes.
  if (recipe.data.cache.mode == CacheMode::kDevice)
    options.output = BatchOutput::kPlaces;
  else if (recipe.pipeline.augment ||
           (recipe.augment.device == AugmentDevice::kCuda && recipe.train.device == "cuda"))
    options.output = BatchOutput::kUnfinished;
  else if (!recipe.train.channels_last)
    options.output = BatchOutput::kPlanar;
  options.packs = recipe.data.decode_device == DecodeDevice::kCuda &&
                  recipe.train.device == "cuda" && options.output == BatchOutput::kUnfinished;
  options.type = recipe.augment.output;
  options.seed = recipe.seed;
  options.wait_limit = wait_limit_for(recipe.data.store);
  return options;
}

LoaderOptions eval_loader_options(const Recipe& recipe) {
  Recipe alone = recipe;
  alone.pipeline = {};
  LoaderOptions options = train_loader_options(alone);
  options.batch = size_t(recipe.train.eval_batch);
  options.shuffle.mode = ShuffleMode::kNone;
  options.drop_last = false;
  options.train = false;
  return options;
}

InputFeed::InputFeed(const Dataset& data, const ResidentImages* resident, LoaderOptions options,
                     const Recipe& recipe, const at::Device& device, Ledger& ledger,
                     StreamClock* clock)
    : loader(data, for_data(std::move(options), data, resident), recipe.augment,
             batch_allocator(device)),
      feeder(loader, device, recipe.train.channels_last, ledger, recipe.augment,
             resident ? resident->held() : HeldImages(), clock) {}

std::unique_ptr<ResidentImages> put_on_device(const Recipe& recipe, const LoaderOptions& options,
                                              const Dataset& data, const std::string& source,
                                              const at::Device& device,
                                              const ProgressCallback& progress) {
  if (recipe.data.cache.mode != CacheMode::kDevice) return nullptr;
  return std::make_unique<ResidentImages>(data, source, options, recipe.augment, device, progress);
}

}  // namespace saturate
