#include "model/onnx_file.h"

#include <protozero/pbf_builder.hpp>

#include "saturate/data/error.h"

namespace saturate {
namespace {

using Tag = protozero::pbf_tag_type;
enum class ModelField : Tag {
  kIrVersion = 1,
  kProducerName = 2,
  kProducerVersion = 3,
  kGraph = 7,
  kOperatorSets = 8,
  kMetadata = 14
};
enum class OperatorSet : Tag { kVersion = 2 };
enum class Entry : Tag { kKey = 1, kValue = 2 };
enum class GraphField : Tag { kNodes = 1, kName = 2, kWeights = 5, kInputs = 11, kOutputs = 12 };
enum class NodeField : Tag { kInputs = 1, kOutputs = 2, kName = 3, kOp = 4, kAttributes = 5 };
enum class AttributeField : Tag {
  kName = 1,
  kFloat = 2,
  kInt = 3,
  kText = 4,
  kInts = 8,
  kKind = 20
};
enum class TensorProtoField : Tag { kSizes = 1, kType = 2, kName = 8, kBytes = 9 };
enum class ValueField : Tag { kName = 1, kType = 2 };
enum class TypeField : Tag { kTensor = 1 };
enum class TensorTypeField : Tag { kElement = 1, kShape = 2 };
enum class ShapeField : Tag { kSizes = 1 };
enum class SizeField : Tag { kValue = 1, kName = 2 };

// AttributeProto.AttributeType, in the order of OnnxAttribute's alternatives.
constexpr int kAttributeKinds[] = {2, 1, 3, 7};
constexpr int64_t kIrVersion = 8;  // of the release that brought the operator set above
constexpr size_t kMostBytes = size_t{1} << 31;

template <class Field>
using Message = protozero::pbf_builder<Field>;

struct AttributeWriter {
  Message<AttributeField>& out;
  void operator()(int64_t value) const { out.add_int64(AttributeField::kInt, value); }
  void operator()(float value) const { out.add_float(AttributeField::kFloat, value); }
  void operator()(const std::string& value) const { out.add_bytes(AttributeField::kText, value); }
  void operator()(const std::vector<int64_t>& values) const {
    for (const int64_t value : values) out.add_int64(AttributeField::kInts, value);
  }
};

void add_node(Message<GraphField>& graph, const OnnxNode& node) {
  Message<NodeField> out(graph, GraphField::kNodes);
  for (const std::string& name : node.inputs) out.add_string(NodeField::kInputs, name);
  for (const std::string& name : node.outputs) out.add_string(NodeField::kOutputs, name);
  out.add_string(NodeField::kName, node.outputs.front());
  out.add_string(NodeField::kOp, node.op);
  for (const auto& [name, value] : node.attributes) {
    Message<AttributeField> attribute(out, NodeField::kAttributes);
    attribute.add_string(AttributeField::kName, name);
    std::visit(AttributeWriter{attribute}, value);
    attribute.add_enum(AttributeField::kKind, kAttributeKinds[value.index()]);
  }
}

void add_weight(Message<GraphField>& graph, const OnnxTensor& weight) {
  Message<TensorProtoField> out(graph, GraphField::kWeights);
  for (const int64_t size : weight.sizes) out.add_int64(TensorProtoField::kSizes, size);
  out.add_int32(TensorProtoField::kType, int32_t(weight.type));
  out.add_string(TensorProtoField::kName, weight.name);
  out.add_bytes(TensorProtoField::kBytes, reinterpret_cast<const char*>(weight.bytes.data()),
                weight.bytes.size());
}

void add_value(Message<GraphField>& graph, GraphField field, const OnnxValue& value) {
  Message<ValueField> out(graph, field);
  out.add_string(ValueField::kName, value.name);
  Message<TypeField> type(out, ValueField::kType);
  Message<TensorTypeField> tensor(type, TypeField::kTensor);
  tensor.add_int32(TensorTypeField::kElement, int32_t(value.type));
  Message<ShapeField> shape(tensor, TensorTypeField::kShape);
  for (const int64_t size : value.sizes) {
    Message<SizeField> out_size(shape, ShapeField::kSizes);
    if (size == kBatchSize)
      out_size.add_string(SizeField::kName, "batch");
    else
      out_size.add_int64(SizeField::kValue, size);
  }
}

}  // namespace

std::string to_onnx(const OnnxModel& model, const std::string& path) {
  size_t bytes = size_t{1} << 20;  // more than the graph itself takes
  for (const OnnxTensor& weight : model.weights) bytes += weight.bytes.size() + 200;
  if (bytes > kMostBytes)
    fail(ErrorKind::kRun, "the model's weights take more than 2 GiB, the limit of an ONNX file",
         path, "Export it as safetensors or torchscript");
  std::string text;
  text.reserve(bytes);
  Message<ModelField> out(text);
  out.add_int64(ModelField::kIrVersion, kIrVersion);
  out.add_string(ModelField::kProducerName, "saturate");
  out.add_string(ModelField::kProducerVersion, SATURATE_VERSION);
  {
    Message<GraphField> graph(out, ModelField::kGraph);
    for (const OnnxNode& node : model.nodes) add_node(graph, node);
    graph.add_string(GraphField::kName, "model");
    for (const OnnxTensor& weight : model.weights) add_weight(graph, weight);
    add_value(graph, GraphField::kInputs, model.input);
    add_value(graph, GraphField::kOutputs, model.output);
  }
  Message<OperatorSet>(out, ModelField::kOperatorSets)
      .add_int64(OperatorSet::kVersion, kOnnxOperatorSet);
  for (const auto& [key, value] : model.metadata) {
    Message<Entry> entry(out, ModelField::kMetadata);
    entry.add_string(Entry::kKey, key);
    entry.add_string(Entry::kValue, value);
  }
  return text;
}

}  // namespace saturate
