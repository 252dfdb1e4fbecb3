// Tensors filled by the formula of tests/oracles/formula.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <zlib.h>

#include <cmath>
#include <string>

#include "saturate/model.h"

namespace saturate::testing {

// Maps the uniform u in [0, 1) of every element, in row-major order whatever the layout.
template <class Map>
at::Tensor formula_tensor(const std::string& name, at::IntArrayRef shape, const Map& map) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  const auto seed =
      uint32_t(::crc32(0, reinterpret_cast<const Bytef*>(name.data()), uInt(name.size())));
  float* out = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    uint32_t h = seed + uint32_t(i) * 2654435761u;
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    h ^= h >> 16;
    out[i] = float(map(double(h >> 8) / 16777216.0));
  }
  return tensor;
}

// In [-scale, scale).
inline at::Tensor symmetric(const std::string& name, at::IntArrayRef shape, double scale) {
  return formula_tensor(name, shape, [scale](double u) { return (2 * u - 1) * scale; });
}

// A value for a model's parameter or buffer that keeps activations in range.
inline void fill(const NamedTensor& named) {
  const at::NoGradGuard no_grad;
  const auto& [name, tensor] = named;
  if (tensor.dim() > 1) {
    const double fan_in = double(tensor.numel() / tensor.size(0));
    tensor.copy_(symmetric(name, tensor.sizes(), std::sqrt(6 / fan_in)));
  } else if (name.ends_with("num_batches_tracked")) {
    tensor.fill_(3);
  } else if (name.ends_with("running_var") || name.ends_with("weight")) {
    tensor.copy_(formula_tensor(name, tensor.sizes(), [](double u) { return 0.5 + u; }));
  } else {
    tensor.copy_(symmetric(name, tensor.sizes(), 0.25));
  }
}

}  // namespace saturate::testing
