// SPDX-License-Identifier: BSD-3-Clause
// Models: a registry of networks for images and for tensors, and the narrow interface that the step
// uses.
//
// This header is cheap to include; only sources that define a model include torch/nn.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/env.h"
#include "saturate/data/registry.h"
#include "saturate/data/step_options.h"
#include "saturate/gradient_checkpoint.h"

namespace torch::jit {
struct Module;
}

namespace saturate {

class BatchNorm2dImpl;

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// logits and labels of N > 0 samples, on one device, to a scalar: the mean over the N samples (in
// segmentation over their labelled pixels), by which micro-batches and processes are weighted.
// Without gradients in evaluation.
using LossFunction = std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels)>;

// forward(images) as decode(encode(images)). The names of the encoder's parameters and buffers
// begin with "encoder."; both functions may run concurrently on different threads.
struct EncoderDecoder {
  std::function<std::vector<at::Tensor>(const at::Tensor& images)> encode;
  std::function<at::Tensor(const std::vector<at::Tensor>& features)> decode;
};

// Differences of other programs' weight files from the names and shapes of a model.
struct ForeignWeights {
  std::string prefix;                  // of modules, such as "transformer.", ignored in names
  std::vector<std::string> constants;  // patterns of names that are not weights, and are ignored
  // A name in such a file, and the parameter that it repeats: with other values it is an error.
  std::vector<std::pair<std::string, std::string>> copies;
  // Parameters of which a file may have more rows: the first ones are loaded.
  std::vector<std::string> longer;
};

// Properties that only some models have; empty by default. Valid as long as the model.
struct ModelFacets {
  bool per_pixel = false;     // logits are [N, classes, H, W], or [N, classes, D, H, W]
  LossFunction loss;          // in place of the task's own loss, in training and evaluation
  std::vector<Stage> stages;  // forward() in sequence, for checkpointing
  std::optional<EncoderDecoder> encoder;
  // Number of training images that a model needs for statistics before training from scratch;
  // prepare() gets about as many, in the form of forward()'s.
  int64_t wanted_images = 0;
  std::function<void(const at::Tensor& images)> prepare;
  // From now on BatchNorms whose parameters require no gradient use their running statistics in
  // training too, without updating them.
  std::function<void()> keep_frozen_statistics;
  std::vector<BatchNorm2dImpl*> norms;  // every saturate::BatchNorm2d, for SyncBatchNorm
  std::string norm_without_hook;        // the path of a BatchNorm that SyncBatchNorm cannot use
  ForeignWeights foreign_weights;
  const torch::jit::Module* program = nullptr;  // the TorchScript program that the model is
};

// A trainable function of a batch of images, or of tensors. Not for concurrent use. Returned
// tensors share storage with the model: writing them changes it.
class Model {
 public:
  virtual ~Model() = default;
  // images [N, 3, H, W] float, any memory format, to logits [N, classes], or [N, classes, H, W] if
  // per_pixel; or a tensor [N, ...] as ModelInput says to outputs [N, ...] for the task; for a
  // language model tokens [N, T] to logits [N, T, vocabulary], of the token after each.
  virtual at::Tensor forward(const at::Tensor& images) = 0;
  // Batch statistics are used and updated in training, running statistics otherwise. Must not
  // throw.
  virtual void set_training(bool training) = 0;
  // Parameters, including frozen ones, and buffers (BatchNorm's running statistics and counters),
  // by torchvision's names if torchvision has the model, in registration order.
  virtual std::vector<NamedTensor> parameters() = 0;
  virtual std::vector<NamedTensor> buffers() = 0;
  // Moves every tensor; 4-dimensional ones become channels_last on request.
  virtual void to(const at::Device& device, bool channels_last);
  // Collected by each call, for use in set-up.
  virtual ModelFacets facets();
};

// Properties of the data that a model needs.
struct ModelInput {
  int outputs;     // for a sample: classes, or values of a target that is numbers
  ImageSize size;  // of the images
  Env& env;        // for models that are read from a file
  // A sample's tensor instead of an image, if it has a name: of type float32, or int64 if it is of
  // whole numbers, which are in [0, values) unless that is 0. If samples vary in length
  // (is_sequence), [channels + 1, longest] with the mask, or tokens [longest] without one, as
  // input_of() says; batches may be shorter.
  TensorField tensor = {};
  std::vector<ImageSize> other_sizes = {};  // of training images, besides `size`

  bool is_images() const { return tensor.name.empty(); }
  // Sequences of a vocabulary: [T] whole numbers in [0, values).
  bool is_tokens() const;
  // The shape of a batch of `count` samples.
  std::vector<int64_t> batch_shape(int64_t count) const;
  // [count, ...] zeros on the CPU; a mask is 1.
  at::Tensor zeros(int64_t count) const;
};

// Builds and initialises `options.name` as torchvision does (with torch's default CPU generator:
// seed it first). Fails with kUsage on an unknown name, an impossible size, and on tensors that the
// model does not take.
std::unique_ptr<Model> make_model(const ModelOptions& options, const ModelInput& input);

using ModelFactory = std::unique_ptr<Model> (*)(const ModelOptions&, const ModelInput&);
std::span<const RegistryEntry<ModelFactory, ModelTraits>> models();

// Adds a row to models(): from now on model.name can be `name`; checkpoints and `recipe.toml` store
// only the name. Both texts must outlive every use, like literals. Fails with kUsage if a model of
// that name exists. To be called before any other use of models(), from one thread.
void add_model(std::string_view name, std::string_view doc, ModelFactory make);

}  // namespace saturate
