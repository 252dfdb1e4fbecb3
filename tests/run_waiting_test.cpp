// A run whose next batch does not come ends when it is asked to.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/cancel.h"
#include "base/printable.h"
#include "run/checkpoint.h"
#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "tests/data_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

// Delivers some reads; then they wait: as for a store that does not answer, or as for a network
// file system that is away, of which a wait cannot be cancelled.
class Hanging : public Dataset {
 public:
  explicit Hanging(int reads, bool is_cancellable = true)
      : left_(reads), is_cancellable_(is_cancellable) {}
  size_t size() const override { return images_->size(); }
  const std::vector<std::string>& classes() const override { return images_->classes(); }
  void read(size_t index, Sample& out) const override {
    if (left_-- <= 0) {
      hangs = true;
      for (int ms = 0; !is_back && (!is_cancellable_ || !is_cancelled()); ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (ms > 60'000) has_given_up = true;
        if (has_given_up) break;
      }
      fail_cancelled("far away");
    }
    images_->read(index, out);
  }
  mutable std::atomic<bool> hangs{false}, has_given_up{false};
  std::atomic<bool> is_back{false};  // reads that cannot be cancelled end

 private:
  const std::unique_ptr<Dataset> images_ = open_dataset(testing::env(), "synth:size=16,count=100");
  mutable std::atomic<int> left_;
  const bool is_cancellable_;
};

TEST(WaitingRun, EndsAndSavesWhenItIsStopped) {
  const testing::TempDir dir;
  TrainerOptions options = testing::saving_options(dir / "run");
  const auto data = std::make_shared<Hanging>(60 + 1);  // two batches, and what set-up reads
  options.dataset = data;
  options.should_stop = [&] { return data->hangs.load(); };
  Trainer trainer(testing::env(), testing::small_recipe(), options);
  const TrainResult result = trainer.run();
  EXPECT_EQ(result.end, RunEnd::kInterrupted);
  EXPECT_LE(result.steps, 2);
  EXPECT_EQ(find_checkpoint(testing::env(), dir / "run", print_warning).position.step,
            result.steps);
}

// The loader cannot stop before the read ends.
TEST(WaitingRun, SavesBeforeItWaitsForAReadThatCannotBeCancelled) {
  struct Saved : Observer {
    void at_end(const EndEvent&, ObserverContext&) override {
      has_file = !list_checkpoints(testing::env(), folder).empty();
      data->is_back = true;
    }
    std::string folder;
    std::shared_ptr<Hanging> data;
    bool has_file = false;
  };
  const testing::TempDir dir;
  TrainerOptions options = testing::saving_options(dir / "run");
  const auto data = std::make_shared<Hanging>(60 + 1, /*is_cancellable=*/false);
  const auto saved = std::make_shared<Saved>();
  saved->folder = dir / "run/checkpoints";
  saved->data = data;
  options.dataset = data;
  options.observers = {saved};
  options.should_stop = [&] { return data->hangs.load(); };
  const TrainResult result = Trainer(testing::env(), testing::small_recipe(), options).run();
  EXPECT_EQ(result.end, RunEnd::kInterrupted);
  EXPECT_TRUE(saved->has_file);
  EXPECT_FALSE(data->has_given_up);
}

TEST(WaitingRun, EndsAndSavesWhenItIsStoppedInAnEvaluation) {
  const testing::TempDir dir;
  TrainerOptions options = testing::saving_options(dir / "run");
  const auto held_out = std::make_shared<Hanging>(1);
  options.eval_dataset = held_out;
  options.should_stop = [&] { return held_out->hangs.load(); };
  Trainer trainer(testing::env(), testing::small_recipe(), options);
  const TrainResult result = trainer.run();
  EXPECT_EQ(result.end, RunEnd::kInterrupted);
  EXPECT_EQ(result.steps, 4) << "one epoch";
  EXPECT_EQ(find_checkpoint(testing::env(), dir / "run", print_warning).position.step, 4);
}

}  // namespace
}  // namespace saturate
