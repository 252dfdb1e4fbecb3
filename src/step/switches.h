// The process's switches: those of torch that a step sets, and where the step creates its temporary
// tensors (train.create_on_device).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace saturate {

// Empty: left as it is.
struct Switches {
  std::optional<bool> tf32 = {};  // float matrix products on a GPU may round their inputs to TF32
  std::optional<bool> cudnn_benchmark = {}, detect_anomaly = {};
  std::optional<bool> keep_host_memory = {};  // see trace/kept_blocks.h
  std::optional<int> threads = {};  // torch's on the CPU; as set_compute_threads(), may fail
  // False: temporary tensors are created on the host and copied, as naive loops do; each such copy
  // waits for the device.
  std::optional<bool> create_on_device = {};
};

// The only owner of these switches: while any SwitchesScope lives, the last set() counts; the end
// of the last scope restores the values from before the first. Not bound to a thread, because
// backward runs on separate threads.
class SwitchesScope {
 public:
  SwitchesScope();
  ~SwitchesScope();
  SwitchesScope(const SwitchesScope&) = delete;
  SwitchesScope& operator=(const SwitchesScope&) = delete;

  void set(const Switches& switches) const;
  // No other scope has set anything since this one did.
  bool is_last() const;
};

struct Tf32Switches {
  bool cublas, cudnn;
};
// Empty if the program has set torch's newer fp32_precision, after which torch refuses to read
// these switches: then no scope changes TF32.
using Tf32Before = std::optional<Tf32Switches>;

// Sets TF32 while it lives; its end restores what was set before, as by the step of a training.
class Tf32Scope {
 public:
  explicit Tf32Scope(bool tf32);
  ~Tf32Scope();
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  const Tf32Before before_;
};

at::Tensor zeros_there(at::IntArrayRef sizes, const at::TensorOptions& options);
at::Tensor zeros_like_there(const at::Tensor& tensor);

}  // namespace saturate
