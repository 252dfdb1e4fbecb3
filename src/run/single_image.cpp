#include "run/single_image.h"

#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/random_state.h"
#include "run/setup.h"
#include "saturate/data/error.h"
#include "step/precision.h"

namespace saturate {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The chunks that torch's chunk() makes of `images`.
int64_t smallest_chunk(int64_t images, int64_t chunks) {
  const int64_t size = ceil_div(images, chunks);
  return images - (ceil_div(images, size) - 1) * size;
}

// In a step of `images` over all ranks, in micro-batches of at most `most` on each; see TrainStep.
// `joined`: BatchNorm takes its statistics over all ranks.
int64_t fewest_in_step(int64_t images, int64_t most, bool joined, const Sharing& sharing) {
  const int64_t world = sharing.shard.world, rounds = ceil_div(ceil_div(images, world), most);
  int64_t fewest = images, together = 0;
  for (int64_t rank = 0; rank < std::min(world, images); ++rank) {
    const int64_t own = ceil_div(images - rank, world);
    together += own / rounds;  // of the last micro-batch, which is the smallest
    const int64_t count = ceil_div(own, most), small = own / count;
    fewest = std::min(fewest, smallest_chunk(small, sharing.replicas));
    if (own % count > 0) fewest = std::min(fewest, smallest_chunk(small + 1, sharing.replicas));
  }
  return joined ? together : fewest;
}

bool are_finite(const std::vector<at::Tensor>& tensors) {
  return std::ranges::all_of(
      tensors, [](const at::Tensor& one) { return at::isfinite(one).all().item<bool>(); });
}

// Tries it, and restores all that the forward changes.
bool trains_on_one_image(Model& model, const Recipe& recipe, const ModelInput& input,
                         const at::Device& device) {
  const c10::NoGradGuard no_grad;
  const RandomStateScope random(device);
  std::vector<at::Tensor> buffers, before;
  for (const auto& [name, tensor] : model.buffers()) {
    buffers.push_back(tensor);
    before.push_back(tensor.clone());
  }
  at::Tensor image = input.zeros(1).to(device);
  if (input.is_images() && recipe.train.channels_last)
    image = image.contiguous(at::MemoryFormat::ChannelsLast);
  model.set_training(true);
  bool trains = true;
  try {
    const AutocastScope autocast(recipe.precision.mode, device.type());
    model.forward(image);
    trains = are_finite(buffers) || !are_finite(before);
  } catch (const c10::Error& error) {
    trains = !is_single_value_error(error);
  }
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
  return trains;
}

}  // namespace

bool is_single_value_error(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  return message.find("Expected more than 1 value per channel") != std::string::npos;
}

int64_t fewest_together(const Recipe& recipe, size_t images, const Sharing& sharing) {
  const TrainOptions& train = recipe.train;
  const auto all = int64_t(epoch_samples(images, sharing.shard));
  const int64_t most = ceil_div(micro_batch_size(train), sharing.shard.world);
  const auto of_step = [&](int64_t count) {
    return fewest_in_step(count, most, recipe.distributed.sync_bn, sharing);
  };
  const int64_t last = train.drop_last ? 0 : all % train.batch;
  int64_t fewest = all;
  if (all >= train.batch) fewest = of_step(train.batch);
  if (last > 0) fewest = std::min(fewest, of_step(last));
  return fewest;
}

void require_no_single_image(Model& model, const Recipe& recipe, size_t images,
                             const Sharing& sharing, const ModelInput& input,
                             const at::Device& device) {
  if (fewest_together(recipe, images, sharing) != 1 ||
      trains_on_one_image(model, recipe, input, device))
    return;
  const TrainOptions& train = recipe.train;
  const int world = sharing.shard.world;
  const bool accumulates = train.accumulate > 1, shared = world * sharing.replicas > 1;
  std::string how;
  if (accumulates) how += fmt::format(" in {} micro-batches", train.accumulate);
  if (world > 1) how += fmt::format(" over {} processes", world);
  if (sharing.replicas > 1) how += fmt::format(" over {} GPUs", sharing.replicas);
  std::string remedy = "Set train.drop_last=true, or choose another train.batch";
  if (accumulates) remedy += " or train.accumulate";
  if (world > 1 && !recipe.distributed.sync_bn) remedy += ", or set distributed.sync_bn=true";
  fail(ErrorKind::kUsage,
       fmt::format("{} images in batches of {}{} leave a {} of one image, which BatchNorm in {} "
                   "cannot train on",
                   images, train.batch, how,
                   accumulates ? "micro-batch"
                   : shared    ? "local batch"
                               : "last batch",
                   recipe.model.name),
       "train.batch", remedy);
}

}  // namespace saturate
