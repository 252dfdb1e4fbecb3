#include "advise/trial.h"

#include <chrono>
#include <utility>

namespace saturate {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(100);

}  // namespace

Trial::Trial(Env& env, const Recipe& recipe, Setup setup)
    : env_(env), setup_(std::move(setup)), recipe_(recipe), stretch_(env), thread_([this] {
        work();
      }) {
  std::unique_lock lock(mutex_);
  wait_for(is_built_, lock);
  if (!error_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(error_);
}

Trial::~Trial() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<StepTiming> Trial::measure(Turn turn, double seconds) {
  std::unique_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  if (has_ended_) return std::nullopt;
  order_ = {turn, seconds};
  timing_.reset();
  is_answered_ = false;
  changed_.notify_all();
  wait_for(is_answered_, lock);
  if (error_) std::rethrow_exception(error_);
  return timing_;
}

bool Trial::has_failed() {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void Trial::wait_for(const bool& what, std::unique_lock<std::mutex>& lock) {
  while (!changed_.wait_for(lock, kAskEvery, [&] { return what; })) {
    lock.unlock();
    if (setup_.waiting) setup_.waiting();
    lock.lock();
  }
}

void Trial::work() {
  std::exception_ptr error;
  try {
    TrainerOptions options = measured_options(setup_.folder, [this] { return between_steps(); });
    options.open = setup_.open;
    options.save = setup_.save;
    Trainer trainer(env_, recipe_, options);
    {
      std::lock_guard lock(mutex_);
      recipe_ = trainer.recipe();
      trainer_ = &trainer;
      is_built_ = true;
    }
    changed_.notify_all();
    trainer.run();
  } catch (...) {
    error = std::current_exception();
  }
  {
    std::lock_guard lock(mutex_);
    error_ = error;
    is_built_ = is_answered_ = has_ended_ = true;
  }
  changed_.notify_all();
}

bool Trial::between_steps() {
  if (setup_.should_stop()) return true;
  if (!trainer_) return false;
  if (stage_ == Stage::kSettling) {
    ++settling_;
    if (!is_settled()) return false;
    stretch_.begin(*trainer_);
    stage_ = Stage::kMeasuring;
    return false;
  }
  if (stage_ == Stage::kMeasuring) {
    if (!has_lasted()) return false;
    answer(stretch_.timing(*trainer_));
  }
  while (wait_for_turn()) {
    if (turn_ == Turn::kWhole || turn_ == Turn::kHeld) {
      begin_turn();
      return false;
    }
    answer(measure_at_once());
  }
  return true;
}

// What needs no step of the run.
StepTiming Trial::measure_at_once() {
  if (turn_ == Turn::kInput) return time_input(env_, *trainer_, seconds_, setup_.should_stop);
  StepTiming timing;
  timing.steps = 1;
  timing.wall_s =
      turn_ == Turn::kSave ? trainer_->time_save() : trainer_->time_evaluation(seconds_);
  return timing;
}

bool Trial::wait_for_turn() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ending_ || order_; });
  if (ending_) return false;
  turn_ = order_->turn;
  seconds_ = order_->seconds;
  order_.reset();
  return true;
}

void Trial::begin_turn() {
  if (turn_ == Turn::kHeld)
    trainer_->hold_batch();
  else
    trainer_->release_batch();
  stage_ = Stage::kSettling;
  settling_ = 0;
  stretch_.begin(*trainer_);
}

// The loader was at rest: its threads begin with nothing ready. Starved steps take batches as they
// come, and find none ready; else the loader works ahead until it must wait. One long step is
// enough for what two short ones are left out for.
bool Trial::is_settled() {
  if (settling_ < kSettle && stretch_.elapsed_s() < kLongStep) return false;
  if (turn_ == Turn::kHeld) return true;
  const int ahead = recipe_.data.prefetch, ready = int(trainer_->ready_batches());
  return settling_ >= ahead + kSettle || ready == 0 || ready >= ahead - 1;
}

bool Trial::has_lasted() const {
  return stretch_.elapsed_s() >= seconds_;
}

// Gives the machine to others, and then the result of the turn.
void Trial::answer(const StepTiming& timing) {
  stage_ = Stage::kResting;
  trainer_->rest();
  {
    std::lock_guard lock(mutex_);
    timing_ = timing;
    is_answered_ = true;
  }
  changed_.notify_all();
}

}  // namespace saturate
