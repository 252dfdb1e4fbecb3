#include "model/random_state.h"

#include <ATen/Context.h>

#include <mutex>

namespace saturate {

RandomState::RandomState(const at::Device& device) {
  std::vector<at::Device> devices = {at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (const at::Device& each : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void RandomState::restore() {
  for (auto& [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace saturate
