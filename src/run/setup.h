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

namespace saturate {

// "cpu", "cuda" or "auto" to a device; fails with kUsage where there is no such GPU.
// "auto" that passes over a GPU of the machine warns of it, once in a process.
at::Device resolve_device(const std::string& name);
// That warning's text; empty if there is none. `has_cuda`: LibTorch has its GPU part.
// The machine is looked at below `root`.
std::string idle_gpu_warning(bool has_cuda, const std::string& root = "");

// The devices beside `device` that one process trains on too, where distributed.mode = "dp": this
// machine's other GPUs. Fails with kUsage where there is none.
std::vector<at::Device> other_devices(const Recipe& recipe, const at::Device& device);

// Replaces those "auto" that need no data: threads, the device and the precision.
void resolve_machine(Recipe& recipe, const at::Device& device);

// Replaces every "auto" of the recipe by what this machine and this data make of it: threads,
// augment.size (from the first image), model.classes, precision; the batch is left to
// resolve_batch(), the segments to make_training_parts(). Fails with kUsage or kData.
Recipe resolve_recipe(Recipe recipe, const Dataset& data, const at::Device& device);

// Resolves train.batch=auto: tries steps (see batch_search.h), then sets train.batch and
// train.accumulate; train.eval_batch too where it is 0. Fails as find_micro_batch()
// does.
Recipe resolve_batch(Env& env, Recipe recipe, const Dataset& data, const at::Device& device);

// Images in each part of a batch that train.accumulate makes, at most.
int images_per_part(const TrainOptions& train);

// Settings of the training and the evaluation loader.
LoaderOptions train_loader_options(const Recipe& recipe);
LoaderOptions eval_loader_options(const Recipe& recipe);

// The images of `data`, opened from `source`, where data.cache=device puts them; else null.
// `options`: the loader's that will refer to them. REQUIRES: recipe is resolved. Fails as
// ResidentImages does.
std::unique_ptr<ResidentImages> put_on_device(const Recipe& recipe, const LoaderOptions& options,
                                              const Dataset& data, const std::string& source,
                                              const at::Device& device,
                                              const ProgressCallback& progress = {});

// Fails with kUsage where the source has masks and the task takes none, or the other way round.
void require_masks(TaskKind task, const Dataset& data, const std::string& source);

}  // namespace saturate
