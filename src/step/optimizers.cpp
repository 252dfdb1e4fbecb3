#include <utility>

#include "saturate/optimizer.h"
#include "step/factories.h"
#include "step/precision.h"

namespace saturate {
namespace {

#define SATURATE_ROW(name, doc, ...) {#name, doc, make_##name, {__VA_ARGS__}},
constexpr RegistryEntry<OptimizerFactory, OptimizerTraits> kOptimizers[] = {
    SATURATE_OPTIMIZERS(SATURATE_ROW)};
#undef SATURATE_ROW

}  // namespace

std::span<const RegistryEntry<OptimizerFactory, OptimizerTraits>> optimizers() {
  return kOptimizers;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<ParameterGroup> groups, PrecisionMode mode) {
  if (has_master_weights(mode))
    return make_master_optimizer(options, std::move(groups), *reduced_type(mode));
  return find_entry(optimizers(), options.name, "optimizer.name").make(options, std::move(groups));
}

}  // namespace saturate
