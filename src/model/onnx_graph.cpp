#include "model/onnx_graph.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "saturate/data/error.h"

namespace saturate {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Whether both are the same elements in the same order.
bool is_view_of(const at::Tensor& a, const at::Tensor& b) {
  return storage_of(a) == storage_of(b) && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset();
}

std::span<const std::byte> raw_bytes(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

OnnxType onnx_type(at::ScalarType type) {
  constexpr std::pair<at::ScalarType, OnnxType> kTypes[] = {
      {at::kFloat, OnnxType::kFloat}, {at::kDouble, OnnxType::kDouble},
      {at::kHalf, OnnxType::kHalf},   {at::kBFloat16, OnnxType::kBfloat16},
      {at::kLong, OnnxType::kInt64},  {at::kInt, OnnxType::kInt32},
      {at::kShort, OnnxType::kInt16}, {at::kChar, OnnxType::kInt8},
      {at::kByte, OnnxType::kUint8},  {at::kBool, OnnxType::kBool}};
  const auto* const found =
      std::ranges::find(kTypes, type, &std::pair<at::ScalarType, OnnxType>::first);
  return found == std::end(kTypes) ? OnnxType::kFloat : found->second;
}

void OnnxGraph::fail_export(const std::string& what, const std::string& remedy) const {
  fail(ErrorKind::kUsage, "the model cannot be exported to ONNX: " + what, label_, remedy);
}

void OnnxGraph::unsupported(const std::string& what) const {
  fail_export("it uses " + what + ", which is not supported",
              "Use --format torchscript, or replace the operator in the model");
}

void OnnxGraph::set_input(const BothTensors& images, const std::string& name) {
  model_.input = {name, onnx_type(images[0].scalar_type()), sizes_of(images)};
  set(images[0], name);
}

void OnnxGraph::set(const at::Tensor& tensor, const std::string& name) {
  named_.insert_or_assign(tensor.unsafeGetTensorImpl(), Named{tensor, name});
}

bool OnnxGraph::is_named(const at::Tensor& tensor) const {
  return named_.contains(tensor.unsafeGetTensorImpl());
}

bool OnnxGraph::depends_on_images(const c10::IValue& value) const {
  const auto any = [this](const auto& list) {
    return std::ranges::any_of(list,
                               [this](const c10::IValue& each) { return depends_on_images(each); });
  };
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && (is_named(tensor) || overwritten_.contains(storage_of(tensor)));
  }
  if (value.isList()) return any(value.toListRef());
  return value.isTuple() && any(value.toTupleRef().elements());
}

std::string OnnxGraph::name_of(const BothTensors& tensor) {
  const auto found = named_.find(tensor[0].unsafeGetTensorImpl());
  if (found != named_.end() && !found->second.name.empty()) return found->second.name;
  if (found != named_.end()) unsupported("a second result of an operator");
  if (overwritten_.contains(storage_of(tensor[0])))
    unsupported("a view of a tensor that was written in place");
  if (!tensor[0].is_same(tensor[1]) &&
      (tensor[0].sizes() != tensor[1].sizes() || !at::equal(tensor[0], tensor[1])))
    unsupported("a tensor that is computed from the number of images");
  return constant(tensor[0]);
}

std::string OnnxGraph::constant(const at::Tensor& tensor) {
  const at::TensorImpl* const key = tensor.unsafeGetTensorImpl();
  if (const auto found = constants_.find(key); found != constants_.end()) return found->second.name;
  std::string name = "/constant_" + std::to_string(constants_.size());
  for (const auto& [weight_name, weight] : weights_)
    if (tensor.is_same(weight)) {
      name = weight_name;
    } else if (tensor.dim() == 2 && is_view_of(tensor.t(), weight)) {
      // A linear layer's: the file has the weight itself.
      const std::vector<int64_t> swapped{1, 0};
      return emit("Transpose", {constant(weight)}, {{"perm", swapped}}, 1)[0];
    }
  const at::Tensor values = tensor.contiguous();
  constants_[key] = {tensor, name};
  constants_[values.unsafeGetTensorImpl()] = {values, name};
  model_.weights.push_back(
      {name, onnx_type(values.scalar_type()), values.sizes().vec(), raw_bytes(values)});
  return name;
}

void OnnxGraph::overwrite(const at::Tensor& tensor, const std::string& name) {
  const c10::StorageImpl* const storage = storage_of(tensor);
  overwritten_.insert(storage);
  std::erase_if(named_, [&](const auto& entry) {
    const at::Tensor& other = entry.second.tensor;
    return storage_of(other) == storage && !is_view_of(other, tensor);
  });
  for (auto& [key, named] : named_)
    if (storage_of(named.tensor) == storage) named.name = name;
  set(tensor, name);
}

std::vector<std::string> OnnxGraph::emit(const std::string& op, std::vector<std::string> inputs,
                                         OnnxAttributes attributes, size_t outputs) {
  OnnxNode node{op, std::move(inputs), {}, std::move(attributes)};
  for (size_t i = 0; i < outputs; ++i)
    node.outputs.push_back("/" + op + "_" + std::to_string(model_.nodes.size()) +
                           (outputs > 1 ? "_" + std::to_string(i) : ""));
  model_.nodes.push_back(std::move(node));
  return model_.nodes.back().outputs;
}

int64_t OnnxGraph::images_factor(int64_t first, int64_t second) const {
  if (first == second) return 0;
  if (first * kRunImages[1] != second * kRunImages[0])
    unsupported("a size that is not a multiple of the number of images");
  return first / kRunImages[0];
}

std::vector<int64_t> OnnxGraph::sizes_of(const BothTensors& tensor) const {
  std::vector<int64_t> sizes = tensor[0].sizes().vec();
  for (size_t i = 0; i < sizes.size(); ++i)
    if (images_factor(sizes[i], tensor[1].size(int64_t(i))) != 0) sizes[i] = kBatchSize;
  return sizes;
}

std::string OnnxGraph::computed_sizes(const BothTensors& tensor) {
  const auto number = [this](int64_t value) { return constant(at::tensor({value}, at::kLong)); };
  if (sizes_of(tensor) == tensor[0].sizes())
    return constant(at::tensor(tensor[0].sizes(), at::kLong));
  if (number_of_images_.empty())
    number_of_images_ =
        emit("Shape", {model_.input.name}, {{"start", int64_t{0}}, {"end", int64_t{1}}}, 1)[0];
  std::vector<std::string> sizes;
  for (int64_t i = 0; i < tensor[0].dim(); ++i) {
    const int64_t factor = images_factor(tensor[0].size(i), tensor[1].size(i));
    sizes.push_back(factor == 0   ? number(tensor[0].size(i))
                    : factor == 1 ? number_of_images_
                                  : emit("Mul", {number_of_images_, number(factor)}, {}, 1)[0]);
  }
  return emit("Concat", sizes, {{"axis", int64_t{0}}}, 1)[0];
}

OnnxModel OnnxGraph::finish(const BothTensors& logits) {
  const std::string name = name_of(logits);
  OnnxModel model = std::move(model_);
  model.output = {"logits", onnx_type(logits[0].scalar_type()), sizes_of(logits)};
  model.nodes.push_back({"Identity", {name}, {"logits"}, {}});
  // Nodes that only computed sizes needed are dropped.
  std::set<std::string> used{"logits"};
  std::vector<OnnxNode> kept;
  for (auto node = model.nodes.rbegin(); node != model.nodes.rend(); ++node) {
    if (std::ranges::none_of(node->outputs, [&](const auto& made) { return used.contains(made); }))
      continue;
    used.insert(node->inputs.begin(), node->inputs.end());
    kept.push_back(std::move(*node));
  }
  model.nodes.assign(kept.rbegin(), kept.rend());
  std::erase_if(model.weights,
                [&](const OnnxTensor& weight) { return !used.contains(weight.name); });
  return model;
}

void OnnxCall::unsupported(const std::string& reason) const {
  graph_.unsupported(op() + " " + reason);
}

const BothRuns* OnnxCall::find(std::string_view argument) const {
  const auto& named = schema_.arguments();
  for (size_t i = 0; i < arguments_.size(); ++i)
    if (named[i].name() == argument) return &arguments_[i];
  return nullptr;
}

const BothRuns& OnnxCall::get(std::string_view argument) const {
  const BothRuns* const found = find(argument);
  if (!found) unsupported("without its argument " + std::string(argument));
  return *found;
}

const c10::IValue& OnnxCall::same(std::string_view argument) const {
  const BothRuns& value = get(argument);
  if (!value[0].isTensor() && value[0] != value[1])
    unsupported("with an argument that depends on the number of images");
  return value[0];
}

bool OnnxCall::has(std::string_view argument) const {
  const BothRuns* const found = find(argument);
  if (!found || (*found)[0].isNone()) return false;
  return !(*found)[0].isTensor() || (*found)[0].toTensor().defined();
}

bool OnnxCall::flag(std::string_view argument) const {
  return has(argument) && same(argument).toBool();
}

int64_t OnnxCall::integer(std::string_view argument) const {
  return same(argument).toInt();
}

double OnnxCall::number(std::string_view argument) const {
  return same(argument).toScalar().toDouble();
}

std::string OnnxCall::text(std::string_view argument) const {
  return has(argument) ? same(argument).toStringRef() : "";
}

std::vector<int64_t> OnnxCall::integers(std::string_view argument) const {
  if (!has(argument)) return {};
  const c10::IValue& value = same(argument);
  return value.isInt() ? std::vector{value.toInt()} : value.toIntVector();
}

std::vector<double> OnnxCall::numbers(std::string_view argument) const {
  return has(argument) ? same(argument).toDoubleVector() : std::vector<double>();
}

at::Tensor OnnxCall::tensor(std::string_view argument) const {
  return get(argument)[0].toTensor();
}

std::vector<at::Tensor> OnnxCall::tensors(std::string_view argument) const {
  return get(argument)[0].toTensorVector();
}

int64_t OnnxCall::axis(std::string_view argument, int64_t dimensions) const {
  const int64_t given = integer(argument);
  return given < 0 ? given + dimensions : given;
}

std::string OnnxCall::operand(std::string_view argument) const {
  const BothRuns& value = get(argument);
  return graph_.name_of({value[0].toTensor(), value[1].toTensor()});
}

std::string OnnxCall::operand(std::string_view argument, at::ScalarType type) const {
  const BothRuns& value = get(argument);
  if (!value[0].isTensor()) return constant(at::scalar_tensor(same(argument).toScalar(), type));
  if (value[0].toTensor().scalar_type() == type) return operand(argument);
  if (!graph_.depends_on_images(value[0]))
    return graph_.name_of({value[0].toTensor().to(type), value[1].toTensor().to(type)});
  return emit("Cast", {operand(argument)}, {{"to", int64_t(onnx_type(type))}});
}

std::vector<std::string> OnnxCall::operands(std::string_view argument) const {
  const BothRuns& value = get(argument);
  const auto first = value[0].toTensorVector(), second = value[1].toTensorVector();
  std::vector<std::string> names;
  for (size_t i = 0; i < first.size(); ++i)
    names.push_back(graph_.name_of({first[i], second.at(i)}));
  return names;
}

std::string OnnxCall::constant(const std::vector<int64_t>& values) const {
  return graph_.constant(at::tensor(values, at::kLong));
}

std::string OnnxCall::scalar(double value) const {
  return graph_.constant(at::scalar_tensor(value, result().scalar_type()));
}

std::string OnnxCall::emit(const std::string& op, std::vector<std::string> inputs,
                           OnnxAttributes attributes) const {
  return graph_.emit(op, std::move(inputs), std::move(attributes), 1)[0];
}

std::string OnnxCall::reshaped(const std::string& name, size_t i) const {
  const std::vector<int64_t> sizes = graph_.sizes_of(results_.at(i));  // -1: what is left
  if (std::ranges::count(sizes, kBatchSize) > 1)
    return emit("Reshape", {name, graph_.computed_sizes(results_[i])});
  return emit("Reshape", {name, constant(sizes)});
}

}  // namespace saturate
