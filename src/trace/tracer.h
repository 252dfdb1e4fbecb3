// Traces some steps of a run: see watch.trace.
//
// trace.json holds, on one clock, the ledger's phases within their steps, torch's operators and (on
// a GPU) kernels from Kineto, and the work of the loader's threads and the checkpoint writer;
// trace.txt a table of the operators. Torch has one profiler per process, so there is one trace at
// a time.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>

#include "saturate/data/env.h"
#include "saturate/ledger.h"
#include "trace/trace_window.h"

namespace saturate {

// Belongs to the thread that runs the steps.
class Tracer {
 public:
  // Fails with kUsage if `window` needs something that this build or device lacks. All references
  // must outlive this. Adds NVTX ranges for phases if the run is on a GPU.
  Tracer(Env& env, Ledger& ledger, const TraceWindow& window, const at::Device& device,
         std::string folder);
  // Drops a trace in progress.
  ~Tracer();

  // A message to the user, if any.
  struct Note {
    std::string text;
    bool is_warning = false;
  };

  // To be called before the first step, and after each: `done` steps have been made. Begins or ends
  // the window when due, and then writes the files: failing to write is a warning.
  std::optional<Note> between_steps(int64_t done);
  // To be called at the end of the run: ends an open window; reports if it contained no step.
  std::optional<Note> finish(int64_t done);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate
