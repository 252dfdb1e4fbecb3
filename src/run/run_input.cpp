#include "run/run_input.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "recipe/option_row.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"
#include "saturate/group.h"

namespace saturate {
namespace {

// Shows the progress of a pass over a source before the run, and fails if the run is to stop.
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
  const DataOptions& data = run.recipe.data;
  std::shared_ptr<const Dataset> opened = run.options.dataset;
  if (!opened) opened = open_input(run.env, data.source, data, progress_of(run, "copy"));
  require_samples(*opened, data.source);
  return opened;
}

// A resumed run continues with the batch that was found for it.
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
      objects_(data_->versions()),
      class_names_(names_as_utf8(data_->classes())),
      resident_(resolve()),
      feed_(make_feed(run.shard())),
      epoch_steps_(steps_of_epoch(feed_.loader)) {}

// Fails on settings that several processes do not support before the batch is searched. The search
// finds the images in memory, and takes what they leave.
std::unique_ptr<ResidentImages> RunInput::resolve() {
  Recipe recipe = resolve_recipe(with_saved_batch(run_.env, run_.recipe, run_.options.resume),
                                 *data_, run_.device);
  validate_distributed(recipe, recipe.data.source);  // the task may have been "auto"
  if (run_.group) validate_world(recipe, run_.group->world());
  auto resident = put_on_device(recipe, train_loader_options(recipe), *data_, recipe.data.source,
                                run_.device, progress_of(run_, "cache"));
  run_.recipe = resolve_batch(run_.env, std::move(recipe), *data_, run_.device,
                              run_.options.eval_dataset.get());
  return resident;
}

InputFeed RunInput::make_feed(const Shard& shard) const {
  LoaderOptions options = train_loader_options(run_.recipe);
  options.shard = shard;
  options.epochs = uint32_t(std::min(std::ceil(run_.recipe.train.epochs), double(UINT32_MAX)));
  return InputFeed(*data_, resident_.get(), std::move(options), run_.recipe, run_.device,
                   run_.ledger, run_.streams.get());
}

void RunInput::begin_epoch(const RunPosition& at) {
  if (!feed_.feeder.holds()) feed_.feeder.start_epoch(uint32_t(at.epoch), size_t(at.batch));
}

int64_t RunInput::place_after(const DeviceBatch& batch, const RunPosition& at) const {
  return feed_.feeder.holds() ? at.batch + 1 : batch.place + 1;
}

void RunInput::fail_all_skipped() {
  const std::vector<SkippedSample> skipped = feed_.loader.skipped();
  const bool knows = !skipped.empty();  // this rank may have had no sample
  fail(ErrorKind::kData,
       "all samples of an epoch were skipped" +
           (knows ? ", the first because: " + skipped.front().reason : ""),
       knows ? skipped.front().name : run_.recipe.data.source,
       "Check that data.source is there and readable: data.on_error=skip is for a few broken "
       "samples");
}

at::Tensor RunInput::first_images(int64_t wanted) {
  const std::unique_ptr<InputFeed> all(run_.group ? new InputFeed(make_feed(Shard())) : nullptr);
  Feeder& from = (all ? *all : feed_).feeder;
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
  feed_.feeder.start_epoch(uint32_t(epoch));
  feed_.feeder.next(first);
  feed_.feeder.finish(first);  // now, since it can be finished only once
  feed_.feeder.stop();
  feed_.feeder.hold(first);
  return first;
}

void RunInput::release(const RunPosition& at) {
  feed_.feeder.release();
  feed_.feeder.start_epoch(uint32_t(at.epoch), size_t(at.batch));
}

int64_t RunInput::skip(int64_t epoch) {
  DeviceBatch batch;
  if (!feed_.feeder.next(batch)) {
    feed_.feeder.start_epoch(uint32_t(epoch));
    feed_.feeder.next(batch);
  }
  return batch.count();
}

}  // namespace saturate
