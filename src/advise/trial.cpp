#include "advise/trial.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <utility>

namespace saturate {
namespace {

constexpr int kSettle = 2;  // steps after a change that are never measured
constexpr auto kAskEvery = std::chrono::milliseconds(100);

double cpu_s(const TrainResult& so_far) {
  return so_far.cores_used * so_far.wall_s;
}

}  // namespace

Trial::Trial(Env& env, const Recipe& recipe, Setup setup)
    : env_(env), setup_(std::move(setup)), recipe_(recipe), thread_([this] { work(); }) {
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
    TrainerOptions options;
    options.out = setup_.folder;
    options.open = setup_.open;
    options.should_stop = [this] { return between_steps(); };
    options.progress = Progress::Style::kSilent;
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
    begin_ = mark();
    begin_ns_ = env_.now_ns();
    stage_ = Stage::kMeasuring;
    return false;
  }
  if (stage_ == Stage::kMeasuring) {
    if (!has_lasted()) return false;
    const TrainResult now = mark();
    StepTiming timing;
    timing.steps = now.steps - begin_.steps;
    timing.samples = now.samples - begin_.samples;
    timing.phases = now.phases - begin_.phases;
    timing.wall_s = timing.phases.total();
    timing.cpu_s = cpu_s(now) - cpu_s(begin_);
    answer(timing);
  }
  while (wait_for_turn()) {
    if (turn_ != Turn::kInput) {
      begin_turn();
      return false;
    }
    measure_input();
  }
  return true;
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
}

// The loader was at rest: its threads begin with nothing ready. Starved steps take batches as they
// come, and find none ready; else the loader works ahead until it must wait.
bool Trial::is_settled() {
  if (settling_ < kSettle) return false;
  if (turn_ == Turn::kHeld) return true;
  const int ahead = recipe_.data.prefetch, ready = int(trainer_->ready_batches());
  return settling_ >= ahead + kSettle || ready == 0 || ready >= ahead - 1;
}

void Trial::measure_input() {
  trainer_->release_batch();
  for (int i = 0; i < kSettle; ++i) trainer_->skip_batch();
  begin_ = mark();
  begin_ns_ = env_.now_ns();
  StepTiming timing;
  do {
    timing.samples += trainer_->skip_batch();
    ++timing.steps;
  } while (!has_lasted() && !setup_.should_stop());
  const TrainResult now = mark();
  timing.phases = now.phases - begin_.phases;
  timing.wall_s = timing.phases.total();
  timing.cpu_s = cpu_s(now) - cpu_s(begin_);
  answer(timing);
}

// Now, in what the trainer counts. A GPU has by then done all that it was given.
TrainResult Trial::mark() {
  if (recipe_.train.device == "cuda") at::zeros({}, at::Device(at::kCUDA)).item();
  return trainer_->so_far();
}

bool Trial::has_lasted() const {
  return double(env_.now_ns() - begin_ns_) >= seconds_ * 1e9;
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
