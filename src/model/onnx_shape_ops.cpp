// torch's operators as ONNX's: those that move, choose, repeat or join elements.
#include <limits>
#include <numeric>

#include "model/onnx_graph.h"

namespace saturate {
namespace {

using Names = std::vector<std::string>;

const char* input_name(const OnnxCall& call) {
  return call.has("self") ? "self" : "input";
}

// The result has the same elements in the same order.
Names reshape(OnnxCall& call) {
  if (call.has("dtype")) call.unsupported("as another type");
  return {call.reshaped(call.operand(input_name(call)))};
}

// The result has the same elements and sizes, and perhaps another type.
Names same(OnnxCall& call) {
  return {call.operand(input_name(call), call.result().scalar_type())};
}

Names dropout(OnnxCall& call) {
  if (call.flag("train")) call.unsupported("in evaluation");
  return same(call);
}

Names permute(OnnxCall& call) {
  const int64_t dimensions = call.result().dim();
  std::vector<int64_t> order = call.integers("dims");
  for (int64_t& axis : order)
    if (axis < 0) axis += dimensions;
  return {call.emit("Transpose", {call.operand("self")}, {{"perm", order}})};
}

Names swap_axes(OnnxCall& call, int64_t first, int64_t second) {
  std::vector<int64_t> order(size_t(call.result().dim()));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[size_t(first)], order[size_t(second)]);
  return {call.emit("Transpose", {call.operand("self")}, {{"perm", order}})};
}

Names transpose(OnnxCall& call) {
  const int64_t dimensions = call.result().dim();
  const bool swaps = call.has("axis0");
  return swap_axes(call, call.axis(swaps ? "axis0" : "dim0", dimensions),
                   call.axis(swaps ? "axis1" : "dim1", dimensions));
}

Names expand(OnnxCall& call) {
  return {call.emit("Expand", {call.operand("self"), call.computed_sizes()})};
}

Names concatenate(OnnxCall& call) {
  return {call.emit("Concat", call.operands("tensors"),
                    {{"axis", call.axis("dim", call.result().dim())}})};
}

Names stack(OnnxCall& call) {
  const int64_t axis = call.axis("dim", call.result().dim());
  Names parts = call.operands("tensors");
  for (std::string& part : parts) part = call.emit("Unsqueeze", {part, call.constant({axis})});
  return {call.emit("Concat", parts, {{"axis", axis}})};
}

// One element of an axis, which disappears.
std::string element(OnnxCall& call, int64_t axis, int64_t index) {
  const std::string taken =
      call.emit("Gather", {call.operand("self"), call.constant({index})}, {{"axis", axis}});
  return call.emit("Squeeze", {taken, call.constant({axis})});
}

Names select(OnnxCall& call) {
  const at::Tensor in = call.tensor("self");
  const int64_t axis = call.axis("dim", in.dim());
  return {element(call, axis, call.axis("index", in.size(axis)))};
}

Names unbind(OnnxCall& call) {
  const int64_t axis = call.axis("dim", call.tensor("self").dim());
  Names parts;
  for (size_t i = 0; i < call.results(); ++i) parts.push_back(element(call, axis, int64_t(i)));
  return parts;
}

Names slice(OnnxCall& call) {
  const at::Tensor in = call.tensor("self");
  if (in.sizes() == call.result().sizes() && call.integer("step") == 1) return same(call);
  const int64_t axis = call.axis("dim", in.dim());
  const int64_t begin = call.has("start") ? call.integer("start") : 0;
  const int64_t end = call.has("end") ? call.integer("end") : std::numeric_limits<int64_t>::max();
  return {call.emit("Slice", {call.operand("self"), call.constant({begin}), call.constant({end}),
                              call.constant({axis}), call.constant({call.integer("step")})})};
}

Names narrow(OnnxCall& call) {
  const at::Tensor in = call.tensor("self");
  const int64_t axis = call.axis("dim", in.dim());
  const int64_t begin = call.axis("start", in.size(axis));
  return {
      call.emit("Slice", {call.operand("self"), call.constant({begin}),
                          call.constant({begin + call.integer("length")}), call.constant({axis})})};
}

// split, split_with_sizes and chunk: by the sizes of the results.
Names split(OnnxCall& call) {
  const int64_t axis = call.axis("dim", call.tensor("self").dim());
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < call.results(); ++i) sizes.push_back(call.result(i).size(axis));
  return call.emit_many("Split", {call.operand("self"), call.constant(sizes)}, {{"axis", axis}},
                        sizes.size());
}

Names repeat(OnnxCall& call) {
  const auto times = call.integers("repeats");
  std::string input = call.operand("self");
  const auto in = size_t(call.tensor("self").dim());
  if (times.size() > in) {
    std::vector<int64_t> axes(times.size() - in);
    std::iota(axes.begin(), axes.end(), 0);
    input = call.emit("Unsqueeze", {input, call.constant(axes)});
  }
  return {call.emit("Tile", {input, call.constant(times)})};
}

Names embedding(OnnxCall& call) {
  return {call.emit("Gather", {call.operand("weight"), call.operand("indices")})};
}

Names index_select(OnnxCall& call) {
  return {call.emit("Gather", {call.operand("self"), call.operand("index")},
                    {{"axis", call.axis("dim", call.tensor("self").dim())}})};
}

Names pixel_shuffle(OnnxCall& call) {
  return {call.emit("DepthToSpace", {call.operand("self")},
                    {{"blocksize", call.integer("upscale_factor")}, {"mode", "CRD"}})};
}

// torch lists the begin and end of the last dimension first; ONNX all begins, then all ends.
Names pad_with(OnnxCall& call, const std::string& mode, const std::string& value = "") {
  const std::vector<int64_t> given = call.integers(call.has("pad") ? "pad" : "padding");
  const auto dimensions = size_t(call.result().dim());
  std::vector<int64_t> pads(2 * dimensions, 0);
  for (size_t i = 0; 2 * i + 1 < given.size(); ++i) {
    pads[dimensions - 1 - i] = given[2 * i];
    pads[2 * dimensions - 1 - i] = given[2 * i + 1];
  }
  Names inputs{call.operand("self"), call.constant(pads)};
  if (!value.empty()) inputs.push_back(value);
  return {call.emit("Pad", inputs, {{"mode", mode}})};
}

Names padded(OnnxCall& call) {
  return pad_with(call, call.onnx_name());
}

Names pad(OnnxCall& call) {
  const std::string mode = call.text("mode");
  if (mode == "reflect") return pad_with(call, mode);
  if (mode == "replicate") return pad_with(call, "edge");
  if (!mode.empty() && mode != "constant") call.unsupported("of mode " + mode);
  return pad_with(call, "constant", call.scalar(call.has("value") ? call.number("value") : 0));
}

constexpr OnnxRow kShapeOperators[] = {
    {"flatten view _unsafe_view reshape view_as reshape_as unflatten squeeze unsqueeze", reshape},
    {"contiguous clone detach alias to _to_copy type_as", same},
    {"dropout feature_dropout alpha_dropout", dropout},
    {"permute", permute},
    {"transpose swapaxes swapdims", transpose},
    {"t", [](OnnxCall& call) { return swap_axes(call, 0, call.result().dim() - 1); }},
    {"expand expand_as broadcast_to", expand},
    {"cat concat", concatenate},
    {"stack", stack},
    {"select", select},
    {"unbind", unbind},
    {"slice", slice},
    {"narrow", narrow},
    {"split split_with_sizes chunk", split},
    {"repeat", repeat},
    {"index_select", index_select},
    {"embedding", embedding},
    {"pixel_shuffle", pixel_shuffle},
    {"pad constant_pad_nd", pad},
    {"reflection_pad2d", padded, "reflect"},
    {"replication_pad2d", padded, "edge"},
};

}  // namespace

std::span<const OnnxRow> onnx_shape_operators() {
  return kShapeOperators;
}

}  // namespace saturate
