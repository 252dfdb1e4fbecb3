#include "saturate/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include "reduce/local_norm.h"
#include "saturate/batch_norm.h"
#include "saturate/model.h"

namespace saturate {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The group that backward sums over.
struct HeldGroup : torch::CustomClassHolder {
  explicit HeldGroup(Group& held) : group(held) {}
  Group& group;
};

class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& mean,
                            const at::Tensor& inverse, const at::Tensor& counts, Group* group) {
    at::Tensor kept;
    at::Tensor out = local_norm(x.device()).forward(x, weight, bias, {mean, inverse, counts}, kept);
    context->save_for_backward({kept, weight, mean, inverse, counts});
    context->saved_data["group"] = at::IValue::make_capsule(c10::make_intrusive<HeldGroup>(*group));
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &kept = saved[0], &weight = saved[1];
    const LocalNorm::Joint joint{saved[2], saved[3], saved[4]};
    const LocalNorm& norm = local_norm(kept.device());
    Group& group = static_cast<HeldGroup&>(*context->saved_data["group"].toCapsule()).group;
    const at::Tensor gradient = norm.prepared_gradient(gradients[0], kept);
    const LocalNorm::Sums sums = norm.sums(gradient, kept, weight, joint);
    group.sum(sums.row);
    const at::Tensor to_input = norm.to_input(gradient, kept, weight, joint, sums.row);
    return {to_input, sums.to_weight, sums.to_bias, {}, {}, {}, {}};
  }
};

at::Tensor normalise(Group& group, const BatchNorm2dImpl& norm, const at::Tensor& input) {
  const LocalNorm& local = local_norm(input.device());
  const double eps = norm.options.eps();
  const at::Tensor x = local.prepared(input);
  LocalNorm::Joint joint;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor own = x.detach();
    const at::Tensor rows = group.gather(local.statistics(own, eps));
    joint = local.join(own, rows,
                       {norm.running_mean, norm.running_var, norm.options.momentum().value()}, eps);
  }
  const at::Tensor y =
      Normalise::apply(x, norm.weight, norm.bias, joint.mean, joint.inverse, joint.counts, &group);
  return y.to(input.scalar_type());
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(Model& model, Group& group) : norms_(model.facets().norms) {
  for (BatchNorm2dImpl* norm : norms_)
    norm->set_hook([&group](const BatchNorm2dImpl& own, const at::Tensor& input) {
      return normalise(group, own, input);
    });
}

SyncBatchNorm::~SyncBatchNorm() {
  for (BatchNorm2dImpl* norm : norms_) norm->set_hook(nullptr);
}

}  // namespace saturate
