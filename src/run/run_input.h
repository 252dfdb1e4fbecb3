// A run's training images: the source, its loader, and the feeder that brings batches to the
// device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "feed/resident.h"
#include "run/checkpoint.h"
#include "run/run_context.h"
#include "saturate/feed.h"

namespace saturate {

class RunInput {
 public:
  // Opens the source, and resolves run.recipe by it. `run` must outlive this.
  explicit RunInput(RunContext& run);

  const Dataset& data() const { return *data_; }
  // data().classes() as UTF-8: their names in all files of the run.
  const std::vector<std::string>& class_names() const { return class_names_; }
  Loader& loader() { return loader_; }
  Feeder& feeder() { return feeder_; }
  int64_t epoch_steps() const { return epoch_steps_; }

  // Goes on from there; a batch that is held stays.
  void begin_epoch(const RunPosition& at);
  // Where the epoch goes on after this batch: past what the loader left out.
  int64_t place_after(const DeviceBatch& batch, const RunPosition& at) const;
  // The first of training, about as many as wanted: with several processes those that one would
  // see.
  at::Tensor first_images(int64_t wanted);

  // From now on every batch is this one, the first of the epoch's order; the loader rests.
  DeviceBatch hold(int64_t epoch);
  // Goes on with the loader's.
  void release(const RunPosition& at);
  // Takes a batch that no step sees, of this epoch over and over; gives its images. REQUIRES: no
  // batch is held.
  int64_t skip(int64_t epoch);

 private:
  std::unique_ptr<ResidentImages> resolve();
  LoaderOptions loader_options(const Shard& shard) const;

  RunContext& run_;
  const std::shared_ptr<const Dataset> data_;
  const std::vector<std::string> class_names_;
  const std::unique_ptr<ResidentImages> resident_;  // of data_, or null
  Loader loader_;
  Feeder feeder_;
  const int64_t epoch_steps_;
};

}  // namespace saturate
