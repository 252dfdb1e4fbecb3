#include "step/switches.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <atomic>

#include "base/mutex.h"
#include "feed/device_stream.h"
#include "trace/kept_blocks.h"

namespace saturate {
namespace {

using torch::autograd::AnomalyMode;

std::atomic<bool> create_on_device = true;

// Values from before the first scope.
struct FormerSwitches {
  Tf32Before tf32;
  bool cudnn_benchmark, detect_anomaly, create_on_device;
  std::optional<bool> keep_host_memory;  // empty until a scope sets it
  std::optional<int> threads;            // likewise
};

Mutex scopes_mutex;
int scopes GUARDED_BY(scopes_mutex) = 0;
const SwitchesScope* last_setter GUARDED_BY(scopes_mutex) = nullptr;
FormerSwitches former GUARDED_BY(scopes_mutex);

Tf32Before tf32_now() {
  const at::Context& context = at::globalContext();
  try {
    return Tf32Switches{context.allowTF32CuBLAS(), context.allowTF32CuDNN()};
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void set_tf32(const Tf32Switches& tf32) {
  at::globalContext().setAllowTF32CuBLAS(tf32.cublas);
  at::globalContext().setAllowTF32CuDNN(tf32.cudnn);
}

}  // namespace

SwitchesScope::SwitchesScope() {
  const MutexLock lock(scopes_mutex);
  if (scopes++ > 0) return;
  const at::Context& context = at::globalContext();
  former = {tf32_now(), context.benchmarkCuDNN(), AnomalyMode::is_enabled(), create_on_device, {},
            {}};
}

SwitchesScope::~SwitchesScope() {
  const MutexLock lock(scopes_mutex);
  if (last_setter == this) last_setter = nullptr;
  if (--scopes > 0) return;
  at::Context& context = at::globalContext();
  if (former.tf32) set_tf32(*former.tf32);
  context.setBenchmarkCuDNN(former.cudnn_benchmark);
  AnomalyMode::set_enabled(former.detect_anomaly);
  create_on_device = former.create_on_device;
  if (former.keep_host_memory) keep_host_memory(*former.keep_host_memory);
  // Starts no thread: LibTorch's pool keeps the size that it was first given.
  if (former.threads) at::set_num_threads(*former.threads);
}

void SwitchesScope::set(const Switches& switches) const {
  const MutexLock lock(scopes_mutex);
  last_setter = this;
  if (switches.threads) {
    if (!former.threads) former.threads = at::get_num_threads();
    set_compute_threads(*switches.threads);
  }
  at::Context& context = at::globalContext();
  if (switches.tf32 && former.tf32) set_tf32({*switches.tf32, *switches.tf32});
  if (switches.cudnn_benchmark) context.setBenchmarkCuDNN(*switches.cudnn_benchmark);
  if (switches.detect_anomaly) AnomalyMode::set_enabled(*switches.detect_anomaly);
  if (switches.create_on_device) create_on_device = *switches.create_on_device;
  if (!switches.keep_host_memory) return;
  const bool kept = keep_host_memory(*switches.keep_host_memory);
  if (!former.keep_host_memory) former.keep_host_memory = kept;
}

bool SwitchesScope::is_last() const {
  const MutexLock lock(scopes_mutex);
  return last_setter == this;
}

Tf32Scope::Tf32Scope(bool tf32) : before_(tf32_now()) {
  const MutexLock lock(scopes_mutex);
  if (before_) set_tf32({tf32, tf32});
}

Tf32Scope::~Tf32Scope() {
  const MutexLock lock(scopes_mutex);
  if (before_) set_tf32(*before_);
}

at::Tensor zeros_there(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (create_on_device) return at::zeros(sizes, options);
  return at::zeros(sizes, options.device(at::kCPU)).to(options.device());
}

at::Tensor zeros_like_there(const at::Tensor& tensor) {
  if (create_on_device) return at::zeros_like(tensor);
  const at::Tensor host = at::empty_like(tensor, tensor.options().device(at::kCPU));
  return host.zero_().to(tensor.device());
}

}  // namespace saturate
