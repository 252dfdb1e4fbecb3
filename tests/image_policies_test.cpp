// TrivialAugment and RandAugment against torchvision; see tests/oracles/effect_goldens.py.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "image/policies.h"
#include "tests/effect_testing.h"

namespace saturate {
namespace {

using testing::golden_lines;
using testing::kEffectSize;

constexpr int kPolicyDraws = 100000;

PolicyOp op_of(const std::string& name) {
  static const std::array<std::string, kPolicyOps> names = {
      "Identity", "ShearX",   "ShearY",    "TranslateX", "TranslateY", "Rotate",       "Brightness",
      "Color",    "Contrast", "Sharpness", "Posterize",  "Solarize",   "AutoContrast", "Equalize"};
  return static_cast<PolicyOp>(std::find(names.begin(), names.end(), name) - names.begin());
}

TEST(PolicyMagnitude, EqualsTorchvisions) {
  size_t cases = 0;
  for (auto& line : golden_lines("policy_magnitudes.txt")) {
    std::string policy_name, name;
    int is_signed = 0;
    line >> policy_name >> name >> is_signed;
    const Policy policy = policy_name == "trivial" ? Policy::kTrivial : Policy::kRand;
    EXPECT_EQ(has_sign(op_of(name)), is_signed != 0) << name;
    for (int bin = 0; bin < kPolicyMagnitudes; ++bin) {
      double expected = 0;
      line >> expected;
      EXPECT_NEAR(policy_magnitude(policy, op_of(name), bin, kEffectSize), expected, 2e-6) << name;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 28u);
}

TEST(PolicyOps, EqualTorchvision) {
  const auto picture = testing::read_goldens("effects.bin", testing::kEffectInputs).inputs[0];
  const auto goldens = testing::read_goldens("policy_ops.bin", 0);
  auto lines = golden_lines("policy_ops.txt");
  ASSERT_EQ(lines.size(), goldens.outputs.size());
  std::map<std::string, int> seen;
  for (size_t n = 0; n < lines.size(); ++n) {
    std::string name;
    double magnitude = 0, tolerance = 0;
    lines[n] >> name >> magnitude >> tolerance;
    EffectList list;
    add_policy_op(op_of(name), magnitude, kEffectSize, list);
    EXPECT_EQ(list.count, name == "Identity" ? 0 : 1);
    auto got = picture;
    EffectScratch scratch;
    apply_effects(list, kEffectSize, scratch, got.data());
    testing::expect_levels(got, goldens.outputs[n], tolerance, lines[n].str());
    ++seen[name];
  }
  EXPECT_EQ(seen.size(), size_t{kPolicyOps});
}

AugmentOptions with_policy(Policy policy) {
  AugmentOptions options;
  options.size = kEffectSize;
  options.policy = policy;
  return options;
}

// Values that identify an operation and its magnitude; the identity has none.
std::vector<double> signature(const EffectList& list) {
  std::vector<double> values;
  for (int i = 0; i < list.count; ++i) {
    values.push_back(double(list.effect[i].kind));
    for (const float value : list.effect[i].value) values.push_back(double(value));
  }
  return values;
}

TEST(DrawPolicy, TrivialDrawsOperationsMagnitudesAndSignsUniformly) {
  std::map<std::vector<double>, double> expected;  // the share of each outcome
  for (int op = 0; op < kPolicyOps; ++op)
    for (int bin = 0; bin < kPolicyMagnitudes; ++bin)
      for (const int sign : {-1, 1}) {
        const auto policy_op = static_cast<PolicyOp>(op);
        EffectList list;
        const double magnitude = policy_magnitude(Policy::kTrivial, policy_op, bin, kEffectSize);
        add_policy_op(policy_op, has_sign(policy_op) ? sign * magnitude : magnitude, kEffectSize,
                      list);
        expected[signature(list)] += 1.0 / (kPolicyOps * kPolicyMagnitudes * 2);
      }
  std::map<std::vector<double>, double> seen;
  for (uint64_t i = 0; i < kPolicyDraws; ++i) {
    EffectList list;
    draw_policy(with_policy(Policy::kTrivial), {4, 0, i}, list);
    ++seen[signature(list)];
  }
  double chi_square = 0;
  for (const auto& [outcome, share] : expected) {
    const double mean = share * kPolicyDraws;
    chi_square += std::pow(seen[outcome] - mean, 2) / mean;
  }
  ASSERT_EQ(seen.size(), expected.size()) << "something else was drawn";
  const double freedom = double(expected.size()) - 1;
  EXPECT_LT(chi_square, freedom + 3.1 * std::sqrt(2 * freedom));  // p = 0.001, nearly
}

TEST(DrawPolicy, RandDrawsTheGivenNumberOfOperationsOfOneMagnitude) {
  AugmentOptions options = with_policy(Policy::kRand);
  options.policy_ops = 3;
  options.policy_magnitude = 20;
  std::map<EffectKind, int> seen;
  int all = 0;
  for (uint64_t i = 0; i < kPolicyDraws; ++i) {
    EffectList list;
    draw_policy(options, {4, 0, i}, list);
    ASSERT_LE(list.count, 3);
    all += list.count;
    for (int n = 0; n < list.count; ++n) ++seen[list.effect[n].kind];
    for (int n = 0; n < list.count; ++n) {
      if (list.effect[n].kind != EffectKind::kBrightness) continue;
      EXPECT_NEAR(std::abs(list.effect[n].value[0] - 1.0f), 0.6, 1e-6);
    }
  }
  EXPECT_NEAR(all / double(kPolicyDraws), 3 * 13 / 14.0, 0.01);
  const std::map<EffectKind, int> ops = {
      {EffectKind::kAffine, 5},   {EffectKind::kBrightness, 1},   {EffectKind::kSaturation, 1},
      {EffectKind::kContrast, 1}, {EffectKind::kSharpness, 1},    {EffectKind::kPosterize, 1},
      {EffectKind::kSolarize, 1}, {EffectKind::kAutocontrast, 1}, {EffectKind::kEqualize, 1}};
  double chi_square = 0;
  for (const auto& [kind, count] : ops) {
    const double mean = 3.0 * kPolicyDraws * count / kPolicyOps;
    chi_square += std::pow(seen[kind] - mean, 2) / mean;
  }
  EXPECT_LT(chi_square, 26.1);  // 8 degrees of freedom, p = 0.001
}

TEST(DrawEffects, AllEffectsOfARecipeFitIntoAList) {
  AugmentOptions options = with_policy(Policy::kRand);
  options.policy_ops = 8;
  options.rotate = options.brightness = options.contrast = options.saturation = 0.5;
  options.hue = 0.1;
  options.grey = options.blur = options.erase = options.gaussian_noise = 1;
  int most = 0;
  for (uint64_t i = 0; i < 1000; ++i) most = std::max(most, draw_effects(options, {4, 0, i}).count);
  EXPECT_EQ(most, kMaxEffects);
}

}  // namespace
}  // namespace saturate
