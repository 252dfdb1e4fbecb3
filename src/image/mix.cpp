#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

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
Box draw_box(RandomStream& random, const ImageSize& size, double lambda) {
  const int x = static_cast<int>(random.below(uint64_t(size.width)));
  const int y = static_cast<int>(random.below(uint64_t(size.height)));
  const double half = 0.5 * std::sqrt(1 - lambda);
  const int across = static_cast<int>(half * size.width);
  const int down = static_cast<int>(half * size.height);
  const int left = std::max(x - across, 0), top = std::max(y - down, 0);
  return {left, top, std::min(x + across, size.width) - left,
          std::min(y + down, size.height) - top};
}

float from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

float from_float16(uint16_t bits) {
  const float size = std::bit_cast<float>(uint32_t(bits & 0x7fff) << 13) * 0x1p112f;
  return bits & 0x8000 ? -size : size;
}

// Towards `other` by 1 - lambda, in the form that torch.lerp uses.
float lerp_of(float own, float other, float lambda) {
  const float weight = 1 - lambda, difference = other - own;
  return weight < 0.5f ? own + weight * difference : other - difference * lambda;
}

void mix_values(PixelType type, float lambda, const std::byte* from, size_t bytes, std::byte* to) {
  if (type == PixelType::kFloat32) {
    auto* own = reinterpret_cast<float*>(to);
    const auto* other = reinterpret_cast<const float*>(from);
    for (size_t i = 0; i < bytes / 4; ++i) own[i] = lerp_of(own[i], other[i], lambda);
    return;
  }
  auto* own = reinterpret_cast<uint16_t*>(to);
  const auto* other = reinterpret_cast<const uint16_t*>(from);
  for (size_t i = 0; i < bytes / 2; ++i)
    own[i] = type == PixelType::kBfloat16
                 ? to_bfloat16(lerp_of(from_bfloat16(own[i]), from_bfloat16(other[i]), lambda))
                 : to_float16(lerp_of(from_float16(own[i]), from_float16(other[i]), lambda));
}

// Bytes of an image that are contiguous, and change.
struct MixedRun {
  size_t begin, bytes;
};

std::vector<MixedRun> mixed_runs(const Mix& mix, size_t value, bool planar, const ImageSize& size) {
  const size_t planes = planar ? 3 : 1, pixel = planar ? value : 3 * value;
  const auto height = size_t(size.height), width = size_t(size.width);
  if (mix.kind == MixKind::kMixUp) return {{0, 3 * height * width * value}};
  std::vector<MixedRun> runs;
  for (size_t plane = 0; plane < planes; ++plane)
    for (int y = mix.box.y; y < mix.box.y + mix.box.height; ++y)
      runs.push_back({((plane * height + size_t(y)) * width + size_t(mix.box.x)) * pixel,
                      size_t(mix.box.width) * pixel});
  return runs;
}

}  // namespace

void mix_images(const Mix& mix, PixelType type, bool planar, size_t count, const ImageSize& size,
                std::byte* pixels) {
  if (mix.kind == MixKind::kNone) return;
  const size_t image = 3 * size_t(size.area()) * bytes_of(type);
  const std::vector<MixedRun> runs = mixed_runs(mix, bytes_of(type), planar, size);
  const size_t cycles = std::gcd(count, mix.offset);
  std::vector<std::byte> first(image);
  // Each image is read by the one that is changed after it; only the first of a cycle is kept.
  for (size_t start = 0; start < cycles; ++start) {
    std::memcpy(first.data(), pixels + start * image, image);
    for (size_t i = start, from = 0;; i = from) {
      from = (i + count - mix.offset) % count;
      const std::byte* other = from == start ? first.data() : pixels + from * image;
      for (const MixedRun& run : runs) {
        std::byte* const to = pixels + i * image + run.begin;
        if (mix.kind == MixKind::kMixUp)
          mix_values(type, float(mix.lambda), other + run.begin, run.bytes, to);
        else
          std::memcpy(to, other + run.begin, run.bytes);
      }
      if (from == start) break;
    }
  }
}

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
  mix.lambda = 1 - area / (double(options.size.height) * options.size.width);
  return mix;
}

}  // namespace saturate
