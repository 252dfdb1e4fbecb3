#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "model/autograd.h"
#include "model/factories.h"

namespace saturate {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// The gradient's rows with `missing` zeros after each: in its own memory if that has room for them
// and is no other tensor's; else a copy.
at::Tensor with_zeros(const at::Tensor& gradient, int64_t missing) {
  at::DimVector sizes(gradient.sizes());
  sizes.back() += missing;
  const at::DimVector strides = c10::contiguous_strides(sizes);
  const c10::Storage& storage = gradient.storage();
  const int64_t end = gradient.storage_offset() + c10::multiply_integers(sizes);
  if (at::GradMode::is_enabled() || gradient.strides() != at::IntArrayRef(strides) ||
      storage.use_count() > 1 || int64_t(storage.nbytes()) < end * gradient.element_size())
    return at::constant_pad_nd(gradient, {0, missing});
  const at::Tensor padded = gradient.as_strided(sizes, strides);
  padded.narrow(-1, gradient.size(-1), missing).zero_();
  return padded;
}

// Backward of narrow(-1, 0, outputs), which itself would copy the gradient to a tensor of zeros.
class PaddingNode : public Node {
 public:
  PaddingNode(const at::Tensor& product, int64_t missing)
      : Node(torch::autograd::collect_next_edges(product)), missing_(missing) {}
  std::string name() const override { return "Padding"; }

 protected:
  variable_list apply(variable_list&& gradients) override {
    const at::Tensor& gradient = gradients.at(0);
    return {gradient.defined() ? with_zeros(gradient, missing_) : at::Tensor()};
  }

 private:
  int64_t missing_;
};

}  // namespace

at::Tensor padded_linear(const at::Tensor& x, const at::Tensor& weight, int64_t multiple) {
  const int64_t outputs = weight.size(0), missing = (multiple - outputs % multiple) % multiple;
  if (missing == 0) return at::linear(x, weight);
  const at::Tensor product = at::linear(x, at::constant_pad_nd(weight, {0, 0, 0, missing}));
  if (!at::GradMode::is_enabled() || !product.requires_grad())
    return product.narrow(-1, 0, outputs);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;  // no view for autograd
    result = product.narrow(-1, 0, outputs);
  }
  torch::autograd::set_history(result, make_graph_node<PaddingNode>(product, missing));
  return result;
}

}  // namespace saturate
