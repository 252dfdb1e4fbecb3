// Pictures and goldens of the tests of effects; see tests/oracles/effect_goldens.py.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "saturate/data/effects.h"
#include "tests/image_testing.h"

namespace saturate::testing {

constexpr int kEffectSize = 24, kEffectValues = kEffectSize * kEffectSize * 3;
using Picture = std::vector<uint8_t>;

struct Goldens {
  std::vector<Picture> inputs;
  std::vector<std::vector<float>> outputs;  // levels
};

constexpr int kEffectInputs = 6;  // at the beginning of effects.bin

inline Goldens read_goldens(const std::string& name, int inputs) {
  const auto bytes = read_file(Env::posix(), golden(name));
  const auto* pixels = reinterpret_cast<const uint8_t*>(bytes.data());
  Goldens goldens;
  for (int i = 0; i < inputs; ++i, pixels += kEffectValues)
    goldens.inputs.emplace_back(pixels, pixels + kEffectValues);
  const auto* end = reinterpret_cast<const uint8_t*>(bytes.data()) + bytes.size();
  if ((end - pixels) % ptrdiff_t(kEffectValues * sizeof(float)) != 0)
    throw std::runtime_error(name + " does not hold that many inputs");
  for (; pixels < end; pixels += kEffectValues * sizeof(float)) {
    std::vector<float> values(kEffectValues);
    std::memcpy(values.data(), pixels, kEffectValues * sizeof(float));
    goldens.outputs.push_back(values);
  }
  return goldens;
}

inline Picture applied(const std::vector<Effect>& effects, Picture picture,
                       const ImageSize& size = kEffectSize) {
  EffectList list;
  for (const Effect& effect : effects) list.effect[list.count++] = effect;
  EffectScratch scratch;
  apply_effects(list, size, scratch, picture.data());
  return picture;
}

// `tolerance`: for values 0 to 1. Beyond it a level may only differ by rounding.
inline void expect_levels(const Picture& got, const std::vector<float>& expected, double tolerance,
                          const std::string& what) {
  const double limit = tolerance == 0 ? 0 : 0.5 + 255 * tolerance;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(double(got[i]) - double(expected[i])), limit) << what << ", value " << i;
}

}  // namespace saturate::testing
