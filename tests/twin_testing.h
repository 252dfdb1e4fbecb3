// Models compared with goldens of the same models in Python (tests/oracles/).
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "saturate/model.h"
#include "tests/formula.h"

namespace saturate::testing {

inline void fill_all(Model& model) {
  for (const auto& named : model.parameters()) fill(named);
  for (const auto& named : model.buffers()) fill(named);
}

// `rows`: by parameter, the first value and the sum of the first 64.
inline void expect_first_weights(Model& model, const nlohmann::json& rows) {
  for (const auto& [name, tensor] : model.parameters()) {
    const at::Tensor flat = tensor.detach().flatten();
    const auto& row = rows.at(name);
    EXPECT_NEAR(flat[0].item<double>(), row[0].get<double>(), 1e-5) << name;
    EXPECT_NEAR(flat.slice(0, 0, 64).to(at::kDouble).sum().item<double>(), row[1].get<double>(),
                1e-4)
        << name;
  }
}

}  // namespace saturate::testing
