// Models: a registry of image classifiers and segmentation networks, and the narrow interface that
// the step uses.
//
// This header is cheap to include; only sources that define a model include torch/nn.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/data/registry.h"
#include "saturate/data/step_options.h"
#include "saturate/gradient_checkpoint.h"

namespace saturate {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// A trainable function of a batch of images. Not for concurrent use. Returned tensors share storage
// with the model: writing them changes it.
class Model {
 public:
  virtual ~Model() = default;
  // images [N, 3, H, W] float, any memory format, to logits [N, classes], or [N, classes, H, W] if
  // per_pixel().
  virtual at::Tensor forward(const at::Tensor& images) = 0;
  virtual bool per_pixel() const { return false; }
  // A model with an encoder computes forward(images) as decode(encode(images)). The names of the
  // encoder's parameters and buffers begin with "encoder."; encode() and decode() may run
  // concurrently on different threads.
  virtual bool has_encoder() const { return false; }
  virtual std::vector<at::Tensor> encode(const at::Tensor& images);
  virtual at::Tensor decode(const std::vector<at::Tensor>& features);
  // From now on BatchNorms whose parameters require no gradient use their running statistics in
  // training too, without updating them. False if the model does not support this.
  virtual bool keep_frozen_statistics() { return false; }
  // The path of a BatchNorm without NormHook support; empty if there is none.
  virtual std::string norm_without_hook() { return {}; }
  // forward() as a sequence of stages for checkpointing; empty if not supported. Valid as long as
  // the model.
  virtual std::vector<Stage> stages() { return {}; }
  // Number of training images that a model needs for statistics before training from scratch;
  // prepare() gets about as many, in the form of forward()'s.
  virtual int64_t wanted_images() const { return 0; }
  virtual void prepare(const at::Tensor& images) { (void)images; }
  // Batch statistics are used and updated in training, running statistics otherwise.
  virtual void set_training(bool training) = 0;
  // Parameters, including frozen ones, and buffers (BatchNorm's running statistics and counters),
  // by torchvision's names if torchvision has the model, in registration order.
  virtual std::vector<NamedTensor> parameters() = 0;
  virtual std::vector<NamedTensor> buffers() = 0;
  // Moves every tensor; 4-dimensional parameters become channels_last on request.
  virtual void to(const at::Device& device, bool channels_last) = 0;
};

// Properties of the data that a model needs.
struct ImageShape {
  int classes;
  int size;                 // side of the square images, pixels
  Env& env = Env::posix();  // for models that are read from a file
};

// Builds and initialises `options.name` as torchvision does (with torch's default CPU generator:
// seed it first). Fails with kUsage on an unknown name or an impossible size.
std::unique_ptr<Model> make_model(const ModelOptions& options, const ImageShape& shape);

using ModelFactory = std::unique_ptr<Model> (*)(const ModelOptions&, const ImageShape&);
std::span<const RegistryEntry<ModelFactory>> models();

// Additional public base of a Model whose loss is not the cross entropy of its logits. Training,
// evaluation and the batch search then use this loss.
class OwnLoss {
 public:
  virtual ~OwnLoss() = default;
  // logits [N, classes] float and labels [N] int64, on one device, N above 0, to a scalar: the mean
  // over the N images, since micro-batches and processes are weighted by their images. Without
  // gradients in evaluation.
  virtual at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) = 0;
};

// Adds a row to models(): from now on model.name can be `name`; checkpoints and `recipe.toml` store
// only the name. Both texts must outlive every use, like literals. Fails with kUsage if a model of
// that name exists. To be called before any other use of models(), from one thread.
void add_model(std::string_view name, std::string_view doc, ModelFactory make);

}  // namespace saturate
