#include "saturate/module_model.h"

#include <ATen/core/grad_mode.h>

namespace saturate {

std::vector<NamedTensor> ModuleModelBase::parameters() {
  std::vector<NamedTensor> named;
  for (const auto& item : module_.named_parameters()) named.push_back({item.key(), item.value()});
  return named;
}

std::vector<NamedTensor> ModuleModelBase::buffers() {
  std::vector<NamedTensor> named;
  for (const auto& item : module_.named_buffers()) named.push_back({item.key(), item.value()});
  return named;
}

// set_data keeps every handle that was given out pointing at the moved tensor.
void ModuleModelBase::to(const at::Device& device, bool channels_last) {
  const at::NoGradGuard no_grad;
  const auto move = [&](at::Tensor& tensor) {
    auto moved = tensor.to(device);
    if (channels_last && moved.dim() == 4) moved = moved.contiguous(at::MemoryFormat::ChannelsLast);
    tensor.set_data(moved);
  };
  for (auto& parameter : module_.parameters()) move(parameter);
  for (auto& buffer : module_.buffers()) move(buffer);
}

}  // namespace saturate
