// Gradients sent as products of two low-rank matrices (PowerSGD), with error feedback and warm
// start.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

namespace saturate {

// `parameters`: all that the buckets hold, in the same order on all processes. `sent` is called
// when the last bucket's first all-reduces have been started. Belongs to the thread that runs
// backward; `group` must outlive it.
std::unique_ptr<c10d::CommHookInterface> make_power_sgd(c10d::ProcessGroup& group, int rank,
                                                        const std::vector<at::Tensor>& parameters,
                                                        std::function<void()> sent);

}  // namespace saturate
