// Saves and restores torch's random state.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <utility>
#include <vector>

namespace saturate {

// The default generator of the CPU, and of `device` if that is another.
class RandomState {
 public:
  explicit RandomState(const at::Device& device);
  void restore();

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// Restores the state at the end of a scope.
class RandomStateScope {
 public:
  explicit RandomStateScope(const at::Device& device) : before_(device) {}
  ~RandomStateScope() { before_.restore(); }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;

 private:
  RandomState before_;
};

}  // namespace saturate
