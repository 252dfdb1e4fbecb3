// The traits of optimizers, and the checks of [optimizer].
#include "recipe/option_row.h"
#include "step/optimizer_table.h"

namespace saturate {

OptimizerTraits traits_of(const OptimizerOptions& options) {
#define SATURATE_ROW(row, doc, ...) \
  if (options.name == #row) return {__VA_ARGS__};
  SATURATE_OPTIMIZERS(SATURATE_ROW)
#undef SATURATE_ROW
  return {};
}

void validate_optimizer(const OptimizerOptions& optimizer, const std::string& where) {
  if (optimizer.nesterov && optimizer.momentum == 0 && traits_of(optimizer).nesterov_needs_momentum)
    fail_option("optimizer.nesterov", "needs a momentum",
                "Set optimizer.momentum, or optimizer.nesterov=false", where);
}

}  // namespace saturate
