#include "trace/flop_counter.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/accumulate.h>

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace saturate {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

c10::IntArrayRef shape(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() ? value.toTensor().sizes()
                                                        : c10::IntArrayRef();
}

// [n, k] x [k, m].
int64_t matrix_product(c10::IntArrayRef a, c10::IntArrayRef b) {
  return a.size() == 2 && b.size() == 2 ? 2 * a[0] * a[1] * b[1] : 0;
}

// [b, n, k] x [b, k, m].
int64_t batched_product(c10::IntArrayRef a, c10::IntArrayRef b) {
  return a.size() == 3 && b.size() == 3 ? 2 * c10::multiply_integers(a) * b[2] : 0;
}

// Every element of the output [N, O, ...] (of the input, if transposed) is multiplied by every
// element of one filter, weight [O, I / groups, ...].
int64_t convolution(c10::IntArrayRef elements, c10::IntArrayRef weight) {
  if (elements.size() < 3 || weight.size() != elements.size()) return 0;
  return 2 * elements[0] * c10::multiply_integers(elements.slice(2)) *
         c10::multiply_integers(weight);
}

// Output size of one dimension of a convolution.
int64_t output_side(int64_t side, int64_t filter, int64_t stride, int64_t padding,
                    int64_t dilation) {
  return (side + 2 * padding - dilation * (filter - 1) - 1) / stride + 1;
}

int64_t element(const c10::IValue& list, size_t index) {
  const auto values = list.toIntVector();
  return values.size() == 1 ? values[0] : values.at(index);
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
int64_t count_convolution(Inputs in) {
  const auto input = shape(in[0]), weight = shape(in[1]);
  if (input.size() < 3 || weight.size() != input.size()) return 0;
  if (in[6].toBool()) return convolution(input, weight);
  std::vector<int64_t> output(input.begin(), input.end());
  for (size_t i = 2; i < output.size(); ++i)
    output[i] = output_side(input[i], weight[i], element(in[3], i - 2), element(in[4], i - 2),
                            element(in[5], i - 2));
  return convolution(output, weight);
}

// grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask: each of the two gradients costs as much as forward
int64_t count_convolution_backward(Inputs in) {
  const auto mask = in[10].toBoolList();
  const int64_t forward = convolution(shape(in[7].toBool() ? in[1] : in[0]), shape(in[2]));
  return forward * (int64_t(mask.get(0)) + int64_t(mask.get(1)));
}

// Query [B, H, L, E], key [B, H, S, E], value [B, H, S, V] from `first` on: `by_key` products of
// L x E x S, `by_value` of L x S x V.
int64_t attention(Inputs in, size_t first, int by_key, int by_value) {
  const auto query = shape(in[first]), key = shape(in[first + 1]), value = shape(in[first + 2]);
  if (query.size() != 4 || key.size() != 4 || value.size() != 4) return 0;
  const int64_t pairs = query[0] * query[1] * query[2] * key[2];
  return 2 * pairs * (by_key * query[3] + by_value * value[3]);
}

using Count = int64_t (*)(Inputs);
struct Rule {
  size_t inputs;  // minimum number
  Count count;
};

const std::unordered_map<std::string_view, Rule>& rules() {
  static const auto forward = [](Inputs in) { return attention(in, 0, 1, 1); };
  static const auto backward = [](Inputs in) { return attention(in, 1, 3, 2); };
  static const std::unordered_map<std::string_view, Rule> kRules = {
      {"aten::convolution", {9, count_convolution}},
      {"aten::convolution_backward", {11, count_convolution_backward}},
      {"aten::mm", {2, [](Inputs in) { return matrix_product(shape(in[0]), shape(in[1])); }}},
      {"aten::addmm", {3, [](Inputs in) { return matrix_product(shape(in[1]), shape(in[2])); }}},
      {"aten::bmm", {2, [](Inputs in) { return batched_product(shape(in[0]), shape(in[1])); }}},
      {"aten::baddbmm", {3, [](Inputs in) { return batched_product(shape(in[1]), shape(in[2])); }}},
      {"aten::_scaled_dot_product_flash_attention", {3, forward}},
      {"aten::_scaled_dot_product_efficient_attention", {3, forward}},
      {"aten::_scaled_dot_product_cudnn_attention", {3, forward}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {3, forward}},
      {"aten::_scaled_dot_product_flash_attention_backward", {4, backward}},
      {"aten::_scaled_dot_product_efficient_attention_backward", {4, backward}},
      {"aten::_scaled_dot_product_cudnn_attention_backward", {4, backward}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", {4, backward}}};
  return kRules;
}

// A callback cannot hold an object, so the counter is global. The callback itself applies to the
// thread that made it and the autograd threads it uses.
std::atomic<FlopCounter*> counting = nullptr;

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
  const auto rule = rules().find(call.name());
  const Inputs in = call.inputs();
  FlopCounter* const counter = counting;
  if (counter && rule != rules().end() && in.size() >= rule->second.inputs)
    counter->add(rule->second.count(in));
  return nullptr;
}

}  // namespace

// One at a time in a process: a second one counts nothing.
FlopCounter::FlopCounter() : handle_(0) {
  FlopCounter* none = nullptr;
  if (!counting.compare_exchange_strong(none, this)) return;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  if (counting != this) return;
  at::removeCallback(handle_);
  counting = nullptr;
}

}  // namespace saturate
