#include "saturate/module_model.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>

#include "saturate/batch_norm.h"

namespace saturate {
namespace {

bool is_batch_norm(torch::nn::Module& module) {
  return dynamic_cast<torch::nn::BatchNorm1dImpl*>(&module) ||
         dynamic_cast<torch::nn::BatchNorm2dImpl*>(&module) ||
         dynamic_cast<torch::nn::BatchNorm3dImpl*>(&module);
}

}  // namespace

void ModuleModelBase::set_training(bool training) {
  module_.train(training);
  if (!training || !keeps_frozen_) return;
  for (const auto& module : module_.modules()) {
    if (!is_batch_norm(*module)) continue;
    const auto own = module->parameters(/*recurse=*/false);
    if (std::ranges::none_of(own, [](const at::Tensor& tensor) { return tensor.requires_grad(); }))
      module->eval();
  }
}

ModelFacets ModuleModelBase::facets() {
  ModelFacets facets;
  facets.keep_frozen_statistics = [this] {
    keeps_frozen_ = true;
    set_training(module_.is_training());
  };
  for (const auto& item : module_.named_modules()) {
    auto* const own = dynamic_cast<BatchNorm2dImpl*>(item.value().get());
    if (own) facets.norms.push_back(own);
    const bool takes_hook = own && own->takes_hook();
    if (is_batch_norm(*item.value()) && !takes_hook && facets.norm_without_hook.empty())
      facets.norm_without_hook = item.key();
  }
  return facets;
}

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
