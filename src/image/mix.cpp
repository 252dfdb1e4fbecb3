#include <algorithm>
#include <cmath>

#include "saturate/data/effects.h"

namespace saturate {
namespace {

// The logarithm of a Gamma(shape, 1) variate: Marsaglia and Tsang, "A simple method for generating
// gamma variables", ACM TOMS 26(3), 2000. By logarithms, because a small shape underflows.
double log_gamma_variate(RandomStream& random, double shape) {
  const double boost = shape < 1 ? std::log(1 - random.next_double()) / shape : 0;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(1 - random.next_double()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return std::log(d * v) + boost;
  }
}

double draw_beta(RandomStream& random, double alpha) {
  const double a = log_gamma_variate(random, alpha), b = log_gamma_variate(random, alpha);
  return 1 / (1 + std::exp(b - a));
}

// A box of area share 1 - lambda, uniform centre, clipped at the image's edges, as v2.CutMix.
Box draw_box(RandomStream& random, int size, double lambda) {
  const int x = static_cast<int>(random.below(uint64_t(size)));
  const int y = static_cast<int>(random.below(uint64_t(size)));
  const int half = static_cast<int>(0.5 * std::sqrt(1 - lambda) * size);
  const int left = std::max(x - half, 0), top = std::max(y - half, 0);
  return {left, top, std::min(x + half, size) - left, std::min(y + half, size) - top};
}

}  // namespace

Mix draw_mix(const AugmentOptions& options, const SampleKey& batch, size_t count) {
  Mix mix;
  if (count < 2 || (options.mixup == 0 && options.cutmix == 0)) return mix;
  RandomStream random = batch.stream(RandomUse::kMix);
  const bool both = options.mixup > 0 && options.cutmix > 0;
  const bool cut = both ? random.bernoulli(0.5) : options.cutmix > 0;
  mix.kind = cut ? MixKind::kCutMix : MixKind::kMixUp;
  mix.offset = 1 + size_t(random.below(count - 1));
  mix.lambda = draw_beta(random, cut ? options.cutmix : options.mixup);
  if (!cut) return mix;
  mix.box = draw_box(random, options.size, mix.lambda);
  const double area = double(mix.box.width) * mix.box.height;
  mix.lambda = 1 - area / (double(options.size) * options.size);
  return mix;
}

}  // namespace saturate
