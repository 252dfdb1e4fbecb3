#include "run/agreement.h"

#include <ATen/ops/empty.h>

namespace saturate {

void Agreement::begin(const Votes& own) {
  flags_ = at::empty({4}, at::kInt);
  int* const flags = flags_.mutable_data_ptr<int>();
  flags[0] = own.stop;
  flags[1] = own.time_is_up;
  flags[2] = own.save;
  flags[3] = own.buffers;
  wait_ = group_->start_max(flags_);
}

Votes Agreement::end() {
  wait_();
  const int* const flags = flags_.const_data_ptr<int>();
  return {flags[0] != 0, flags[1] != 0, flags[2] != 0, flags[3] != 0};
}

}  // namespace saturate
