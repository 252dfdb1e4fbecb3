// The trainer's insides: trainer.cpp is the loop, trainer_setup.cpp what comes before it,
// trainer_saving.cpp checkpoints, trainer_watching.cpp and trainer_introduction.cpp what it shows
// of itself, trainer_group.cpp what is done together with other processes.
#pragma once

#include <atomic>

#include "reduce/heartbeat.h"
#include "run/agreement.h"
#include "run/rank_buffers.h"
#include "run/run_log.h"
#include "run/setup.h"
#include "saturate/answers.h"
#include "saturate/checkpoint.h"
#include "saturate/device_phases.h"
#include "saturate/evaluator.h"
#include "saturate/gradient_reducer.h"
#include "saturate/graphed_step.h"
#include "saturate/group.h"
#include "saturate/lookahead.h"
#include "saturate/memory.h"
#include "saturate/sample_gallery.h"
#include "saturate/schedule.h"
#include "saturate/stream_clock.h"
#include "saturate/sync_batch_norm.h"
#include "saturate/telemetry_log.h"
#include "saturate/tracer.h"
#include "saturate/trainer.h"
#include "saturate/weight_average.h"
#include "saturate/weights.h"

namespace saturate {

// CPU time of this process so far, all threads.
double cpu_seconds();

// What train.monitor watches.
double monitored_value(Monitor monitor, const Metrics& metrics);

// Whether something that happens after every so many (0: never) is due.
inline bool is_multiple(int64_t count, int64_t every) {
  return every > 0 && count > 0 && count % every == 0;
}

struct Trainer::State {
  State(Env& env_in, const Recipe& recipe_in, TrainerOptions options_in);
  ~State();

  void set_switches();
  void build_model();
  PipelineSetup pipeline_setup();
  void prepare_model();
  at::Tensor first_images(int64_t wanted);
  void plan_graph();
  std::string graph_line() const;
  void introduce(const Recipe& asked);
  void note_weights();
  void require_finite_weights();
  void resume();
  void resume_best(const Checkpoint& checkpoint, const Recipe& saved);
  std::vector<std::string> begin_branch();

  // With other processes: trainer_group.cpp.
  void join_group();
  Shard shard() const;
  void require_same_run();
  bool is_first() const { return !group || group->rank() == 0; }
  bool any(bool own);
  bool first_says(bool own);
  Votes votes();
  void step_together(DeviceBatch& batch);
  bool agree_to_save();
  void take_buffers();
  Metrics over_ranks(const Metrics& own);
  std::vector<NamedTensor> random_states();
  void load_random_states(const std::vector<NamedTensor>& states);

  bool step_or_finish();
  void begin();
  bool make_step();
  bool next_batch(DeviceBatch& batch);
  void train_batch(DeviceBatch& batch);
  void end_epoch(bool is_whole);
  void read_metrics();
  [[noreturn]] void fail_overflow();
  [[noreturn]] void fail_not_finite();
  void record_steps();
  void close_epoch();
  void between_steps();
  void note_end();

  std::optional<Metrics> evaluate(const char* title);
  void evaluate_now(bool counts = true);
  double time_evaluation(double seconds);
  void observe(const Metrics& metrics);
  bool save_is_due();
  Checkpoint snapshot();
  void save(bool wait);
  void report(const CheckpointWriter::Outcome& outcome);
  void save_last();
  void retry_best();
  std::optional<int64_t> best_to_restore() const;
  void restore_best();
  bool is_finished() const;
  void require_room();
  TrainResult so_far();
  void finish();

  std::unique_ptr<TelemetryLog> make_telemetry();
  void prepare_watching();
  template <class Body>
  void or_warn(const char* what, const Body& body);
  void run_step(DeviceBatch& batch);
  void compute_step(DeviceBatch& batch);
  DeviceBatch finished_copy(DeviceBatch batch) const;
  void write_histograms();
  void trace(bool ended_run);
  void write_mistakes();
  at::Tensor all_answers();
  void write_classes(const Metrics& found);

  bool at_epoch_end() const { return position.batch == 0; }
  std::optional<int64_t> evaluated_step() const {
    return evaluation ? std::optional(evaluation->step) : std::nullopt;
  }

  Env& env;
  TrainerOptions options;
  Group* const group;              // options.group
  std::unique_ptr<FileLock> lock;  // on the run's folder, rank 0's
  at::Device device;
  TensorMemory& memory;
  MemoryBudget budget;
  Ledger ledger;
  std::unique_ptr<StreamClock> streams;         // null on a CPU, as the next
  std::unique_ptr<DevicePhases> device_phases;  // that the ledger tells
  double cpu_begin;
  int64_t begin_ns;
  std::unique_ptr<Dataset> data;
  Recipe recipe;
  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<WeightAverage> average;
  std::unique_ptr<Lookahead> lookahead;
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<ResidentDataset> resident;  // of `data`, or null
  Loader loader;
  Feeder feeder;
  CheckpointStore store;
  CheckpointWriter writer;
  std::unique_ptr<TelemetryLog> telemetry;  // null where it is off, as the next two
  std::unique_ptr<Tracer> tracer;
  std::unique_ptr<SampleGallery> gallery;
  Answers answers;  // of the last evaluation, this process's part
  std::unique_ptr<RunLog> log;
  std::unique_ptr<GradientReducer> reducer;  // of several processes
  std::unique_ptr<SyncBatchNorm> synced;     // distributed.sync_bn
  std::unique_ptr<TrainStep> step;
  std::unique_ptr<GraphedStep> graphed;  // train.graph; null where the steps run as they are
  std::string why_not_graphed;           // with train.graph=auto
  std::unique_ptr<RankBuffers> buffers;  // of several processes
  Agreement agreement;
  Votes agreed;  // at the last step, of all processes

  int64_t epoch_steps, total_steps;
  std::unique_ptr<Schedule> schedule;
  RunPosition position, resumed;
  double lr = 0;
  int64_t sound_step = 0;               // the last one that a finite loss was read by
  RunningMetrics running;               // since they were read
  Metrics unrecorded;                   // read, since the last "step" record
  Metrics epoch_metrics;                // of this epoch, up to the last "step" record
  std::optional<LoadedWeights> loaded;  // where model.weights were
  std::optional<Evaluation> evaluation;
  EarlyStopping stopping;
  std::vector<std::string> resume_notes;  // for the log, which is made later
  std::string resumed_from;               // the checkpoint's path
  bool final_weights = false;             // as Checkpoint's
  bool unsaved = true, save_due = false;
  bool best_unsaved = false;  // these weights are the best, and their save has not begun
  bool best_lost = false;     // it has failed, and the writer still holds them
  int64_t saved_ns;
  size_t warned_train = 0, warned_eval = 0;  // skipped samples already named
  bool warned_uncompiled = false, warned_ungraphed = false, warned_overflow = false;
  bool has_begun = false, in_epoch = false, is_over = false;
  std::optional<RunEnd> ended;
  std::atomic<int64_t> steps_made{0};    // position.step, for the heartbeat's thread
  std::unique_ptr<Heartbeat> heartbeat;  // under `saturate launch`
  TrainResult result;
};

}  // namespace saturate
