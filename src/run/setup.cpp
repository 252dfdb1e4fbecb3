#include "run/setup.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "saturate/batch_search.h"
#include "saturate/feed.h"
#include "saturate/host.h"
#include "saturate/image.h"
#include "saturate/thread_pool.h"
#include "saturate/train_step.h"

namespace saturate {

at::Device resolve_device(const std::string& name) {
  const bool has_gpu = at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  if (name == "cpu" || (name == "auto" && !has_gpu)) return at::kCPU;
  if (!has_gpu)
    fail(ErrorKind::kUsage, "there is no GPU that this build can use", "train.device",
         "Set train.device=cpu; `saturate env` tells what was found");
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
         "Set distributed.mode=ddp, or train on a machine with more GPUs (`saturate env` tells "
         "what was found)");
  std::vector<at::Device> others;
  for (int i = 1; i < count; ++i) others.emplace_back(at::kCUDA, i);
  return others;
}

namespace {

AugmentDevice resolve_augment_device(AugmentDevice asked, const at::Device& device) {
  const bool can = device.is_cuda() && has_finish_kernel();
  if (asked == AugmentDevice::kCuda && !can)
    fail(ErrorKind::kUsage,
         device.is_cuda() ? "this build has no kernel for it" : "the run is not on a GPU",
         "augment.device", "Set augment.device=auto");
  if (asked != AugmentDevice::kAuto) return asked;
  return can ? AugmentDevice::kCuda : AugmentDevice::kCpu;
}

// The shorter side of the first image, passing over broken ones where they may be skipped.
int first_image_side(const Dataset& data, OnError on_error) {
  Decoder decoder;
  Sample sample;
  for (size_t i = 0;; ++i) {
    try {
      data.read(i, sample);
      const ImageInfo info = probe_sample(decoder, sample);
      return std::min(info.width, info.height);
    } catch (const Error&) {
      if (on_error == OnError::kFail || i + 1 == data.size()) throw;
    }
  }
}

// BatchNorm has no variance over one image of one pixel, which is what some models end in.
bool leaves_single_image(const TrainOptions& train, size_t images) {
  const size_t batch = size_t(train.batch), part = size_t(images_per_part(train));
  const size_t last = train.drop_last ? 0 : images % batch;
  const auto smallest_part = [part](size_t count) { return count / ((count + part - 1) / part); };
  return part > 1 && (smallest_part(batch) == 1 || (last > 0 && smallest_part(last) == 1));
}

void require_no_single_image(const TrainOptions& train, size_t images) {
  if (!leaves_single_image(train, images)) return;
  const int batch = train.batch;
  const bool parts = train.accumulate > 1;
  fail(ErrorKind::kUsage,
       fmt::format("{} images in batches of {}{} leave a {} of one image, which BatchNorm cannot "
                   "train on",
                   images, batch, parts ? fmt::format(" in {} parts", train.accumulate) : "",
                   parts ? "part" : "last batch"),
       "train.batch",
       "Set train.drop_last=true, or choose another train.batch" +
           std::string(parts ? " or train.accumulate" : ""));
}

// Sets the batch by the number of images that fit at once.
void set_batch(TrainOptions& train, int fit) {
  train.batch = train.effective_batch > 0 ? train.effective_batch : fit;
  train.accumulate = (train.batch + fit - 1) / fit;
}

void find_batch(Env& env, Recipe& recipe, const Dataset& data, const at::Device& device) {
  TrainOptions& train = recipe.train;
  const int64_t most = train.effective_batch > 0 ? train.effective_batch
                                                 : std::min<int64_t>(int64_t(data.size()), 1 << 20);
  at::set_num_threads(train.threads);
  int fit = int(find_micro_batch(env, recipe, device, most));
  set_batch(train, fit);
  while (fit > 2 && leaves_single_image(train, data.size())) set_batch(train, --fit);
  train.effective_batch = 0;  // it is train.batch now
  if (train.eval_batch == 0) train.eval_batch = images_per_part(train);
}

}  // namespace

int images_per_part(const TrainOptions& train) {
  return (train.batch + train.accumulate - 1) / train.accumulate;
}

void require_masks(Task task, const Dataset& data, const std::string& source) {
  const bool segments = task == Task::kSegment;
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
  recipe.train.device = device.is_cuda() ? "cuda" : "cpu";
  recipe.precision.mode = resolve_precision(recipe.precision.mode, device);
}

Recipe resolve_recipe(Recipe recipe, const Dataset& data, const at::Device& device) {
  require_masks(recipe.train.task, data, recipe.data.source);
  const int classes = int(data.classes().size());
  if (recipe.model.classes == 0) recipe.model.classes = classes;
  if (recipe.model.classes < classes)
    fail(ErrorKind::kUsage,
         fmt::format("model.classes is {}, but the training source has {} classes",
                     recipe.model.classes, classes),
         recipe.data.source, "Leave model.classes out to take as many as there are");
  if (recipe.augment.size == 0) recipe.augment.size = first_image_side(data, recipe.data.on_error);
  if (recipe.train.eval_shift >= recipe.augment.size)
    fail(ErrorKind::kUsage,
         fmt::format("train.eval_shift is {}, and images have only {} pixels a side",
                     recipe.train.eval_shift, recipe.augment.size),
         recipe.data.source, "Shift by a pixel or two");
  resolve_machine(recipe, device);
  if (recipe.augment.output == PixelType::kBfloat16 &&
      recipe.precision.mode != PrecisionMode::kBf16 &&
      recipe.precision.mode != PrecisionMode::kBf16O2)
    fail(ErrorKind::kUsage, "bf16 images are for a model that computes in bf16", "augment.output",
         "Set precision.mode=bf16, or augment.output=fp32");
  if (recipe.data.cache.mode == CacheMode::kDevice && device.is_cuda() && !has_finish_kernel())
    fail(ErrorKind::kUsage, "this build has no kernel that takes images there", "data.cache",
         "Set data.cache=ram");
  recipe.augment.device = resolve_augment_device(recipe.augment.device, device);
  if (recipe.pipeline.augment && device.is_cuda() && recipe.augment.device != AugmentDevice::kCuda)
    fail(ErrorKind::kUsage, "the GPU is not to augment: augment.device is cpu", "pipeline.augment",
         "Set augment.device=cuda, with a build that has the kernel, or leave it out");
  return recipe;
}

Recipe resolve_batch(Env& env, Recipe recipe, const Dataset& data, const at::Device& device) {
  if (recipe.train.batch == kAutomatic) find_batch(env, recipe, data, device);
  if (recipe.train.eval_batch == 0) recipe.train.eval_batch = recipe.train.batch;
  require_no_single_image(recipe.train, data.size());
  return recipe;
}

LoaderOptions train_loader_options(const Recipe& recipe) {
  LoaderOptions options;
  options.batch = size_t(recipe.train.batch);
  options.threads = recipe.data.threads;
  options.prefetch = recipe.data.prefetch;
  options.shuffle = recipe.data.shuffle;
  options.drop_last = recipe.train.drop_last;
  options.on_error = recipe.data.on_error;
  options.decode = recipe.data.decode;
  options.places = recipe.data.cache.mode == CacheMode::kDevice;
  options.masks = recipe.train.task == Task::kSegment;
  // The GPU's kernel takes the bytes as they are cut, as does a pipeline's own stage.
  options.finish = !options.places && !recipe.pipeline.augment &&
                   (recipe.augment.device != AugmentDevice::kCuda || recipe.train.device != "cuda");
  options.type = options.finish ? recipe.augment.output : PixelType::kUint8;
  options.planar = options.finish && !recipe.train.channels_last;
  options.seed = recipe.seed;
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

std::unique_ptr<ResidentDataset> put_on_device(const Recipe& recipe, const Dataset& data,
                                               const std::string& source, const at::Device& device,
                                               const ProgressCallback& progress) {
  if (recipe.data.cache.mode != CacheMode::kDevice) return nullptr;
  return std::make_unique<ResidentDataset>(data, source, train_loader_options(recipe),
                                           recipe.augment, device, progress);
}

void require_same_classes(const std::vector<std::string>& expected,
                          const std::vector<std::string>& found, const std::string& source) {
  for (const auto& name : found)
    if (std::find(expected.begin(), expected.end(), name) == expected.end())
      fail(ErrorKind::kData, "class \"" + name + "\" is unknown to the training data", source,
           "Give a source with the same class names");
  for (const auto& name : expected)
    if (std::find(found.begin(), found.end(), name) == found.end())
      fail(ErrorKind::kData, "class \"" + name + "\" of the training data is missing", source,
           "Give a source with the same class names");
}

void require_same_numbers(const std::vector<std::string>& expected, const Dataset& data,
                          const std::string& source) {
  if (!data.has_masks() || data.classes() == expected) return;
  fail(ErrorKind::kData, "the classes have other numbers than in the training data", source,
       "Name them in the same order in classes.txt, and number the masks so");
}

}  // namespace saturate
