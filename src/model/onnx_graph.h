// An ONNX graph in the making, and one operator of a program as nodes of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <set>
#include <span>
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
  void set(const at::Tensor& tensor, const std::string& name) {
    named_.insert_or_assign(tensor.unsafeGetTensorImpl(), Named{tensor, name});
  }
  bool is_named(const at::Tensor& tensor) const {
    return named_.contains(tensor.unsafeGetTensorImpl());
  }
  bool depends_on_images(const c10::IValue& value) const;
  std::string name_of(const BothTensors& tensor);
  std::string constant(const at::Tensor& tensor);
  // After an operator wrote `tensor`, whose name is `name` from now on. Views of it lose theirs.
  void overwrite(const at::Tensor& tensor, const std::string& name);

  std::vector<std::string> emit(const std::string& op, std::vector<std::string> inputs,
                                OnnxAttributes attributes = {}, size_t outputs = 1);
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

class OnnxCall;
// Operators of torch that are converted alike.
struct OnnxRow {
  std::string_view names;  // torch's, separated by spaces, without namespace and final underscore
  // Adds the nodes of one operator; returns the names of its results, or of the first of them.
  std::vector<std::string> (*convert)(OnnxCall& call);
  const char* onnx_name = "";  // of ONNX's operator, or of its mode
};
// The row for a name such as "relu"; null if there is none.
const OnnxRow* onnx_row(std::string_view name);
// The tables of onnx_layers.cpp and onnx_shape_ops.cpp.
std::span<const OnnxRow> onnx_layers(), onnx_shape_operators();

// One operator: its arguments by the names in torch's schema, and its results.
class OnnxCall {
 public:
  OnnxCall(OnnxGraph& graph, const c10::FunctionSchema& schema, const char* onnx_name,
           std::vector<BothRuns> arguments, std::vector<BothTensors> results)
      : onnx_name_(onnx_name),
        graph_(graph),
        schema_(schema),
        arguments_(std::move(arguments)),
        results_(std::move(results)) {}

  // The operator, for a reason that follows its name.
  [[noreturn]] void unsupported(const std::string& reason) const {
    graph_.unsupported(op() + " " + reason);
  }
  const std::string& op() const { return schema_.name(); }
  const std::string& onnx_name() const { return onnx_name_; }  // of its row

  bool has(std::string_view argument) const;  // and it is not None
  bool flag(std::string_view argument) const { return has(argument) && same(argument).toBool(); }
  int64_t integer(std::string_view argument) const { return same(argument).toInt(); }
  double number(std::string_view argument) const { return same(argument).toScalar().toDouble(); }
  std::string text(std::string_view argument) const {  // "" if there is none
    return has(argument) ? same(argument).toStringRef() : "";
  }
  bool is_text(std::string_view argument) const {
    return has(argument) && same(argument).isString();
  }
  bool is_tensor(std::string_view argument) const {
    return has(argument) && get(argument)[0].isTensor();
  }
  std::vector<int64_t> integers(std::string_view argument) const;
  std::vector<double> numbers(std::string_view argument) const {  // none if there is none
    return has(argument) ? same(argument).toDoubleVector() : std::vector<double>();
  }
  // From the first run, for its sizes and type.
  at::Tensor tensor(std::string_view argument) const { return get(argument)[0].toTensor(); }
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
                   OnnxAttributes attributes = {}) const {
    return graph_.emit(op, std::move(inputs), std::move(attributes))[0];
  }
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

  const std::string onnx_name_;
  OnnxGraph& graph_;
  const c10::FunctionSchema& schema_;
  std::vector<BothRuns> arguments_;
  std::vector<BothTensors> results_;
};

OnnxType onnx_type(at::ScalarType type);  // kFloat also for types that ONNX does not have

}  // namespace saturate
