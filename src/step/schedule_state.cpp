// A schedule's state as tensors, for checkpoints.
#include <ATen/ops/tensor.h>

#include "saturate/data/error.h"
#include "saturate/model.h"
#include "saturate/schedule.h"

namespace saturate {
namespace {

constexpr const char* kStateName = "plateau";  // a tensor of four doubles

}  // namespace

std::vector<NamedTensor> Schedule::state() const {
  if (!listens()) return {};
  return {{kStateName, at::tensor(plateau_.state(), at::kDouble)}};
}

void Schedule::load_state(const std::vector<NamedTensor>& tensors) {
  if (!listens()) return;
  for (const auto& [name, tensor] : tensors) {
    if (name != kStateName || tensor.numel() != 4) continue;
    const at::Tensor values = tensor.to(at::kCPU, at::kDouble).contiguous();
    const double* value = values.const_data_ptr<double>();
    plateau_.load_state({value, value + 4});
    return;
  }
  fail(ErrorKind::kRun, "the saved state has no state of the schedule \"plateau\"", kStateName,
       "Resume with the schedule that the run had");
}

}  // namespace saturate
