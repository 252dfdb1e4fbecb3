// Looks into some steps of a run: see watch.trace.
//
// trace.json holds, on one clock, the ledger's phases within their steps, torch's operators and (on
// a GPU) kernels as Kineto records them, and what the loader's threads and the writer of
// checkpoints did; trace.txt a table of the operators. Torch has one profiler in a process, and so
// there is one trace at a time.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>

#include "saturate/env.h"
#include "saturate/ledger.h"
#include "saturate/watch_options.h"

namespace saturate {

// Belongs to the thread that runs the steps.
class Tracer {
 public:
  // Fails with kUsage where `window` asks for what this build or device does not have. All
  // references must outlive this. Marks phases for NVTX where the run is on a GPU.
  Tracer(Env& env, Ledger& ledger, const TraceWindow& window, const at::Device& device,
         std::string folder);
  // Drops a trace under way.
  ~Tracer();

  // What the user is to be told, if anything.
  struct Note {
    std::string text;
    bool is_warning = false;
  };

  // To be called before the first step, and after each: `done` steps have been made. Begins or ends
  // the window where that is due, and then writes the files: what cannot be written is a warning.
  std::optional<Note> between_steps(int64_t done);
  // At the end of the run: ends a window that is open; says so where no step was in it.
  std::optional<Note> finish(int64_t done);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
