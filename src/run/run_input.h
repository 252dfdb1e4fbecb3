// A run's training images: the source, its loader, and the feeder that brings batches to the
// device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "run/checkpoint.h"
#include "run/run_context.h"
#include "run/setup.h"

namespace saturate {

class RunInput {
 public:
  // Opens the source, and resolves run.recipe by it. `run` must outlive this.
  explicit RunInput(RunContext& run);

  const Dataset& data() const { return *data_; }
  // data().versions(), as it was opened.
  const std::vector<ObjectVersion>& objects() const { return objects_; }
  // data().classes() as UTF-8: the names in all files of the run.
  const std::vector<std::string>& class_names() const { return class_names_; }
  Loader& loader() { return feed_.loader; }
  Feeder& feeder() { return feed_.feeder; }
  int64_t epoch_steps() const { return epoch_steps_; }

  // Continues at that position; does nothing while a batch is held.
  void begin_epoch(const RunPosition& at);
  // The index of the batch after this one in the epoch, counting those that the loader skipped.
  int64_t place_after(const DeviceBatch& batch, const RunPosition& at) const;
  // Fails with kData naming the first sample that was skipped.
  [[noreturn]] void fail_all_skipped();
  // About as many of the first training images as wanted, the same for any world size.
  at::Tensor first_images(int64_t wanted);

  // From now on every batch is this one, the first of the epoch; the loader rests.
  DeviceBatch hold(int64_t epoch);
  // Continues with the loader's batches.
  void release(const RunPosition& at);
  // Drops a batch, of this epoch again and again; returns its number of images. REQUIRES: no batch
  // is held.
  int64_t skip(int64_t epoch);

 private:
  std::unique_ptr<ResidentImages> resolve();
  InputFeed make_feed(const Shard& shard) const;

  RunContext& run_;
  const std::shared_ptr<const Dataset> data_;
  const std::vector<ObjectVersion> objects_;
  const std::vector<std::string> class_names_;
  const std::unique_ptr<ResidentImages> resident_;  // of data_, or null
  InputFeed feed_;
  const int64_t epoch_steps_;
};

}  // namespace saturate
