// Base of all optimizers: parameter groups, and named state in slots.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "saturate/optimizer.h"

namespace saturate {

// One kind of state of a group, one tensor per parameter: undefined until created.
using Slot = std::vector<at::Tensor>;

// The tensors of a group that take part in one step, in matching order.
struct Operands {
  std::vector<at::Tensor> parameters, gradients;
  std::vector<Slot> state;  // one per slot
};

// State is created when a parameter first has a gradient. REQUIRES: parameters keep their device
// and layout after the first step.
class GroupedOptimizer : public Optimizer {
 public:
  explicit GroupedOptimizer(const OptimizerOptions& options) : options_(options) {}
  GroupedOptimizer(const OptimizerOptions& options, std::vector<ParameterGroup> groups,
                   const std::vector<std::string>& slot_names);
  void step(double lr, const at::Tensor& found_inf) override;
  std::vector<at::Tensor> gradients() const override;
  void zero_grad() override;
  bool read_rate_from(const at::Tensor& rate) override;
  void set_momentum(double momentum) override { options_.momentum = options_.beta1 = momentum; }
  std::vector<NamedTensor> state() override;
  void load_state(const std::vector<NamedTensor>& loaded) override;

 protected:
  struct Group {
    ParameterGroup about;
    std::vector<std::string> slot_names;
    std::vector<Slot> state;  // one per slot name
  };

  // A slot "step" is a float scalar that counts steps, any other a tensor like the parameter; all
  // start at zero.
  void add_group(ParameterGroup group, std::vector<std::string> slot_names);

  // One step of one group, without autograd; `lr` includes the group's factor. Unless overridden:
  // move(), reverted if found_inf.
  virtual void update(const Group& group, const Operands& operands, double lr,
                      const at::Tensor& found_inf);
  virtual void move(const Operands& /*operands*/, double /*weight_decay*/, double /*lr*/) const {}

  // Whether update() uses rate_for().
  virtual bool reads_rate() const { return false; }
  // A group's learning rate on the device; undefined if it is update()'s argument.
  at::Tensor rate_for(const Group& group) const;

  OptimizerOptions options_;

 private:
  template <class Visitor>
  void visit_state(const Visitor& visit);

  std::vector<Group> groups_;
  at::Tensor rate_;
};

// Fails with kRun: a checkpoint's state of another model or optimizer.
[[noreturn]] void fail_state(const std::string& what, const std::string& tensor);

// Sets a parameter's gradient to none, or to zero in place.
void drop_gradient(const at::Tensor& parameter, bool set_to_none);

// Runs an `update` of `operands` that ignores found_inf, then reverts it where found_inf is 1,
// without waiting for the device. Copies parameters and state if found_inf is given.
void unless_found_inf(const Operands& operands, const at::Tensor& found_inf,
                      const std::function<void()>& update);

}  // namespace saturate
