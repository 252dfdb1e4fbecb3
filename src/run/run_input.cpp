#include "run/run_input.h"

#include <ATen/ops/cat.h>

#include <optional>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "run/checkpoint.h"
#include "run/setup.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"
#include "saturate/group.h"

namespace saturate {
namespace {

// Shows how far something is that is done to all of a source before the run; gives up when asked.
ProgressCallback progress_of(const RunContext& run, const std::string& title) {
  return [&run, title, bar = std::shared_ptr<Progress>()](size_t done, size_t total) mutable {
    if (run.options.should_stop())
      fail(ErrorKind::kRun, "stopped before the first step", run.recipe.data.source,
           "Run it again");
    if (!bar)
      bar = std::make_shared<Progress>(run.env, title, "samples", int64_t(total),
                                       run.options.progress);
    bar->update(int64_t(done), "");
  };
}

std::shared_ptr<const Dataset> open_source(const RunContext& run) {
  if (run.options.dataset) return run.options.dataset;
  const DataOptions& data = run.recipe.data;
  return open_input(run.env, data.source, data, progress_of(run, "copy"));
}

// A resumed run goes on with the batch that was found for it.
Recipe with_saved_batch(Env& env, Recipe recipe, const std::optional<std::string>& resume) {
  if (recipe.train.batch != kAutomatic || !resume) return recipe;
  std::string path;
  const Checkpoint checkpoint = find_checkpoint(
      env, *resume, [](const std::string&) {}, &path);
  const TrainOptions saved = parse_saved_recipe(checkpoint.recipe_toml, path).train;
  recipe.train.batch = saved.batch;
  recipe.train.accumulate = saved.accumulate;
  recipe.train.effective_batch = 0;
  if (recipe.train.eval_batch == 0) recipe.train.eval_batch = saved.eval_batch;
  return recipe;
}

std::vector<std::string> names_as_utf8(std::vector<std::string> names) {
  for (std::string& name : names) name = as_utf8(name);
  return names;
}

int64_t steps_of_epoch(const Loader& loader) {
  const auto steps = int64_t(loader.batches());
  if (steps == 0)
    fail(ErrorKind::kUsage, "an epoch has no full batch", "train.batch",
         "Lower train.batch, or set train.drop_last=false");
  return steps;
}

}  // namespace

RunInput::RunInput(RunContext& run)
    : run_(run),
      data_(open_source(run)),
      class_names_(names_as_utf8(data_->classes())),
      resident_(resolve()),
      loader_(*data_, loader_options(run.shard()), run.recipe.augment, batch_allocator(run.device)),
      feeder_(loader_, run.device, run.recipe.train.channels_last, run.ledger, run.recipe.augment,
              resident_ ? resident_->held() : HeldImages(), run.streams.get()),
      epoch_steps_(steps_of_epoch(loader_)) {}

// Refuses what several processes cannot do before the batch is searched.
std::unique_ptr<ResidentImages> RunInput::resolve() {
  Recipe recipe = resolve_recipe(with_saved_batch(run_.env, run_.recipe, run_.options.resume),
                                 *data_, run_.device);
  if (run_.group) validate_world(recipe, run_.group->world());
  run_.recipe = resolve_batch(run_.env, std::move(recipe), *data_, run_.device);
  return put_on_device(run_.recipe, train_loader_options(run_.recipe), *data_,
                       run_.recipe.data.source, run_.device, progress_of(run_, "cache"));
}

LoaderOptions RunInput::loader_options(const Shard& shard) const {
  LoaderOptions options = train_loader_options(run_.recipe);
  options.shard = shard;
  if (resident_) options.held = resident_->samples();
  return options;
}

void RunInput::begin_epoch(const RunPosition& at) {
  if (!feeder_.holds()) feeder_.start_epoch(uint32_t(at.epoch), size_t(at.batch));
}

int64_t RunInput::place_after(const DeviceBatch& batch, const RunPosition& at) const {
  return feeder_.holds() ? at.batch + 1 : batch.place + 1;
}

at::Tensor RunInput::first_images(int64_t wanted) {
  std::optional<Loader> whole;
  std::optional<Feeder> own;
  if (run_.group) {
    whole.emplace(*data_, loader_options(Shard()), run_.recipe.augment,
                  batch_allocator(run_.device));
    own.emplace(*whole, run_.device, run_.recipe.train.channels_last, run_.ledger,
                run_.recipe.augment, resident_ ? resident_->held() : HeldImages(),
                run_.streams.get());
  }
  Feeder& from = own ? *own : feeder_;
  std::vector<at::Tensor> images;
  DeviceBatch batch;
  int64_t count = 0;
  from.start_epoch(0);
  while (count < wanted && from.next(batch)) {
    count += batch.count();
    images.push_back(batch.images.to(at::kFloat));
  }
  from.stop();
  return at::cat(images);
}

DeviceBatch RunInput::hold(int64_t epoch) {
  DeviceBatch first;
  feeder_.start_epoch(uint32_t(epoch));
  feeder_.next(first);
  feeder_.finish(first);  // which changes what it is made of, and so happens once
  feeder_.stop();
  feeder_.hold(first);
  return first;
}

void RunInput::release(const RunPosition& at) {
  feeder_.release();
  feeder_.start_epoch(uint32_t(at.epoch), size_t(at.batch));
}

int64_t RunInput::skip(int64_t epoch) {
  DeviceBatch batch;
  if (!feeder_.next(batch)) {
    feeder_.start_epoch(uint32_t(epoch));
    feeder_.next(batch);
  }
  return batch.count();
}

}  // namespace saturate
