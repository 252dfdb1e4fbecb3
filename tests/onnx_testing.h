// Models for the tests of ONNX export.
#pragma once

#include <functional>

#include "tests/twin_testing.h"

namespace saturate::testing {

using Function = std::function<at::Tensor(const at::Tensor&)>;

class FunctionModel : public Model {
 public:
  explicit FunctionModel(Function function, std::vector<NamedTensor> buffers = {})
      : function_(std::move(function)), buffers_(std::move(buffers)) {}
  at::Tensor forward(const at::Tensor& images) override { return function_(images); }
  void set_training(bool) override {}
  std::vector<NamedTensor> parameters() override { return {}; }
  std::vector<NamedTensor> buffers() override { return buffers_; }

 private:
  Function function_;
  std::vector<NamedTensor> buffers_;
};

// A quarter of the width, filled, in evaluation.
inline std::unique_ptr<Model> small_model(const std::string& name, const ImageSize& size) {
  ModelOptions options;
  options.name = name;
  options.width = 0.25;
  auto model = make_model(options, {10, size, Env::posix()});
  fill_all(*model);
  model->set_training(false);
  return model;
}

// All models of images that are not files.
inline std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : models())
    if (!entry.traits.is_file && !entry.traits.is_language) names.emplace_back(entry.name);
  return names;
}

}  // namespace saturate::testing
