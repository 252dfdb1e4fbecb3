// A run that is measured a little at a time, and rests in between: several of them take turns on
// one machine, so that what slows it down for a moment meets all of them.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "advise/stretch.h"
#include "saturate/recipe.h"
#include "saturate/step_bench.h"
#include "saturate/trainer.h"

namespace saturate {

// What a run does in its turn.
enum class Turn {
  kWhole,  // trains
  kHeld,   // trains on one batch over and over, while its loader rests
  kInput,  // only takes batches from its loader
  // Timed by themselves, as StepTiming::wall_s of one: seconds that the run would wait for it.
  kEvaluate,  // an evaluation, of which no more is done than there is time for
  kSave,      // a checkpoint
};

// One trainer on a thread of its own. Belongs to the thread that made it, which waits while the run
// has its turn; outside its turns the run uses memory alone.
class Trial {
 public:
  struct Setup {
    std::string folder;                              // for its files; created
    std::function<std::unique_ptr<Dataset>()> open;  // its training source
    bool save = true;                                // as the recipe says; false: never
    std::function<bool()> should_stop;               // asked between steps, on the run's thread
    std::function<void()> waiting;                   // called now and then while a turn lasts
  };

  // Builds the trainer, and fails as it does. `env` must outlive this.
  Trial(Env& env, const Recipe& recipe, Setup setup);
  // Ends the run, which may first finish the step and the save under way.
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // As run: every "auto" resolved.
  const Recipe& recipe() const { return recipe_; }

  // One turn: measures `seconds` at least, a step at least, after those steps that it takes to be
  // under way. Empty where should_stop gave up; fails as training does.
  std::optional<StepTiming> measure(Turn turn, double seconds);
  // Whether measure() has failed.
  bool has_failed();

 private:
  void work();
  bool between_steps();  // true ends the run
  bool wait_for_turn();  // false where there is no other
  void begin_turn();
  bool is_settled();
  StepTiming measure_at_once();
  bool has_lasted() const;
  void answer(const StepTiming& timing);
  void wait_for(const bool& what, std::unique_lock<std::mutex>& lock);

  Env& env_;
  const Setup setup_;
  Recipe recipe_;

  // The run's thread's, from here on.
  Trainer* trainer_ = nullptr;
  enum class Stage { kResting, kSettling, kMeasuring } stage_ = Stage::kResting;
  Turn turn_ = Turn::kWhole;
  double seconds_ = 0;
  int settling_ = 0;  // steps of this turn so far
  Stretch stretch_;

  struct Order {
    Turn turn;
    double seconds;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  // All below guarded by mutex_.
  bool is_built_ = false;
  bool is_answered_ = false;  // or the run has ended
  bool has_ended_ = false;
  bool ending_ = false;
  std::optional<Order> order_;  // not taken up yet
  std::optional<StepTiming> timing_;
  std::exception_ptr error_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace saturate
