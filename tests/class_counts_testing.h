// Labels and predictions of pixels, most of one class, as of a background.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

namespace saturate::testing {

struct CountedPixels {
  CountedPixels(int64_t classes_in, int64_t side)
      : classes(classes_in),
        labels(at::randint(classes_in, {3, side, side + 1}, at::kLong)),
        found(at::randint(classes_in, {3, side, side + 1}, at::kLong)),
        counted(at::randint(5, {3, side, side + 1}, at::kLong).ge(1)) {
    labels.masked_fill_(at::randint(4, labels.sizes(), at::kLong).ge(1), 0);
    found.masked_fill_(at::randint(4, found.sizes(), at::kLong).ge(2), 0);
    labels.masked_fill_(counted.logical_not(), -100);
  }
  at::Tensor by_a_loop() const {
    at::Tensor counts = at::zeros({3, classes}, at::kLong);
    auto cells = counts.accessor<int64_t, 2>();
    const auto label = labels.accessor<int64_t, 3>(), prediction = found.accessor<int64_t, 3>();
    const auto counts_one = counted.accessor<bool, 3>();
    for (int64_t n = 0; n < labels.size(0); ++n)
      for (int64_t y = 0; y < labels.size(1); ++y)
        for (int64_t x = 0; x < labels.size(2); ++x) {
          if (!counts_one[n][y][x]) continue;
          const int64_t l = label[n][y][x], p = prediction[n][y][x];
          cells[0][l] += l == p;
          cells[1][l] += 1;
          cells[2][p] += 1;
        }
    return counts;
  }
  int64_t classes;
  at::Tensor labels, found, counted;  // [3, side, side + 1]
};

// Classes, pixels a side: 1,024, 64 and 32 counters per class, and more counters than pixels.
inline const std::vector<std::pair<int64_t, int64_t>> kCountCases = {
    {2, 3}, {21, 70}, {3000, 64}, {21'841, 40}};

}  // namespace saturate::testing
