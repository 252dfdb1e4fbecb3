// SPDX-License-Identifier: BSD-3-Clause
// A Model from any torch::nn module. Compiles in three quarters of the time of torch/nn.h, of which
// it includes only what is needed.
#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "saturate/model.h"

namespace saturate {

// Everything except forward(), which torch::nn::Module does not declare.
class ModuleModelBase : public Model {
 public:
  explicit ModuleModelBase(torch::nn::Module& module) : module_(module) {}
  void set_training(bool training) override;
  std::vector<NamedTensor> parameters() override;
  std::vector<NamedTensor> buffers() override;
  ModelFacets facets() override;

 private:
  torch::nn::Module& module_;
  bool keeps_frozen_ = false;
};

// Whether a class has a member of a name, even a private one: a member of the same name in a second
// base makes it ambiguous. True for a final class, which cannot be derived from: it may have one.
#define SATURATE_NAMES_MEMBER(Trait, member)    \
  struct Trait##Probe {                         \
    int member;                                 \
  };                                            \
  template <class Module>                       \
  struct Trait##Both : Module, Trait##Probe {}; \
  template <class Module>                       \
  constexpr bool Trait() {                      \
    if constexpr (std::is_final_v<Module>)      \
      return true;                              \
    else                                        \
      return !requires {                        \
        &Trait##Both<Module>::member;           \
      };                                        \
  }

namespace module_members {
SATURATE_NAMES_MEMBER(has_loss, loss)
SATURATE_NAMES_MEMBER(has_wanted_images, kWantedImages)
SATURATE_NAMES_MEMBER(has_per_pixel, kPerPixel)
}  // namespace module_members
#undef SATURATE_NAMES_MEMBER

// at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels): see LossFunction.
template <class Module>
concept HasLoss = requires(Module& module, const at::Tensor& tensor) {
  { module.loss(tensor, tensor) } -> std::convertible_to<at::Tensor>;
};

// A training member that a module declares is used, or does not compile: never ignored.
template <class Module>
constexpr bool kLossIsUsable = HasLoss<Module> || !module_members::has_loss<Module>();
template <class Module>
constexpr bool kWantedImagesAreUsable = requires(Module& module) {
  { Module::kWantedImages } -> std::convertible_to<int64_t>;
  module.prepare(at::Tensor());
}
|| !module_members::has_wanted_images<Module>();
template <class Module>
constexpr bool kPerPixelIsUsable = requires {
  { Module::kPerPixel } -> std::convertible_to<bool>;
}
|| !module_members::has_per_pixel<Module>();

// `Module` has at::Tensor forward(const at::Tensor&), and optionally static constexpr int64_t
// kWantedImages and void prepare(const at::Tensor&), std::vector<Stage> stages(), static constexpr
// bool kPerPixel = true, loss(), encode() and decode(), and static ForeignWeights
// foreign_weights(): see ModelFacets.
template <class Module>
class ModuleModel : public ModuleModelBase {
  static_assert(!std::is_final_v<Module>,
                "the module is final, which hides whether it has a private loss(), kWantedImages "
                "or kPerPixel: derive the module from torch::nn::Module without final");
  static_assert(kLossIsUsable<Module>,
                "the module's loss() cannot be called: make it a public "
                "at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels), or give it "
                "another name to train with cross entropy");
  static_assert(kWantedImagesAreUsable<Module>,
                "the module's kWantedImages cannot be used: make it a public static constexpr "
                "int64_t, with a public prepare(const at::Tensor& images)");
  static_assert(kPerPixelIsUsable<Module>,
                "the module's kPerPixel cannot be used: make it a public static constexpr bool");

 public:
  explicit ModuleModel(std::shared_ptr<Module> module)
      : ModuleModelBase(*module), module_(std::move(module)) {}
  at::Tensor forward(const at::Tensor& images) override { return module_->forward(images); }
  ModelFacets facets() override {
    ModelFacets facets = ModuleModelBase::facets();
    [[maybe_unused]] Module& module = *module_;
    if constexpr (requires { Module::kPerPixel; }) facets.per_pixel = Module::kPerPixel;
    if constexpr (requires { module.stages(); }) facets.stages = module.stages();
    if constexpr (requires { Module::foreign_weights(); })
      facets.foreign_weights = Module::foreign_weights();
    if constexpr (HasLoss<Module>)
      facets.loss = [&module](const at::Tensor& logits, const at::Tensor& labels) -> at::Tensor {
        return module.loss(logits, labels);
      };
    if constexpr (requires { module.encode(at::Tensor()); })
      facets.encoder = {
          [&module](const at::Tensor& images) { return module.encode(images); },
          [&module](const std::vector<at::Tensor>& features) { return module.decode(features); }};
    if constexpr (requires { Module::kWantedImages; }) {
      facets.wanted_images = Module::kWantedImages;
      facets.prepare = [&module](const at::Tensor& images) { module.prepare(images); };
    }
    return facets;
  }

 private:
  std::shared_ptr<Module> module_;
};

template <class Module, class... Arguments>
std::unique_ptr<Model> make_module_model(Arguments&&... arguments) {
  return std::make_unique<ModuleModel<Module>>(
      std::make_shared<Module>(std::forward<Arguments>(arguments)...));
}

}  // namespace saturate
