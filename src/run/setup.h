// Resolves a recipe into what a run is made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "feed/resident.h"
#include "saturate/data/dataset.h"
#include "saturate/data/env.h"
#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"
#include "saturate/data/world.h"
#include "saturate/feed.h"
#include "saturate/model.h"

namespace saturate {

struct Checkpoint;

// "cpu", "cuda" or "auto" to a device; fails with kUsage if there is no such GPU. "auto" on a
// machine with a GPU that cannot be used warns of it, once in a process. `root`: as below.
at::Device resolve_device(const std::string& name, const std::string& root = "");
// That warning's text; empty if there is none. `has_cuda`: LibTorch has its GPU part. `root`:
// prefix of the paths that describe the machine.
std::string idle_gpu_warning(bool has_cuda, const std::string& root = "");

// recipe.distributed; its timeout_s, unless it was changed, is a minute longer than a loader waits
// for data: the rank whose data do not come must fail first, since its error says what is wrong.
DistributedOptions group_options(const Recipe& recipe);

// With distributed.mode = "dp": this machine's GPUs beside `device`, on which the process trains
// too. Fails with kUsage if there is none.
std::vector<at::Device> other_devices(const Recipe& recipe, const at::Device& device);

// Replaces each "auto" that needs no data: threads, the device and the precision.
void resolve_machine(Recipe& recipe, const at::Device& device);

// Replaces every "auto" of the recipe by its value for this machine and this data: train.task,
// threads, augment.size (from the first image), model.classes, precision; the batch is left to
// resolve_batch(), the segments to make_training_parts(). Fails with kUsage or kData.
Recipe resolve_recipe(Recipe recipe, const Dataset& data, const at::Device& device);

// The input of a resolved recipe's model: tensors of `fields`, as batch_fields(), or images if
// there are none.
ModelInput model_input(Env& env, const Recipe& recipe, const std::vector<TensorField>& fields);
// The same for the model of a checkpoint.
ModelInput model_input(Env& env, const Recipe& recipe, const Checkpoint& checkpoint);

// Resolves train.batch=auto: tries steps (see batch_search.h), then sets train.batch and
// train.accumulate; also train.eval_batch if it is 0. With data.cache=device the images of `data`
// must be on the device already, and room is left for those of the evaluation: `evaluated`, or
// those of data.eval_source. Fails as find_micro_batch() and ResidentImages.
Recipe resolve_batch(Env& env, Recipe recipe, const Dataset& data, const at::Device& device,
                     const Dataset* evaluated = nullptr);

// Images in a micro-batch of the global batch, at most.
int micro_batch_size(const TrainOptions& train);

// Settings of the training and the evaluation loader.
LoaderOptions train_loader_options(const Recipe& recipe);
LoaderOptions eval_loader_options(const Recipe& recipe);

// With data.cache=device the images of `data`, which was opened from `source`; else null.
// `options`: those of the loader that will refer to them. REQUIRES: recipe is resolved. Fails as
// ResidentImages.
std::unique_ptr<ResidentImages> put_on_device(const Recipe& recipe, const LoaderOptions& options,
                                              const Dataset& data, const std::string& source,
                                              const at::Device& device,
                                              const ProgressCallback& progress = {});

// A loader of `data`, and the feeder that brings its batches to the device, as a resolved recipe
// says. `resident`: the held images of `data`, or null. All references must outlive this.
struct InputFeed {
  InputFeed(const Dataset& data, const ResidentImages* resident, LoaderOptions options,
            const Recipe& recipe, const at::Device& device, Ledger& ledger,
            StreamClock* clock = nullptr);

  Loader loader;
  Feeder feeder;
};

// Fails with kData if the source is empty, as a program's own may be.
void require_samples(const Dataset& data, const std::string& source);

// Fails with kUsage if the source has masks and the task takes none, or vice versa.
void require_masks(TaskKind task, const Dataset& data, const std::string& source);

// tensor_setup.cpp: the task and the number of outputs for samples that are tensors. Fails with
// kUsage on a target that the task does not take, and on settings for images.
void resolve_tensors(Recipe& recipe, const Dataset& data);
// "x, float32 [8]; y, float32 [], the target".
std::string tensors_text(const std::vector<TensorField>& fields);
// "samples: input float32 [10], target int64 []", as in a batch but for the samples' dimension. Of
// sequences these are the longest, and ", of varying length" follows.
std::string shapes_text(const std::vector<TensorField>& fields);
// Fails with kUsage if the samples of an evaluation source differ in form from `fields`, those of
// the training source.
void require_same_tensors(const std::vector<TensorField>& fields, const Dataset& data,
                          const AugmentOptions& augment, const std::string& source);

}  // namespace saturate
