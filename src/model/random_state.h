// Saves and restores torch's random state.
#pragma once

#include <ATen/Context.h>

#include <mutex>
#include <utility>
#include <vector>

namespace saturate {

// The default generator of the CPU, and of `device` if that is another.
class RandomState {
 public:
  explicit RandomState(const at::Device& device) {
    std::vector<at::Device> devices = {at::kCPU};
    if (!device.is_cpu()) devices.push_back(device);
    for (const at::Device& each : devices) {
      at::Generator generator = at::globalContext().defaultGenerator(each);
      const std::lock_guard lock(generator.mutex());
      states_.emplace_back(generator, generator.get_state());
    }
  }
  void restore() {
    for (auto& [generator, state] : states_) {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// Restores the state at the end of a scope.
class RandomStateScope : RandomState {
 public:
  using RandomState::RandomState;
  ~RandomStateScope() { restore(); }
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;
};

}  // namespace saturate
