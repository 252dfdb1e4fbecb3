// Loss scaling for fp16: gradients too small for it are lifted into its range, and a step whose
// gradients overflow is left out. torch.amp.GradScaler's decisions, but the host never waits for
// them: whether a step counts is a scalar on the device, which the optimizer reads there.
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
  // `device`: where losses and gradients are.
  GradScaler(const GradScalerOptions& options, const at::Device& device);

  // The loss times the scale. Of a loss that is not finite no gradient is.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides float gradients by the scale, in place. Gives a float scalar beside them: 1 where one
  // is not finite, else 0. Fails with kRun when called twice without update().
  at::Tensor unscale(const std::vector<at::Tensor>& gradients);
  // Adapts the scale; once per step, after the optimizer's. Fails with kRun without an unscale().
  void update();

  // Forgets an unscale() that no update() follows.
  void abandon() { found_inf_.reset(); }

  double value() const;            // waits for the device
  int64_t growth_tracker() const;  // steps without overflow since the scale last changed; waits

  // "scale" and "growth_tracker"; share storage.
  std::vector<NamedTensor> state() const;
  // Takes what state() gave from among `tensors`; as it was where they are not there.
  void load_state(const std::vector<NamedTensor>& tensors);

 private:
  GradScalerOptions options_;
  at::Tensor scale_, growth_tracker_;  // float and int32 scalars
  at::Tensor found_inf_;               // undefined between update() and unscale()
};

}  // namespace saturate
