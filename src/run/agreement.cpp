#include "run/agreement.h"

#include <ATen/ops/empty.h>

namespace saturate {

void Agreement::begin(const Votes& own) {
  flags_ = at::empty({5}, at::kInt);
  int* const flags = flags_.mutable_data_ptr<int>();
  flags[0] = own.stop;
  flags[1] = own.time_is_up;
  flags[2] = own.save;
  flags[3] = own.buffers;
  flags[4] = own.observer;
  wait_ = group_->start_max(flags_);
}

Votes Agreement::end() {
  wait_();
  const int* const flags = flags_.const_data_ptr<int>();
  Votes all;
  all.stop = flags[0] != 0;
  all.time_is_up = flags[1] != 0;
  all.save = flags[2] != 0;
  all.buffers = flags[3] != 0;
  all.observer = flags[4] != 0;
  return all;
}

}  // namespace saturate
