// All optimizers of the registry, and code that two of them share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "step/grouped_optimizer.h"
#include "step/optimizer_table.h"

namespace saturate {

#define SATURATE_ROW(name, ...) \
  std::unique_ptr<Optimizer> make_##name(const OptimizerOptions&, std::vector<ParameterGroup>);
SATURATE_OPTIMIZERS(SATURATE_ROW)
#undef SATURATE_ROW

// Stores parameters of two or more dimensions as `type`, with fp32 master weights.
std::unique_ptr<Optimizer> make_master_optimizer(const OptimizerOptions&,
                                                 std::vector<ParameterGroup>, at::ScalarType type);

enum class Decay { kL2, kDecoupled };

// Adam's slots, in the order that fused_adam() takes them.
inline const std::vector<std::string> kAdamSlots = {"step", "exp_avg", "exp_avg_sq"};

// SGD's slots: none without momentum.
inline std::vector<std::string> momentum_slots(const OptimizerOptions& options) {
  return options.momentum == 0 ? std::vector<std::string>() : std::vector<std::string>{"momentum"};
}

// One step of Adam (kL2) or AdamW (kDecoupled), fused or not as in `options`.
void update_adam(const OptimizerOptions& options, Decay decay, double weight_decay,
                 const Operands& operands, double lr, const at::Tensor& found_inf);

}  // namespace saturate
