// Copy, augmentation and a frozen encoder on separate streams, for later batches while the step is
// on one:
//
//   copy stream     copy 2     copy 3     copy 4
//   augment stream             finish 2   finish 3
//   encoder stream                        encode 2
//   the step        train 0    train 0    train 1 ...   (waits for encode 1)
//
// A stage without a stream runs on the next stage's stream, or else with the step. The first batch
// of an epoch waits for all work on the step's stream, such as moving the weights to the device.
// The same code serves CUDA streams and, on the CPU, threads.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "feed/batch_stages.h"
#include "saturate/data/stream.h"
#include "saturate/ledger.h"

namespace saturate {

// Belongs to one thread.
class BatchPipeline {
 public:
  // `stages` and `clock`, which may be null, must outlive this. REQUIRES: setup.stages.any().
  BatchPipeline(const BatchStages& stages, PipelineSetup setup, StreamClock* clock = nullptr);
  ~BatchPipeline();

  bool is_empty() const { return flights_.empty(); }
  // One batch per stream, and one for the step.
  bool is_full() const { return flights_.size() > streams_.size(); }

  // Enqueues the batch's stages without waiting; takes its contents, and leaves an earlier one's
  // memory for its samples. REQUIRES: !is_full().
  void launch(Batch& batch);
  // The oldest batch, once the step may use it; its remaining stages are run or, with `leave`, left
  // to BatchStages::finish(). Rethrows its stages' errors. Charged to
  // `ledger`: kWait, and kAugment where augmentation has no separate stream. REQUIRES:
  // !is_empty().
  void deliver(DeviceBatch& out, bool leave, Ledger& ledger);
  // Waits for all stages in flight.
  void settle();
  // The same, and drops all batches.
  void reset();

 private:
  struct Flight;  // both batches, and what orders the streams

  Stream* add_stream(const char* name);
  void wait_for_step();
  void copy(Flight& flight);
  void finish(Flight& flight, Stream& on, bool leave = false);
  void encode(Flight& flight);
  void release(Flight& flight);
  void drop_copied();
  // Enqueues a stage's work, which a trace and the clock show.
  void submit(Stream& on, const char* stage, std::function<void()> work);

  const BatchStages& stages_;
  const PipelineSetup setup_;
  StreamClock* const clock_;
  std::unique_ptr<StreamChecker> checker_;  // null if disabled
  std::unique_ptr<Stream> step_;            // the caller's own
  std::vector<std::unique_ptr<Stream>> streams_;
  Stream *copy_ = nullptr, *finish_ = nullptr, *encode_ = nullptr;  // finish_: null if it runs with
                                                                    // the step
  std::deque<std::shared_ptr<Flight>> flights_;
  std::deque<std::shared_ptr<Flight>> copied_;  // their host memory may still be read
  std::shared_ptr<Flight> used_;                // by the step
  Batch spare_;                                 // one that was copied, for its samples' memory
  Stream::Buffer weights_;                      // written on the step's stream before it begins
  bool begun_ = false;                          // since reset()
};

}  // namespace saturate
