// RMSprop (https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf) as
// torch.optim.RMSprop, whose alpha is the second of optimizer.betas.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include <utility>

#include "step/factories.h"

namespace saturate {
namespace {

class RmsProp : public GroupedOptimizer {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  void move(const Operands& operands, double weight_decay, double lr) const override {
    const auto gradients =
        weight_decay == 0 ? operands.gradients
                          : at::_foreach_add(operands.gradients, operands.parameters, weight_decay);
    const Slot& squares = operands.state[0];
    at::_foreach_mul_(squares, options_.beta2);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - options_.beta2);
    auto denominators = at::_foreach_sqrt(squares);
    at::_foreach_add_(denominators, options_.eps);
    auto change = at::_foreach_div(gradients, denominators);
    if (operands.state.size() > 1) {
      at::_foreach_mul_(operands.state[1], options_.momentum);
      at::_foreach_add_(operands.state[1], change);
      change = operands.state[1];
    }
    at::_foreach_add_(operands.parameters, change, -lr);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_rmsprop(const OptimizerOptions& options,
                                        std::vector<ParameterGroup> groups) {
  std::vector<std::string> slots = momentum_slots(options);
  slots.insert(slots.begin(), "square_avg");
  return std::make_unique<RmsProp>(options, std::move(groups), slots);
}

}  // namespace saturate
