// Models for the tests of ONNX export.
#pragma once

#include <functional>
#include <map>

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
inline std::unique_ptr<Model> small_model(const std::string& name, const ModelInput& input) {
  ModelOptions options;
  options.name = name;
  options.width = 0.25;
  auto model = make_model(options, input);
  fill_all(*model);
  model->set_training(false);
  return model;
}
inline std::unique_ptr<Model> small_model(const std::string& name, const ImageSize& size) {
  return small_model(name, ModelInput{10, size, Env::posix()});
}

inline ModelInput tensor_input(const std::vector<int64_t>& shape) {
  ModelInput input{3, 0, Env::posix()};
  input.tensor = {"x", ElementType::kFloat32, shape};
  return input;
}

// Models of tensors of floats, and the shape of a sample.
inline std::map<std::string, std::vector<int64_t>> tensor_models() {
  return {{"unet3d", {2, 8, 16, 8}}, {"resnet18_1d", {2, 64}}, {"mlp", {5}}};
}

// All models of images that are not files.
inline std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : models())
    if (!entry.traits.is_file && !entry.traits.is_language &&
        (!entry.traits.takes_tensors || entry.name == "mlp"))
      names.emplace_back(entry.name);
  return names;
}

}  // namespace saturate::testing
