// Helpers of the tests of kernels written with Highway.
#pragma once

// As in fast_simd.cpp and effect_simd.cpp, before any header of Highway.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <string>
#include <vector>

namespace saturate::testing {

// Whether kernels are compiled for an instruction set of this CPU, determined without Highway.
inline bool has_simd() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
#elif defined(__aarch64__)
  return true;
#else
  return false;  // unknown
#endif
}

// Names of the instruction sets that this CPU has and kernels are compiled for, the best first.
inline std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets())
    if (target != HWY_SCALAR && target != HWY_EMU128) names.emplace_back(hwy::TargetName(target));
  return names;
}

// Without the first, which is the plain version.
template <class Kernels>
std::vector<Kernels> without_plain(std::vector<Kernels> all) {
  all.erase(all.begin());
  return all;
}

// Expects `all` to have a version for each of simd_targets(), and `used` to be the best of them.
template <class Kernels>
void expect_every_target(const std::vector<Kernels>& all, const Kernels& used) {
  std::vector<std::string> names;
  for (const Kernels& kernels : without_plain(all)) names.emplace_back(kernels.name);
  EXPECT_EQ(names, simd_targets());
  if (has_simd()) {
    ASSERT_FALSE(names.empty());
  }
  EXPECT_STREQ(used.name, names.empty() ? all.front().name : names.front().c_str());
}

}  // namespace saturate::testing
