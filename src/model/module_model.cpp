#include "saturate/module_model.h"

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

std::vector<NamedTensor> listed(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> named;
  for (const auto& item : tensors) named.push_back({item.key(), item.value()});
  return named;
}

}  // namespace

at::Tensor BatchNorm2dImpl::forward(const at::Tensor& input) {
  if (!hook_ || !is_training()) return torch::nn::BatchNorm2dImpl::forward(input);
  TORCH_CHECK(takes_hook(),
              "a BatchNorm2d over processes needs affine, track_running_stats and a momentum");
  num_batches_tracked += 1;
  return hook_(*this, input);
}

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
  return listed(module_.named_parameters());
}

std::vector<NamedTensor> ModuleModelBase::buffers() {
  return listed(module_.named_buffers());
}

}  // namespace saturate
