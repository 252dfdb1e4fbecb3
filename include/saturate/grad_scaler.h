// SPDX-License-Identifier: BSD-3-Clause
// Loss scaling for fp16: scales small gradients into its range, and skips a step whose gradients
// overflow. Decides like torch.amp.GradScaler, but without waiting for the device: whether a step
// counts is a scalar on the device, which the optimizer reads there.
//
//   scaler.scale(loss).backward()
//   found_inf = scaler.unscale(optimizer.gradients())
//   (clip)
//   optimizer.step(lr, found_inf)
//   scaler.update()
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "saturate/model.h"

namespace saturate {

struct GradScalerOptions {
  double initial_scale = 65536;
  double growth = 2;     // factor after `interval` steps without overflow
  double backoff = 0.5;  // factor after a step with overflow
  int64_t interval = 2000;
};

// Not for concurrent use.
class GradScaler {
 public:
  // `device`: of losses and gradients.
  GradScaler(const GradScalerOptions& options, const at::Device& device);

  // The loss times the scale. If the loss is not finite, no gradient is.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides float gradients by the scale, in place. Returns a float scalar on their device: 1 if
  // one is not finite, else 0. Fails with kRun if called twice without update().
  at::Tensor unscale(const std::vector<at::Tensor>& gradients);
  // Adapts the scale; once per step, after the optimizer's. Fails with kRun without an unscale().
  void update();

  // Discards an unscale() without update().
  void abandon() { found_inf_.reset(); }

  double value() const;  // waits for the device

  // "scale" and "growth_tracker", the number of steps without overflow since it last changed; share
  // storage.
  std::vector<NamedTensor> state() const;
  // Loads what state() returned from `tensors`; unchanged if missing.
  void load_state(const std::vector<NamedTensor>& tensors);

 private:
  GradScalerOptions options_;
  at::Tensor scale_, growth_tracker_;  // float and int32 scalars
  at::Tensor found_inf_;               // undefined between update() and unscale()
};

}  // namespace saturate
