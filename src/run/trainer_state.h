// The trainer's state: trainer.cpp has the loop over the components below, trainer_setup.cpp the
// set-up before it. Each component keeps its own members, and shows a StateVisitor its state.
#pragma once

#include <atomic>

#include "reduce/heartbeat.h"
#include "run/long_work.h"
#include "run/saver.h"
#include "saturate/trainer.h"
#include "trace/device_phases.h"

namespace saturate {

struct Trainer::State {
  State(Env& env, const Recipe& asked, TrainerOptions options);
  ~State();

  // Before the first step: trainer_setup.cpp. Returns lines for the log, which is opened later.
  std::vector<std::string> resume();
  void require_same_run();
  void reset_lost_best(std::vector<std::string>& notes);
  void open_folder(const Recipe& asked, std::vector<std::string> notes);
  void introduce(const Recipe& asked);

  bool step_or_finish();
  void begin();
  bool make_step();
  bool next_batch(DeviceBatch& batch);
  void train_batch(DeviceBatch& batch);
  void step_together(const std::function<void()>& compute);
  Votes votes();
  void end_epoch(bool is_whole);
  void between_steps();
  void evaluate(bool counts = true);
  void note_evaluation();
  void note_end();
  void end_training();
  void finish();
  void restore_best();
  bool is_finished() const;
  TrainResult so_far();

  Checkpoint snapshot();
  void visit(StateVisitor& visitor);

  RunContext run;
  const double cpu_begin;
  const int64_t begin_ns;
  const std::unique_ptr<DevicePhases> device_phases;  // null on a CPU
  std::atomic<int64_t> steps_made{0};                 // position.step, for the heartbeat's thread
  const std::unique_ptr<Heartbeat> heartbeat;  // under `saturate launch`; from before the set-up
  LongWork opening;  // of the sources, which may be copied; until the constructor's body
  RunInput input;
  const int64_t total_steps;
  Learner learner;
  Recorder recorder;
  RunEvaluation evaluation;
  Saver saver;
  Votes last_votes;  // the result of all ranks' votes, at the last step

  RunPosition position, resumed;
  std::string resumed_from;    // the checkpoint's path
  bool final_weights = false;  // as Checkpoint's
  bool has_begun = false, in_epoch = false, is_over = false;
  int64_t first_batch = 0;  // of the present epoch in this process; 0 if it did not resume within
  std::optional<RunEnd> ended;
  TrainResult result;
};

}  // namespace saturate
