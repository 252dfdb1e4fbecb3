// Helpers of the tests that need a GPU: without one, each is skipped with a message.
#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace saturate::testing {

inline int gpu_count() {
  return at::hasCUDA() ? int(at::detail::getCUDAHooks().deviceCount()) : 0;
}
inline bool has_gpu() {
  return gpu_count() > 0;
}

}  // namespace saturate::testing

#define SATURATE_NEEDS_GPU() \
  if (!::saturate::testing::has_gpu()) GTEST_SKIP() << "no GPU that this build can use"
