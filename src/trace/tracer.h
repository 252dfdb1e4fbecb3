// Traces some steps of a run: see watch.trace.
//
// trace.json holds, on one clock, the ledger's phases within their steps, torch's operators and (on
// a GPU) kernels from Kineto, and the work of the loader's threads and the checkpoint writer;
// trace.txt a table of the operators. Torch has one profiler per process, so there is one trace at
// a time.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "saturate/data/env.h"
#include "saturate/ledger.h"
#include "trace/trace_format.h"
#include "trace/trace_window.h"

namespace saturate {

// Belongs to the thread that runs the steps.
class Tracer : private PhaseObserver {
 public:
  // Fails with kUsage if `window` needs something that this build or device lacks. All references
  // must outlive this. Adds NVTX ranges for phases if the run is on a GPU.
  Tracer(Env& env, Ledger& ledger, const TraceWindow& window, const at::Device& device,
         std::string folder);
  // Drops a trace in progress.
  ~Tracer() override;
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

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
  void charged(Phase phase, Phase next, int64_t charged_from_ns, int64_t end_ns) override;
  std::optional<Note> begin(int64_t done);
  Note end(int64_t done);
  Trace collect(int64_t done);
  Note write(const Trace& trace);

  Env& env_;
  Ledger& ledger_;
  const TraceWindow window_;
  const at::Device device_;
  const std::string folder_;
  const bool marks_;  // phase ranges, for NVTX
  bool is_open_ = false, is_over_;
  int64_t begin_ns_ = 0, step_ns_ = 0;  // start of the window, and of the present step
  int64_t unix_offset_ns_ = 0;          // from the ledger's clock to Unix time
  int64_t begun_after_ = 0;             // steps
  TraceTrack phases_;
};

}  // namespace saturate
