#include <array>
#include <utility>

#include "saturate/optimizer.h"
#include "step/factories.h"
#include "step/precision.h"

namespace saturate {
namespace {

constexpr std::array<RegistryEntry<OptimizerFactory>, 6> kOptimizers{{
    {"sgd", "SGD with (Nesterov) momentum, fused", make_sgd},
    {"adam", "Adam with an L2 penalty, fused", make_adam},
    {"adamw", "Adam with decoupled weight decay, fused", make_adamw},
    {"lars", "SGD with a rate per layer, for very large batches", make_lars},
    {"lamb", "AdamW with a rate per layer, for very large batches; timm's clips: train.clip_norm=1",
     make_lamb},
    {"muon", "orthogonalised momentum for matrices and filters, AdamW for the rest", make_muon},
}};

}  // namespace

std::span<const RegistryEntry<OptimizerFactory>> optimizers() {
  return kOptimizers;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<ParameterGroup> groups, PrecisionMode mode) {
  if (has_masters(mode))
    return make_master_optimizer(options, std::move(groups), *reduced_type(mode));
  return find_entry(optimizers(), options.name, "optimizer.name").make(options, std::move(groups));
}

}  // namespace saturate
