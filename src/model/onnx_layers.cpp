// torch's operators as ONNX's: layers.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/onnx_graph.h"

namespace saturate {
namespace {

using Names = std::vector<std::string>;

// One value for each spatial dimension: a single one counts for all.
std::vector<int64_t> spatial(std::vector<int64_t> values, size_t dimensions, int64_t otherwise) {
  if (values.empty()) values.push_back(otherwise);
  if (values.size() == 1) values.resize(dimensions, values[0]);
  return values;
}

std::vector<int64_t> twice(std::vector<int64_t> begins) {
  begins.insert(begins.end(), begins.begin(), begins.end());
  return begins;
}

// Padding at the begin and the end of each dimension, for padding="same".
std::vector<int64_t> same_padding(const std::vector<int64_t>& kernel,
                                  const std::vector<int64_t>& dilation) {
  std::vector<int64_t> begins, ends;
  for (size_t i = 0; i < kernel.size(); ++i) {
    const int64_t all = dilation[i] * (kernel[i] - 1);
    begins.push_back(all / 2);
    ends.push_back(all - all / 2);
  }
  begins.insert(begins.end(), ends.begin(), ends.end());
  return begins;
}

Names convolution(OnnxCall& call) {
  const at::Tensor weight = call.tensor("weight");
  if (call.tensor("input").dim() != weight.dim()) call.unsupported("without a batch dimension");
  const size_t dimensions = size_t(weight.dim()) - 2;
  const std::vector<int64_t> kernel = weight.sizes().slice(2).vec();
  const auto stride = spatial(call.integers("stride"), dimensions, 1);
  const auto dilation = spatial(call.integers("dilation"), dimensions, 1);
  const bool is_mode = call.is_text("padding");
  const std::string mode = is_mode ? call.text("padding") : "";
  OnnxAttributes attributes{{"kernel_shape", kernel},
                            {"strides", stride},
                            {"dilations", dilation},
                            {"group", call.integer("groups")}};
  attributes["pads"] =
      mode == "same" ? same_padding(kernel, dilation)
                     : twice(spatial(is_mode ? std::vector<int64_t>() : call.integers("padding"),
                                     dimensions, 0));
  Names inputs{call.operand("input"), call.operand("weight")};
  if (call.has("bias")) inputs.push_back(call.operand("bias"));
  const bool transposed = call.has("transposed")
                              ? call.flag("transposed")
                              : call.op().find("conv_transpose") != std::string::npos;
  if (transposed)
    attributes["output_padding"] = spatial(call.integers("output_padding"), dimensions, 0);
  return {call.emit(transposed ? "ConvTranspose" : "Conv", inputs, attributes)};
}

std::string given_or(OnnxCall& call, const char* argument, double value, int64_t size) {
  if (call.has(argument)) return call.operand(argument);
  return call.constant(at::full({size}, value, call.result().options()));
}

Names batch_norm(OnnxCall& call) {
  if (call.flag("training") || !call.has("running_mean"))
    call.unsupported("with the statistics of a batch");
  const int64_t channels = call.tensor("running_mean").size(0);
  return {call.emit("BatchNormalization",
                    {call.operand("input"), given_or(call, "weight", 1, channels),
                     given_or(call, "bias", 0, channels), call.operand("running_mean"),
                     call.operand("running_var")},
                    {{"epsilon", float(call.number("eps"))}})};
}

Names layer_norm(OnnxCall& call) {
  const auto shape = call.integers("normalized_shape");
  Names inputs{call.operand("input"),
               call.has("weight") ? call.operand("weight")
                                  : call.constant(at::ones(shape, call.result().options()))};
  if (call.has("bias")) inputs.push_back(call.operand("bias"));
  return {call.emit("LayerNormalization", inputs,
                    {{"axis", -int64_t(shape.size())}, {"epsilon", float(call.number("eps"))}})};
}

// ONNX has it from operator set 21 on: each group is an instance of one channel.
Names group_norm(OnnxCall& call) {
  const int64_t groups = call.integer("num_groups"), channels = call.result().size(1);
  const std::string grouped =
      call.emit("Reshape", {call.operand("input"), call.constant({0, groups, -1})});
  const auto options = call.result().options();
  const std::string normal = call.emit("InstanceNormalization",
                                       {grouped, call.constant(at::ones({groups}, options)),
                                        call.constant(at::zeros({groups}, options))},
                                       {{"epsilon", float(call.number("eps"))}});
  std::vector<int64_t> by_channel(size_t(call.result().dim()) - 1, 1);
  by_channel[0] = channels;
  std::string result = call.reshaped(normal);
  for (const auto& [argument, op] : {std::pair("weight", "Mul"), std::pair("bias", "Add")})
    if (call.has(argument))
      result = call.emit(
          op, {result, call.emit("Reshape", {call.operand(argument), call.constant(by_channel)})});
  return {result};
}

// With ceil_mode the last windows may go beyond the input: padding at the end for them.
std::vector<int64_t> pool_padding(OnnxCall& call, const std::vector<int64_t>& kernel,
                                  const std::vector<int64_t>& stride,
                                  const std::vector<int64_t>& dilation) {
  const auto begins = spatial(call.integers("padding"), kernel.size(), 0);
  auto pads = twice(begins);
  if (!call.flag("ceil_mode")) return pads;
  for (size_t i = 0; i < kernel.size(); ++i) {
    const int64_t in = call.tensor("self").size(int64_t(i) + 2),
                  out = call.result().size(int64_t(i) + 2);
    const int64_t covered = (out - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1;
    pads[kernel.size() + i] = std::max<int64_t>(0, covered - in - begins[i]);
  }
  return pads;
}

template <size_t dimensions>
Names pool(OnnxCall& call) {
  const bool average = call.onnx_name() == "AveragePool";
  const auto kernel = spatial(call.integers("kernel_size"), dimensions, 1);
  const auto given = call.integers("stride");
  const auto stride = given.empty() ? kernel : spatial(given, dimensions, 1);
  const auto dilation = average ? std::vector<int64_t>(dimensions, 1)
                                : spatial(call.integers("dilation"), dimensions, 1);
  const auto pads = pool_padding(call, kernel, stride, dilation);
  OnnxAttributes attributes{{"kernel_shape", kernel}, {"strides", stride}, {"pads", pads}};
  if (!average) {
    attributes["dilations"] = dilation;
    return {call.emit(call.onnx_name(), {call.operand("self")}, attributes)};
  }
  if (call.has("divisor_override")) call.unsupported("with divisor_override");
  if (pads != twice(spatial(call.integers("padding"), dimensions, 0)))
    call.unsupported("with ceil_mode and windows beyond the image");
  attributes["count_include_pad"] = int64_t(call.flag("count_include_pad"));
  return {call.emit(call.onnx_name(), {call.operand("self")}, attributes)};
}

Names adaptive_pool(OnnxCall& call) {
  const at::Tensor in = call.tensor("self");
  const auto sizes = call.result().sizes().slice(2);
  if (std::ranges::all_of(sizes, [](int64_t size) { return size == 1; }))
    return {call.emit("Global" + call.onnx_name(), {call.operand("self")})};
  std::vector<int64_t> kernel;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (in.size(int64_t(i) + 2) % sizes[i] != 0)
      call.unsupported("to a size that does not divide that of its input");
    kernel.push_back(in.size(int64_t(i) + 2) / sizes[i]);
  }
  return {call.emit(call.onnx_name(), {call.operand("self")},
                    {{"kernel_shape", kernel}, {"strides", kernel}})};
}

// A matrix [L, S] of 0 and, above the diagonal, -infinity; or the argument.
std::string attention_mask(OnnxCall& call) {
  const auto options = call.result().options();
  const double hidden = -std::numeric_limits<double>::infinity();
  if (call.flag("is_causal")) {
    const at::Tensor query = call.tensor("query"), key = call.tensor("key");
    return call.constant(at::full({query.size(-2), key.size(-2)}, hidden, options).triu(1));
  }
  if (call.tensor("attn_mask").scalar_type() != at::kBool) return call.operand("attn_mask");
  return call.emit("Where", {call.operand("attn_mask"), call.scalar(0), call.scalar(hidden)});
}

Names attention(OnnxCall& call) {
  if (call.number("dropout_p") != 0 || (call.has("enable_gqa") && call.flag("enable_gqa")))
    call.unsupported("with dropout or grouped queries");
  const at::Tensor query = call.tensor("query");
  std::vector<int64_t> turned;
  for (int64_t i = 0; i < query.dim(); ++i) turned.push_back(i);
  std::swap(turned[turned.size() - 1], turned[turned.size() - 2]);
  const double scale =
      call.has("scale") ? call.number("scale") : 1 / std::sqrt(double(query.size(-1)));
  const std::string scaled = call.emit("Mul", {call.operand("query"), call.scalar(scale)});
  std::string scores = call.emit(
      "MatMul", {scaled, call.emit("Transpose", {call.operand("key")}, {{"perm", turned}})});
  if (call.flag("is_causal") || call.has("attn_mask"))
    scores = call.emit("Add", {scores, attention_mask(call)});
  const std::string weights = call.emit("Softmax", {scores}, {{"axis", int64_t{-1}}});
  return {call.emit("MatMul", {weights, call.operand("value")})};
}

Names resize(OnnxCall& call) {
  const char* const input = call.has("self") ? "self" : "input";
  std::vector<double> scales = call.numbers("scale_factors");
  for (const char* scale : {"scales", "scales_d", "scales_h", "scales_w"})
    if (call.has(scale)) scales.push_back(call.number(scale));
  for (size_t i = 0; i < scales.size(); ++i)
    if (scales[i] * double(call.tensor(input).size(int64_t(i) + 2)) !=
        double(call.result().size(int64_t(i) + 2)))
      call.unsupported("by a factor that leaves a part of a pixel");
  const bool nearest = call.onnx_name() == "nearest";
  const char* const middle = nearest                      ? "asymmetric"
                             : call.flag("align_corners") ? "align_corners"
                                                          : "half_pixel";
  OnnxAttributes attributes{{"mode", call.onnx_name()}, {"coordinate_transformation_mode", middle}};
  if (nearest) attributes["nearest_mode"] = "floor";
  if (call.onnx_name() == "cubic") attributes["cubic_coeff_a"] = -0.75f;
  return {call.emit("Resize", {call.operand(input), "", "", call.computed_sizes()}, attributes)};
}

constexpr OnnxRow kLayers[] = {
    {"_convolution _convolution_mode convolution conv1d conv2d conv3d", convolution},
    {"conv_transpose1d conv_transpose2d conv_transpose3d", convolution},
    {"batch_norm", batch_norm},
    {"layer_norm", layer_norm},
    {"group_norm", group_norm},
    {"max_pool1d", pool<1>, "MaxPool"},
    {"max_pool2d max_pool2d_with_indices", pool<2>, "MaxPool"},
    {"max_pool3d max_pool3d_with_indices", pool<3>, "MaxPool"},
    {"avg_pool1d", pool<1>, "AveragePool"},
    {"avg_pool2d", pool<2>, "AveragePool"},
    {"avg_pool3d", pool<3>, "AveragePool"},
    {"adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", adaptive_pool, "AveragePool"},
    {"adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", adaptive_pool, "MaxPool"},
    {"scaled_dot_product_attention", attention},
    {"upsample_nearest2d upsample_nearest3d", resize, "nearest"},
    {"upsample_bilinear2d upsample_trilinear3d", resize, "linear"},
    {"upsample_bicubic2d", resize, "cubic"},
};

}  // namespace

std::span<const OnnxRow> onnx_layers() {
  return kLayers;
}

}  // namespace saturate
