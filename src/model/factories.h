// The model factories of model_table.h. They may assume make_model()'s checks: positive
// width, classes and size.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "model/model_table.h"
#include "saturate/model.h"

namespace saturate {

#define SATURATE_ROW(name, ...) \
  std::unique_ptr<Model> make_##name(const ModelOptions& options, const ModelInput& input);
SATURATE_MODELS(SATURATE_ROW)
#undef SATURATE_ROW

// Fails with kUsage if `input.size` is below `least`.
void require_size(const ModelOptions& options, const ModelInput& input, int least);

// Fails with kUsage unless `input.size` is a multiple of `step`.
void require_multiple(const ModelOptions& options, const ModelInput& input, int step);

// A number of channels multiplied by model.width, at least 1.
inline int64_t scaled(int64_t channels, double width) {
  return std::max<int64_t>(1, std::llround(double(channels) * width));
}

}  // namespace saturate
