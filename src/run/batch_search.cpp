#include "run/batch_search.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string_view>
#include <vector>

#include "data/elements.h"
#include "image/packed_jpeg.h"
#include "model/random_state.h"
#include "run/setup.h"
#include "run/single_image.h"
#include "run/training_parts.h"
#include "saturate/data/error.h"
#include "saturate/memory.h"
#include "step/graphed_step.h"
#include "step/precision.h"
#include "trace/cuda_calls.h"

namespace saturate {
namespace {

// Scratch memory of cuBLAS on a further stream: 32 MiB on Hopper, and its Lt part.
constexpr int64_t kWorkspaceBytes = int64_t{40} << 20;

int64_t stream_count(const PipelineOptions& pipeline) {
  return int64_t{pipeline.copy == Toggle::kOn} + pipeline.augment + pipeline.encoder;
}

// Batches of samples that vary in length vary too.
bool has_graph(const Recipe& recipe, const TensorSamples& tensors, const at::Device& device) {
  return std::ranges::none_of(tensors.fields, &TensorField::is_sequence) &&
         recipe.train.graph != GraphMode::kOff && device.is_cuda() && has_cuda_graphs() &&
         why_no_graph(recipe, /*processes=*/1).empty();
}

// An upper bound for a batch on the device, as it was copied and as it is once finished.
int64_t batch_bytes(const Recipe& recipe, const TensorSamples& tensors, int64_t images) {
  if (!tensors.fields.empty()) {
    int64_t converted = 0;  // to float32 or int64
    for (const TensorField& field : tensors.fields)
      converted += int64_t(sizeof(int64_t) * field.bytes() / bytes_of(field.type));
    return images * (tensors.loaded + converted);
  }
  const int64_t area = recipe.augment.size.area(), values = 3 * area;
  const int64_t rows = recipe.augment.blur > 0 ? values * int64_t(sizeof(float)) : 0;
  const int64_t labels = recipe.train.task == TaskKind::kSegment ? 9 * area : 8;
  return images * (2 * values + values * int64_t(bytes_of(recipe.augment.output)) + rows + labels +
                   int64_t(sizeof(EffectList) + sizeof(HeldPlace)));
}

// Memory that a run holds beside a step and its batch: the batches of a pipeline, the inputs of a
// graph, and bytes that are being finished.
int64_t bytes_beside(const Recipe& recipe, const TensorSamples& tensors, const at::Device& device,
                     int64_t images) {
  const int64_t streams = stream_count(recipe.pipeline);
  const LoaderOptions loading = train_loader_options(recipe);
  const bool graph = has_graph(recipe, tensors, device);
  int64_t batches = streams > 0 ? streams + 1 : 0;
  batches += int64_t{graph};
  batches +=
      int64_t{loading.output == BatchOutput::kPlaces || loading.output == BatchOutput::kUnfinished};
  batches += int64_t{loading.packs};
  const int64_t scratch =
      loading.packs ? unpack_teams(images) * int64_t(unpack_scratch_bytes(recipe.augment.size)) : 0;
  const int64_t workspaces = device.is_cuda() ? int64_t{graph} + recipe.pipeline.encoder : 0;
  return batches * batch_bytes(recipe, tensors, images) + workspaces * kWorkspaceBytes + scratch;
}

// Trial steps on a separate model.
class Rehearsal {
 public:
  Rehearsal(Env& env, const Recipe& recipe, const TensorSamples& tensors, const at::Device& device)
      : recipe_(recipe),
        tensors_(tensors),
        input_(model_input(env, recipe, tensors.fields)),
        device_(device),
        ledger_(env),
        parts_(make_training_parts(input_, recipe_, device)) {
    parts_.model->set_training(true);
    if (parts_.lookahead) parts_.lookahead->begin();
    if (recipe.pipeline.encoder) encode_ = parts_.model->facets().encoder->encode;
    // The graph keeps its memory. An evaluation, or a batch that is not full, has its own.
    const bool only_graph = recipe.train.drop_last && recipe.data.eval_source.empty();
    holds_graph_ = has_graph(recipe_, tensors_, device) && !only_graph;
    saved_bytes_ = bytes_of_checkpoint(parts_);
  }

  // On the CPU a save copies everything, and the writer copies it again in the file's layout.
  int64_t saving_bytes() const { return device_.is_cpu() ? 2 * saved_bytes_ : 0; }

  bool fits(int64_t images) {
    const bool good = fits_in_memory(
        device_, [&] { attempt(images); }, /*smaller_fits=*/images > 2);
    parts_.optimizer->zero_grad();
    tensor_memory(device_).release_cache();  // the next trial's tensors have other sizes
    return good;
  }

 private:
  void attempt(int64_t images) {
    const int64_t effective = recipe_.train.effective_batch;
    const int64_t all = effective > 0 ? effective : images;
    // During a second micro-batch the first one's gradients are in memory. An encoder's stage has
    // the whole batch.
    const int64_t count = encode_ ? all : std::min(all, 2 * images);
    std::vector<at::Tensor> beside = {hold(bytes_beside(recipe_, tensors_, device_, all))};
    DeviceBatch batch;
    batch.images = this->images(count, all);
    batch.labels = labels(count);
    if (encode_) beside.push_back(encode_ahead(batch));
    TensorMemory& memory = tensor_memory(device_);
    const int64_t before = memory.live_bytes();
    memory.take_peak();
    step(batch, images);
    if (!holds_graph_) return;
    beside.push_back(hold(memory.take_peak() - before));
    step(batch, images);
  }

  at::Tensor hold(int64_t bytes) const {
    return at::empty({bytes}, at::device(device_).dtype(at::kByte));
  }

  // Encodes as the pipeline does. Returns memory like that of the encoder, which works beside the
  // step, and of the features of the batches in flight.
  at::Tensor encode_ahead(DeviceBatch& batch) {
    const auto encode = [&] {
      const c10::NoGradGuard no_grad;
      const AutocastScope autocast(recipe_.precision.mode, device_.type());
      batch.features = encode_(batch.images);
    };
    encode();  // the first call's workspaces stay, and are not features
    batch.features.clear();
    TensorMemory& memory = tensor_memory(device_);
    const int64_t before = memory.live_bytes();
    memory.take_peak();
    encode();
    const int64_t features = memory.live_bytes() - before;
    return hold(memory.take_peak() - before + stream_count(recipe_.pipeline) * features);
  }

  void step(DeviceBatch& batch, int64_t images) {
    TrainStep step(*parts_.model, *parts_.task, *parts_.optimizer,
                   step_options(recipe_, int(images)), ledger_);
    RunningMetrics metrics(*parts_.task);
    step.run(batch, recipe_.optimizer.lr, metrics);
    if (parts_.lookahead) parts_.lookahead->update(1, 2);
    if (parts_.average) parts_.average->update();
    metrics.read();  // waits for the device, which may run out of memory late
  }

  at::Tensor labels(int64_t count) const {
    std::vector<int64_t> shape = {count};
    const bool segments = recipe_.train.task == TaskKind::kSegment;
    const TensorField* const target = target_of(tensors_.fields);
    if (target) {
      const auto end = target->shape.begin() + (segments ? 3 : ptrdiff_t(target->shape.size()));
      shape.insert(shape.end(), target->shape.begin(), end);
    } else if (segments) {
      shape.push_back(recipe_.augment.size.height);
      shape.push_back(recipe_.augment.size.width);
    }
    const bool whole = !target || is_whole(target->type);
    const bool binary = !whole || recipe_.train.task == TaskKind::kMultilabel;
    return at::randint(binary ? 2 : recipe_.model.classes, shape,
                       at::device(device_).dtype(whole ? at::kLong : at::kFloat));
  }

  at::Tensor tensors(int64_t count) const {
    const TensorField& tensor = input_.tensor;
    const auto on_device = at::device(device_);
    if (tensor.is_sequence) return input_.zeros(count).to(device_);  // the longest, no padding
    if (tensor.type != ElementType::kInt64) return at::rand(input_.batch_shape(count), on_device);
    return at::randint(std::max<int64_t>(2, tensor.values), input_.batch_shape(count),
                       on_device.dtype(at::kLong));
  }

  // As the feeder's: `count` of a batch of `all`. On the CPU it shares the loader's memory, which
  // torch did not allocate, unless it has to change the layout.
  at::Tensor images(int64_t count, int64_t all) {
    if (!input_.is_images()) return tensors(all).narrow(0, 0, count);
    const int64_t height = input_.size.height, width = input_.size.width, row = 3 * width;
    if (device_.is_cpu() && recipe_.train.channels_last) {
      pixels_.resize(size_t(count * height * row));
      for (size_t i = 0; i < pixels_.size(); ++i) pixels_[i] = float(i % 255) / 127 - 1;
      return at::from_blob(pixels_.data(), {count, 3, height, width}, {height * row, 1, row, 3});
    }
    at::Tensor batch = at::rand({all, 3, height, width}, at::device(device_));
    if (recipe_.train.channels_last) batch = batch.contiguous(at::MemoryFormat::ChannelsLast);
    return batch.narrow(0, 0, count);
  }

  Recipe recipe_;
  const TensorSamples& tensors_;
  const ModelInput input_;
  at::Device device_;
  Ledger ledger_;
  TrainingParts parts_;
  int64_t saved_bytes_ = 0;
  std::vector<float> pixels_;
  std::function<std::vector<at::Tensor>(const at::Tensor&)> encode_;  // null: part of the step
  bool holds_graph_ = false;
};

// REQUIRES: images.
int64_t buffer_bytes(const LoaderOptions& options, int64_t area) {
  if (options.output == BatchOutput::kPlaces) return 0;
  return area * int64_t(3 * bytes_of(options.pixel_type()) + (options.masks ? 1 : 0));
}

// Host memory of the batches that both loaders hold, if their size depends on the number of images
// that are computed at once. `pinned`: torch rounds the size of each
// batch up to a power of two.
int64_t loader_bytes(const Recipe& recipe, const TensorSamples& tensors, int64_t images,
                     int64_t most, bool pinned) {
  const TrainOptions& train = recipe.train;
  const bool has_images = tensors.fields.empty();
  const int64_t area = recipe.augment.size.area();
  const int64_t held = recipe.data.prefetch + 1;  // with the one that is computed
  const auto batch = [&](int64_t sample) {
    const int64_t bytes = images * sample;
    return pinned ? int64_t(std::bit_ceil(uint64_t(bytes))) : bytes;
  };
  int64_t bytes = 0;
  if (train.effective_batch == 0)
    bytes += std::min(held, (most + images - 1) / images) *
             batch(has_images ? buffer_bytes(train_loader_options(recipe), area) : tensors.loaded);
  if (!recipe.data.eval_source.empty() && train.eval_batch == 0)
    bytes += held * batch(has_images ? buffer_bytes(eval_loader_options(recipe), area)
                                     : int64_t(bytes_of(tensors.fields)));
  return bytes;
}

const char* memory_key(const Recipe& recipe) {
  return recipe.train.memory_gb > 0 ? "train.memory_gb" : "train.batch";
}

[[noreturn]] void fail_too_small(const Recipe& recipe, bool has_images, int64_t bytes) {
  const double gib = double(bytes) / double(int64_t{1} << 30);
  const ImageSize size = recipe.augment.size;  // set for images and cropped volumes
  fail(ErrorKind::kRun,
       fmt::format("{}{} does not fit in {:.3g} GiB, even with a single {}", recipe.model.name,
                   size.is_set() ? fmt::format(" at {} pixels", text_of(size)) : "", gib,
                   has_images ? "image" : "sample"),
       memory_key(recipe),
       fmt::format("{} {}model.width, or set train.checkpoint_segments=auto",
                   recipe.train.memory_gb > 0 ? "Raise it, lower" : "Lower",
                   size.is_set() ? "augment.size or " : ""));
}

// BatchNorm has no variance over one image of one pixel, the last layer's input in some models.
[[noreturn]] void fail_single_sample(const Recipe& recipe, bool has_images, int64_t most) {
  if (most > 1)
    fail(ErrorKind::kRun,
         fmt::format("{} does not train with two {} in memory, and BatchNorm cannot train on one",
                     recipe.model.name, has_images ? "images" : "samples"),
         memory_key(recipe),
         fmt::format("Raise it, lower {}model.width, or set train.checkpoint_segments=auto",
                     has_images ? "augment.size or " : ""));
  const bool asked = recipe.train.effective_batch == 1;
  fail(
      ErrorKind::kUsage,
      fmt::format("{}, and BatchNorm of {} cannot train on one",
                  asked        ? "train.batch is auto:1"
                  : has_images ? "the source has one image"
                               : "the source has one sample",
                  recipe.model.name),
      asked ? "train.batch" : "data.source",
      asked ? "Set it to auto:2 or more" : "Give a source with more, or choose another model.name");
}

bool has_any(std::string_view text, std::span<const char* const> signs) {
  return std::ranges::any_of(
      signs, [&](const char* sign) { return text.find(sign) != std::string_view::npos; });
}

}  // namespace

bool is_size_error(const c10::Error& error, bool smaller_fits) {
  static constexpr std::array kSigns = {
      "_STATUS_ALLOC_FAILED",                    // cuBLAS, cuSOLVER and cuDNN
      "ALLOCATION_FAILED",                       // cuDNN 9, for host and device
      "OOM trying to allocate",                  // cuBLASLt's workspace
      "CUDA error: out of memory",               // the driver's, beside torch's allocator
      "Unable to find a valid cuDNN algorithm",  // no algorithm's workspace could be allocated
      "unable to find an engine to execute",     // the same in cuDNN's graphs
      "canUse32BitIndexMath",
      "32-bit index",
      "32bit index",
      "INT_MAX",
      "integer out of range",
      "ensor is too large",
      "Output size is too large",
      "Tensor too large",
      "kernel launch blocks must be positive",  // their number overflowed
  };
  static constexpr std::array kSignsAfterSmaller = {
      "CUDNN_STATUS_NOT_SUPPORTED",  // tensors above 2^31 elements
      "No valid engine configs",
      "invalid configuration argument",  // a grid above the device's limits
      // No memory for a library's handle; without a smaller fit, the library may not work at all.
      "CUBLAS_STATUS_NOT_INITIALIZED",
      "CUDNN_STATUS_NOT_INITIALIZED",
      "CUDNN_STATUS_INTERNAL_ERROR",
  };
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view text = error.what_without_backtrace();
  return has_any(text, kSigns) || (smaller_fits && has_any(text, kSignsAfterSmaller));
}

std::optional<int64_t> largest_that_fits(int64_t limit, const std::function<bool(int64_t)>& fits) {
  int64_t good = 0, next = std::min<int64_t>(2, limit);
  while (good < limit && fits(next)) {
    good = next;
    next = std::min(limit, 2 * next);
  }
  if (good == limit) return good;
  if (good == 0) return next > 1 && fits(1) ? std::optional<int64_t>(1) : std::nullopt;
  for (int64_t bad = next; bad - good > 1;) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

bool fits_in_memory(const at::Device& device, const std::function<void()>& attempt,
                    bool smaller_fits) {
  try {
    attempt();
    return true;
  } catch (const c10::Error& error) {
    if (!is_size_error(error, smaller_fits)) throw;
  }
  tensor_memory(device).release_cache();
  return false;
}

int64_t find_micro_batch(Env& env, const Recipe& recipe, const at::Device& device, int64_t most,
                         const TensorSamples& tensors) {
  const RandomStateScope random(device);
  TensorMemory& memory = tensor_memory(device);
  const auto limit = [&] { return memory.budget() > 0 ? memory.budget() : memory.capacity(); };
  std::optional<int64_t> found;
  bool single_refused = false;
  const auto search = [&] {
    Rehearsal rehearsal(env, recipe, tensors, device);
    // A build without CUDA cannot limit a GPU's memory: there attempts fail when it is full.
    const bool limited = device.is_cpu() || memory.budget() > 0 || is_cuda_build();
    // train.memory_gb limits tensors alone.
    const bool shared = device.is_cpu() && memory.budget() == 0;
    found = largest_that_fits(most, [&](int64_t images) {
      const int64_t held = loader_bytes(recipe, tensors, images, most, device.is_cuda());
      if (images > 1 && held > tensor_memory(at::kCPU).capacity()) return false;
      const int64_t left = limit() - rehearsal.saving_bytes() - (shared ? held : 0);
      if (limited && left <= 0) return false;
      const MemoryBudget budget(memory, limited ? left : 0);
      try {
        return rehearsal.fits(images);
      } catch (const c10::Error& error) {
        if (images > 1 || !is_single_value_error(error)) throw;
        single_refused = true;
        return false;
      }
    });
  };
  const bool model_fits = fits_in_memory(device, search);
  memory.release_cache();
  if (single_refused) fail_single_sample(recipe, tensors.fields.empty(), most);
  if (!model_fits || !found) fail_too_small(recipe, tensors.fields.empty(), limit());
  return *found;
}

}  // namespace saturate
