// Ladders and sweeps: several settings of one recipe, measured together.
//
//   a file (docs/ladder.md) or a grid -> Ladder -> a recipe for each rung that this machine can run
//   -> each rung set up and warmed up -> interleaved rounds of all rungs -> speedups with intervals
//
// Each rung runs the training loop itself in a separate process, which is paused while others are
// measured: rungs do not share memory, caches or global settings. If a rung needs several processes
// that train together, each process that runs the ladder starts one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "advise/gain.h"
#include "advise/step_bench.h"
#include "data/inspect.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {

class Group;

struct Rung {
  std::string name;
  std::vector<std::string> set;    // "section.key=value", applied to the ladder's recipe in this
                                   // order
  std::vector<std::string> needs;  // "cuda>=2"; empty: any machine
  int processes = 1;               // that train together; the machine must have as many
  std::string seed_figure;         // "35.22 steps/s": published by the experiment's source
  size_t previous = 0;             // index of the rung it builds on; of the first rung 0, its own
  std::string where;               // for messages
};

// A source that is packed before the first round, and read by rungs.
struct LadderPack {
  std::string source, out;  // out: folder:PATH, tar:FILE, shard:FILE or lmdb:FOLDER
  std::string where;
};

struct Ladder {
  std::string title;
  std::string recipe;            // path of the base recipe
  std::vector<std::string> set;  // applied to it for all rungs
  std::vector<LadderPack> packs;
  std::vector<Rung> rungs;  // at least one
};

// Reads a ladder file. Fails with kUsage naming file, line, rung and field.
Ladder load_ladder(Env& env, const std::string& path);
// The same for text; paths in it are relative to `folder`.
Ladder parse_ladder(const std::string& text, const std::string& where, const std::string& folder);

// The grid of "key=a,b,c" lists as a ladder; the last list varies fastest. Commas within quotes or
// brackets belong to a value. Fails with kUsage.
Ladder make_sweep(const std::string& recipe, std::span<const std::string> over);

// Resources that rungs may need, and their amounts.
struct MachineFacts {
  int cuda = 0;       // GPUs
  int cores = 1;      // available to this process
  int processes = 1;  // that can train together
  int nodes = 1;      // machines that can train together
};
// For this process, which may be one of several started together (world.h).
MachineFacts this_machine();

// For a rung, and the rungs it builds on: "needs cuda>=2 (here 0)", or empty if it can run.
std::string unmet_needs(const Rung& rung, const MachineFacts& machine);

// The recipe of each rung, after the ladder's own `set`, then `overrides`, then the rung's; empty
// for rungs that `machine` cannot run. Fails with kUsage naming rung and key.
std::vector<std::optional<Recipe>> ladder_recipes(Env& env, const Ladder& ladder,
                                                  std::span<const std::string> overrides,
                                                  const std::string& scratch,
                                                  const MachineFacts& machine);

// Packs the sources that the ladder's rungs read. Fails as open_dataset() and pack_dataset() do.
void make_packs(Env& env, const Ladder& ladder, const std::string& scratch,
                const ProgressCallback& progress);

// If several processes train together: the steps and samples of all, CPU time and host memory
// summed over them, everything else from rank 0.
struct RungTiming {
  StepTiming steps;
  int64_t memory_peak_bytes = 0;  // of the process, on the host, so far
  int64_t tensor_peak_bytes = 0;  // of tensors on the device, so far
  std::string unit = "images";    // of samples; "samples" if they are tensors
};

// Runs rungs, one call at a time. Errors are those of training.
class RungMeasurer {
 public:
  virtual ~RungMeasurer() = default;
  // Sets a rung up and warms it up. False if cancelled.
  virtual bool start(size_t rung, const Recipe& recipe) = 0;
  // Runs a started rung for at least this long; it is paused before and after. Empty if cancelled.
  virtual std::optional<RungTiming> measure(size_t rung, double seconds) = 0;
};

struct ProcessMeasurerOptions {
  std::string program;  // the command `saturate`
  std::string folder;   // for the rungs' files; exists
  double seconds = 1;   // minimum warm-up
  // Polled ten times a second; true cancels.
  std::function<bool()> should_stop = [] { return false; };
};
// Runs serve_rung() in one process per rung. They end with the measurer.
std::unique_ptr<RungMeasurer> make_process_measurer(Env& env, ProcessMeasurerOptions options);

// For a ladder that several processes run together (saturate launch ... -- ladder): rank 0 decides
// the order of measurements. For a rung of several processes each rank starts one. A rung of one
// process runs on rank 0 only, while the other ranks wait. The destructor ends their wait. Calls of
// start() and measure() must come within the group's time limit of each other. `group` must outlive
// it.
std::unique_ptr<RungMeasurer> make_group_measurer(Env& env, const Ladder& ladder,
                                                  const ProcessMeasurerOptions& options,
                                                  Group& group);
// Called on every other rank; returns when rank 0 ends the measuring. Fails if rank 0 has exited.
void help_measuring(Env& env, const ProcessMeasurerOptions& options, Group& group);

// Joins the processes that train with this one; returns null if there are none.
using JoinGroup = std::function<std::shared_ptr<Group>(const Recipe&)>;

// Runs in a rung's process: trains `recipe` in `folder` as its parent commands through the socket
// with this descriptor. Returns when the parent closes the socket.
inline constexpr int kRungSocket = 3;
void serve_rung(Env& env, const std::string& recipe, const std::string& folder, double seconds,
                const JoinGroup& join = {});

struct RungResult {
  std::vector<RungTiming> rounds;
  std::string skipped;  // why there are no results; else empty
  // Ratios of images/s, with the 95 % interval over the rounds; empty if one of the two was not
  // measured.
  std::optional<Gain> over_previous, over_first;
  std::optional<double> seed_gain;  // over the first rung, from published figures
};

struct LadderResult {
  std::vector<RungResult> rungs;  // one per rung of the ladder
  bool interrupted = false;
};

struct LadderOptions {
  int rounds = 5;
  double seconds = 1;  // minimum length of one measurement
  // Called after each measurement with a line such as "round 2 of 5: cached, 12.3 steps/s".
  std::function<void(int done, int total, const std::string& line)> progress;
};

// Measures every rung that has a recipe, `rounds` times. The direction alternates between rounds,
// so that a machine that slows down favours no rung. A rung whose run fails (kRun, such as out of
// memory) counts as skipped; other errors end the ladder.
LadderResult run_ladder(const Ladder& ladder, std::span<const std::optional<Recipe>> recipes,
                        const MachineFacts& machine, const LadderOptions& options,
                        RungMeasurer& measurer);

// Median over the rounds.
double steps_per_s(const RungResult& rung);
double images_per_s(const RungResult& rung);

// As text for a terminal, as Markdown, and as JSON (specified in docs/ladder.md). The latter two
// have the settings of all rungs: ladder.set, to which the caller adds others that it applied.
std::string format_ladder(const Ladder& ladder, const LadderResult& result);
std::string ladder_markdown(const Ladder& ladder, const LadderResult& result);
std::string ladder_json(const Ladder& ladder, const LadderResult& result,
                        const LadderOptions& options);

struct SeedFigure {
  double value;      // above 0
  std::string unit;  // a rate if it ends in "/s", else a duration
  bool is_rate() const { return unit.ends_with("/s"); }
};

// Empty unless it is a number above 0 and one of the units steps/s, images/s, s and ms.
std::optional<SeedFigure> parse_seed_figure(const std::string& text);

// The speedup of `after` over `before`; empty if their units differ.
std::optional<double> seed_gain(const std::string& before, const std::string& after);

}  // namespace saturate
