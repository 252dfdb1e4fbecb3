// torch's operators as ONNX's, operator set 17: arithmetic. onnx_layers.cpp has layers,
// onnx_shape_ops.cpp what moves or joins elements.
#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "model/onnx_graph.h"

namespace saturate {
namespace {

using Names = std::vector<std::string>;

Names linear(OnnxCall& call) {
  const std::string input = call.operand("input"), weight = call.operand("weight");
  if (call.tensor("input").dim() == 2) {
    Names inputs{input, weight};
    if (call.has("bias")) inputs.push_back(call.operand("bias"));
    return {call.emit("Gemm", inputs, {{"transB", int64_t{1}}})};
  }
  const std::string turned =
      call.emit("Transpose", {weight}, {{"perm", std::vector<int64_t>{1, 0}}});
  const std::string product = call.emit("MatMul", {input, turned});
  if (!call.has("bias")) return {product};
  return {call.emit("Add", {product, call.operand("bias")})};
}

Names matmul(OnnxCall& call) {
  return {call.emit("MatMul",
                    {call.operand("self"), call.operand(call.has("other") ? "other" : "mat2")})};
}

Names addmm(OnnxCall& call) {
  return {
      call.emit("Gemm", {call.operand("mat1"), call.operand("mat2"), call.operand("self")},
                {{"alpha", float(call.number("alpha"))}, {"beta", float(call.number("beta"))}})};
}

// Both operands in the result's type.
Names binary(OnnxCall& call) {
  const at::ScalarType type = call.result().scalar_type();
  std::string first = call.operand("self", type), second = call.operand("other", type);
  if (call.op() == "aten::rsub") std::swap(first, second);
  if (call.has("alpha") && call.number("alpha") != 1)
    second = call.emit("Mul", {second, call.scalar(call.number("alpha"))});
  return {call.emit(call.onnx_name(), {first, second})};
}

Names divide(OnnxCall& call) {
  const std::string quotient = binary(call)[0], mode = call.text("rounding_mode");
  if (mode.empty()) return {quotient};
  if (mode != "floor" || !call.result().is_floating_point())
    call.unsupported("with rounding_mode=" + mode);
  return {call.emit("Floor", {quotient})};
}

Names power(OnnxCall& call) {
  const at::ScalarType type = call.result().scalar_type();
  return {call.emit("Pow", {call.operand("self", type), call.operand("exponent", type)})};
}

Names clip(OnnxCall& call, const char* least, const char* most) {
  const at::ScalarType type = call.result().scalar_type();
  const auto is_tensor = [&](const char* bound) { return bound && call.is_tensor(bound); };
  if (is_tensor(least) || is_tensor(most)) {  // which Clip wants to be a number
    std::string x = call.operand("self", type);
    if (call.has(least)) x = call.emit("Max", {x, call.operand(least, type)});
    if (call.has(most)) x = call.emit("Min", {x, call.operand(most, type)});
    return {x};
  }
  Names inputs{call.operand("self", type)};
  for (const char* bound : {least, most})
    inputs.push_back(bound && call.has(bound) ? call.operand(bound, type) : "");
  return {call.emit("Clip", inputs)};
}

Names unary(OnnxCall& call) {
  return {call.emit(call.onnx_name(), {call.operand("self", call.result().scalar_type())})};
}

Names round(OnnxCall& call) {
  if (call.has("decimals") && call.integer("decimals") != 0) call.unsupported("with decimals");
  return unary(call);
}

Names silu(OnnxCall& call) {
  const std::string x = call.operand("self");
  return {call.emit("Mul", {x, call.emit("Sigmoid", {x})})};
}

Names mish(OnnxCall& call) {
  const std::string x = call.operand("self");
  return {call.emit("Mul", {x, call.emit("Tanh", {call.emit("Softplus", {x})})})};
}

// x * (1 + erf(x / sqrt(2))) / 2, or torch's approximation by tanh.
Names gelu(OnnxCall& call) {
  const std::string x = call.operand("self");
  std::string inner;
  if (call.text("approximate") == "tanh") {
    const std::string cube = call.emit("Mul", {x, call.emit("Mul", {x, x})});
    const std::string sum = call.emit("Add", {x, call.emit("Mul", {cube, call.scalar(0.044715)})});
    inner = call.emit(
        "Tanh",
        {call.emit("Mul", {sum, call.scalar(std::numbers::sqrt2 * std::numbers::inv_sqrtpi)})});
  } else {
    inner = call.emit("Erf", {call.emit("Div", {x, call.scalar(std::numbers::sqrt2)})});
  }
  const std::string factor = call.emit("Add", {inner, call.scalar(1)});
  return {call.emit("Mul", {call.emit("Mul", {x, factor}), call.scalar(0.5)})};
}

Names elu(OnnxCall& call) {
  if (call.number("scale") != 1 || call.number("input_scale") != 1)
    call.unsupported("with a scale");
  return {call.emit("Elu", {call.operand("self")}, {{"alpha", float(call.number("alpha"))}})};
}

Names softplus(OnnxCall& call) {
  if (call.number("beta") != 1) call.unsupported("with beta");
  if (call.number("threshold") != 20) call.unsupported("with a threshold");
  return {call.emit("Softplus", {call.operand("self")})};
}

// One slope, or one for each channel.
Names prelu(OnnxCall& call) {
  const at::Tensor slope = call.tensor("weight");
  std::vector<int64_t> by_channel(size_t(std::max<int64_t>(1, call.result().dim() - 1)), 1);
  by_channel[0] = slope.numel();
  return {call.emit("PRelu",
                    {call.operand("self"),
                     call.emit("Reshape", {call.operand("weight"), call.constant(by_channel)})})};
}

Names softmax(OnnxCall& call) {
  return {call.emit(call.onnx_name(), {call.operand("self", call.result().scalar_type())},
                    {{"axis", call.integer("dim")}})};
}

Names reduce(OnnxCall& call) {
  OnnxAttributes attributes{{"keepdims", int64_t(call.has("keepdim") && call.flag("keepdim"))}};
  Names inputs{call.operand("self", call.result().scalar_type())};
  const auto axes = call.integers("dim");
  if (call.onnx_name() == "ReduceSum")  // operator set 13 made its axes an input
    inputs.push_back(axes.empty() ? "" : call.constant(axes));
  else if (!axes.empty())
    attributes["axes"] = axes;
  return {call.emit(call.onnx_name(), inputs, attributes)};
}

Names norm(OnnxCall& call) {
  if (call.number(call.has("ord") ? "ord" : "p") != 2) call.unsupported("of another order than 2");
  return reduce(call);
}

constexpr OnnxRow kOperators[] = {
    {"relu", unary, "Relu"},
    {"sigmoid", unary, "Sigmoid"},
    {"tanh", unary, "Tanh"},
    {"exp", unary, "Exp"},
    {"log", unary, "Log"},
    {"sqrt", unary, "Sqrt"},
    {"abs", unary, "Abs"},
    {"neg", unary, "Neg"},
    {"erf", unary, "Erf"},
    {"floor", unary, "Floor"},
    {"ceil", unary, "Ceil"},
    {"round", round, "Round"},
    {"sin", unary, "Sin"},
    {"cos", unary, "Cos"},
    {"hardswish", unary, "HardSwish"},
    {"selu", unary, "Selu"},
    {"sign", unary, "Sign"},
    {"softsign", unary, "Softsign"},
    {"reciprocal", unary, "Reciprocal"},
    {"linear", linear},
    {"addmm", addmm},
    {"matmul mm bmm", matmul},
    {"add", binary, "Add"},
    {"sub rsub", binary, "Sub"},
    {"mul", binary, "Mul"},
    {"maximum", binary, "Max"},
    {"minimum", binary, "Min"},
    {"div", divide, "Div"},
    {"pow", power},
    {"square",
     [](OnnxCall& call) -> Names {
       return {call.emit("Mul", {call.operand("self"), call.operand("self")})};
     }},
    {"rsqrt",
     [](OnnxCall& call) -> Names {
       return {call.emit("Reciprocal", {call.emit("Sqrt", {call.operand("self")})})};
     }},
    {"clamp", [](OnnxCall& call) { return clip(call, "min", "max"); }},
    {"clamp_min", [](OnnxCall& call) { return clip(call, "min", nullptr); }},
    {"clamp_max", [](OnnxCall& call) { return clip(call, nullptr, "max"); }},
    {"hardtanh", [](OnnxCall& call) { return clip(call, "min_val", "max_val"); }},
    {"relu6",
     [](OnnxCall& call) -> Names {
       return {call.emit("Clip", {call.operand("self"), call.scalar(0), call.scalar(6)})};
     }},
    {"hardsigmoid",
     [](OnnxCall& call) -> Names {
       return {call.emit("HardSigmoid", {call.operand("self")}, {{"alpha", 1.0f / 6}})};
     }},
    {"leaky_relu",
     [](OnnxCall& call) -> Names {
       return {call.emit("LeakyRelu", {call.operand("self")},
                         {{"alpha", float(call.number("negative_slope"))}})};
     }},
    {"silu", silu},
    {"mish", mish},
    {"gelu", gelu},
    {"elu", elu},
    {"softplus", softplus},
    {"prelu", prelu},
    {"softmax", softmax, "Softmax"},
    {"log_softmax", softmax, "LogSoftmax"},
    {"mean", reduce, "ReduceMean"},
    {"sum", reduce, "ReduceSum"},
    {"amax", reduce, "ReduceMax"},
    {"amin", reduce, "ReduceMin"},
    {"norm linalg_vector_norm", norm, "ReduceL2"},
};

}  // namespace

const OnnxRow* onnx_row(std::string_view name) {
  for (const auto& table :
       {std::span<const OnnxRow>(kOperators), onnx_layers(), onnx_shape_operators()})
    for (const OnnxRow& row : table)
      if (fmt::format(" {} ", row.names).find(fmt::format(" {} ", name)) != std::string::npos)
        return &row;
  return nullptr;
}

}  // namespace saturate
