// An ONNX graph in the making, and one operator of a program as nodes of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/onnx_file.h"
#include "saturate/model.h"

namespace saturate {

// A program is run twice, with these numbers of images. Sizes and integers that differ between the
// runs depend on the number; all others are constants of the graph.
inline constexpr std::array<int64_t, 2> kRunImages{2, 3};
using BothRuns = std::array<c10::IValue, 2>;
using BothTensors = std::array<at::Tensor, 2>;

// Tensors that depend on the images have a name in the graph, by the tensor of the first run. All
// others are constants.
class OnnxGraph {
 public:
  // `weights`: their names in the graph. `label`: the model, in errors.
  OnnxGraph(std::vector<NamedTensor> weights, std::string label)
      : label_(std::move(label)), weights_(std::move(weights)) {}

  [[noreturn]] void fail_export(const std::string& what, const std::string& remedy) const;
  [[noreturn]] void unsupported(const std::string& what) const;

  void set_input(const BothTensors& images, const std::string& name);
  void set(const at::Tensor& tensor, const std::string& name);
  bool is_named(const at::Tensor& tensor) const;
  bool depends_on_images(const c10::IValue& value) const;
  std::string name_of(const BothTensors& tensor);
  std::string constant(const at::Tensor& tensor);
  // After an operator wrote `tensor`, whose name is `name` from now on. Views of it lose theirs.
  void overwrite(const at::Tensor& tensor, const std::string& name);

  std::vector<std::string> emit(const std::string& op, std::vector<std::string> inputs,
                                OnnxAttributes attributes, size_t outputs);
  // 0 if the size is a constant, otherwise its quotient by the number of images.
  int64_t images_factor(int64_t first, int64_t second) const;
  // A size as in a file's input and output: kBatchSize, or a constant.
  std::vector<int64_t> sizes_of(const BothTensors& tensor) const;
  // The name of a tensor's sizes, computed from the number of images if necessary.
  std::string computed_sizes(const BothTensors& tensor);

  // The graph with `logits` as its output. The weights are valid as long as this object.
  OnnxModel finish(const BothTensors& logits);

 private:
  struct Named {
    at::Tensor tensor;  // keeps the key valid
    std::string name;
  };
  std::string label_;
  std::vector<NamedTensor> weights_;
  OnnxModel model_;
  std::unordered_map<const c10::TensorImpl*, Named> named_, constants_;
  std::set<const c10::StorageImpl*> overwritten_;
  std::string number_of_images_;
};

// One operator: its arguments by the names in torch's schema, and its results.
class OnnxCall {
 public:
  OnnxCall(OnnxGraph& graph, const c10::FunctionSchema& schema, std::vector<BothRuns> arguments,
           std::vector<BothTensors> results)
      : graph_(graph),
        schema_(schema),
        arguments_(std::move(arguments)),
        results_(std::move(results)) {}

  // The operator, for a reason that follows its name.
  [[noreturn]] void unsupported(const std::string& reason) const;
  const std::string& op() const { return schema_.name(); }

  bool has(std::string_view argument) const;  // and it is not None
  bool flag(std::string_view argument) const;
  int64_t integer(std::string_view argument) const;
  double number(std::string_view argument) const;
  std::string text(std::string_view argument) const;  // "" if there is none
  std::vector<int64_t> integers(std::string_view argument) const;
  std::vector<double> numbers(std::string_view argument) const;  // none if there is none
  // From the first run, for its sizes and type.
  at::Tensor tensor(std::string_view argument) const;
  std::vector<at::Tensor> tensors(std::string_view argument) const;
  const at::Tensor& result(size_t i = 0) const { return results_.at(i)[0]; }
  size_t results() const { return results_.size(); }
  // An axis counted from the first, for a tensor of that many dimensions.
  int64_t axis(std::string_view argument, int64_t dimensions) const;

  // Names of arguments in the graph; a number or a constant becomes a constant. With a type: the
  // value converted to it.
  std::string operand(std::string_view argument) const;
  std::string operand(std::string_view argument, at::ScalarType type) const;
  std::vector<std::string> operands(std::string_view argument) const;
  std::string constant(const at::Tensor& tensor) const { return graph_.constant(tensor); }
  std::string constant(const std::vector<int64_t>& values) const;
  std::string scalar(double value) const;  // of the result's type

  std::string emit(const std::string& op, std::vector<std::string> inputs,
                   OnnxAttributes attributes = {}) const;
  std::vector<std::string> emit_many(const std::string& op, std::vector<std::string> inputs,
                                     OnnxAttributes attributes, size_t outputs) const {
    return graph_.emit(op, std::move(inputs), std::move(attributes), outputs);
  }
  // `name` with the sizes of result `i`.
  std::string reshaped(const std::string& name, size_t i = 0) const;
  std::string computed_sizes() const { return graph_.computed_sizes(results_.at(0)); }

 private:
  const BothRuns* find(std::string_view argument) const;
  const BothRuns& get(std::string_view argument) const;
  // The argument's value, the same in both runs.
  const c10::IValue& same(std::string_view argument) const;

  OnnxGraph& graph_;
  const c10::FunctionSchema& schema_;
  std::vector<BothRuns> arguments_;
  std::vector<BothTensors> results_;
};

// Adds the nodes of one operator; returns the names of its results, or of the first of them.
using OnnxOperator = std::vector<std::string> (*)(OnnxCall& call);
// For torch's name without namespace and final underscore, as "relu"; null if there is none.
OnnxOperator onnx_operator(std::string_view name);
// Parts of it.
OnnxOperator onnx_layer(std::string_view name);
OnnxOperator onnx_shape_operator(std::string_view name);
struct OnnxRow {
  std::string_view name;
  OnnxOperator convert;
};

OnnxType onnx_type(at::ScalarType type);  // kFloat also for types that ONNX does not have

}  // namespace saturate
