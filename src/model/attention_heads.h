// The heads of an attention layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace saturate {

// Queries, keys and values, each [N, H, T, D / H], from one product [N, T, 3 D]. Backward joins
// their gradients by one copy. With unbind() of [3, N, H, T, D / H] it would stack them, and then
// permute the result by a second copy.
inline std::array<at::Tensor, 3> split_heads(const at::Tensor& product, int64_t heads) {
  const auto parts = product.chunk(3, 2);
  const auto by_head = [&](const at::Tensor& part) {
    return part.unflatten(2, {heads, part.size(2) / heads}).transpose(1, 2);
  };
  return {by_head(parts[0]), by_head(parts[1]), by_head(parts[2])};
}

}  // namespace saturate
