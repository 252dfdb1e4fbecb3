// Effects of single samples against torchvision; see tests/oracles/effect_goldens.py.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "image/effect_passes.h"
#include "saturate/data/augment.h"
#include "saturate/data/effects.h"
#include "tests/effect_testing.h"

namespace saturate {
namespace {

using testing::applied;
using testing::expect_levels;
using testing::golden_lines;
using testing::Goldens;
using testing::Picture;
using testing::read_goldens;

constexpr int kSize = testing::kEffectSize, kPixels = kSize * kSize;

EffectKind kind_of(const std::string& name) {
  static const std::map<std::string, EffectKind> kinds = {
      {"affine", EffectKind::kAffine},
      {"brightness", EffectKind::kBrightness},
      {"contrast", EffectKind::kContrast},
      {"saturation", EffectKind::kSaturation},
      {"hue", EffectKind::kHue},
      {"grey", EffectKind::kGrey},
      {"blur", EffectKind::kBlur},
      {"erase", EffectKind::kErase},
      {"sharpness", EffectKind::kSharpness},
      {"posterize", EffectKind::kPosterize},
      {"solarize", EffectKind::kSolarize},
      {"autocontrast", EffectKind::kAutocontrast},
      {"equalize", EffectKind::kEqualize}};
  return kinds.at(name);
}

Effect effect_of(const std::string& name, const std::vector<double>& p) {
  Effect effect{kind_of(name), {}};
  for (size_t i = 0; i < p.size() && i < 7; ++i) effect.value[i] = static_cast<float>(p[i]);
  if (name == "affine")
    set_affine(
        {p[0], p[1], p[2], p[3], p[4], p[5], p.size() > 6 ? p[6] : 0, p.size() > 7 ? p[7] : 0},
        effect);
  return effect;
}

// The effect before rounding, if a pixel function computes it.
std::optional<std::vector<float>> in_float(const Effect& effect, const Picture& in) {
  std::vector<float> out;
  for (int i = 0; i < kPixels; ++i) {
    const uint8_t* pixel = in.data() + i * 3;
    const Rgb rgb{float(pixel[0]), float(pixel[1]), float(pixel[2])};
    const SourcePoint from = affine_place(effect.value, kSize, i % kSize, i / kSize);
    const float grey = grey_of(rgb.r, rgb.g, rgb.b);
    Rgb now{};
    switch (effect.kind) {
      case EffectKind::kSaturation:
        now = with_saturation(rgb, effect.value[0]);
        break;
      case EffectKind::kHue:
        now = with_hue(rgb, effect.value[0]);
        break;
      case EffectKind::kGrey:
        now = {grey, grey, grey};
        break;
      case EffectKind::kAffine:
        now = sample_bilinear(in.data(), kSize, from);
        break;
      case EffectKind::kBrightness:
        now = {blended(rgb.r, 0, effect.value[0]), blended(rgb.g, 0, effect.value[0]),
               blended(rgb.b, 0, effect.value[0])};
        break;
      default:
        return std::nullopt;
    }
    out.insert(out.end(), {now.r, now.g, now.b});
  }
  return out;
}

TEST(Effects, EqualTorchvision) {
  const Goldens goldens = read_goldens("effects.bin", testing::kEffectInputs);
  auto lines = golden_lines("effects.txt");
  ASSERT_EQ(lines.size(), goldens.outputs.size());
  std::map<EffectKind, int> seen;
  for (size_t n = 0; n < lines.size(); ++n) {
    std::string name;
    size_t input = 0;
    double tolerance = 0;
    lines[n] >> name >> input >> tolerance;
    std::vector<double> parameters;
    for (double value = 0; lines[n] >> value;) parameters.push_back(value);
    const Effect effect = effect_of(name, parameters);
    const Picture& in = goldens.inputs[input];
    expect_levels(applied({effect}, in), goldens.outputs[n], tolerance, lines[n].str());
    const auto exact = in_float(effect, in).value_or(std::vector<float>());
    for (size_t i = 0; i < exact.size(); ++i)
      ASSERT_NEAR(exact[i], goldens.outputs[n][i], 255 * tolerance) << lines[n].str();
    ++seen[effect.kind];
  }
  EXPECT_EQ(seen.size(), 13u);
}

TEST(TransformMask, EqualsTorchvision) {
  size_t cases = 0;
  for (auto& line : golden_lines("mask.txt")) {
    int width = 0, height = 0, flip = 0;
    SampleTransform transform;
    Box& crop = transform.crop;
    std::string mode, checksum;
    line >> width >> height >> crop.x >> crop.y >> crop.width >> crop.height >> transform.shift_x >>
        transform.shift_y >> mode >> flip;
    transform.flip = flip != 0;
    std::vector<std::string> words;
    for (std::string word; line >> word;) words.push_back(word);
    std::vector<double> affine;
    for (size_t i = 0; i + 1 < words.size(); ++i) affine.push_back(std::stod(words[i]));
    EffectList list;
    list.add(EffectKind::kHue, 0.5);
    if (!affine.empty()) list.effect[list.count++] = effect_of("affine", affine);
    AugmentOptions options;
    options.size = kSize;
    options.pad_mode = mode == "reflect" ? PadMode::kReflect : PadMode::kZero;
    std::vector<uint8_t> classes, out(kPixels);
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x) classes.push_back(uint8_t((7 * x + y * y) % 20));
    transform_mask(options, transform, list, {width, height, classes.data()}, 99, out.data());
    EXPECT_EQ(testing::crc(out), words.back()) << line.str();
    ++cases;
  }
  EXPECT_EQ(cases, 6u);
}

TEST(Effects, AreAppliedInOrderInAnyBuffer) {
  const Picture in = read_goldens("effects.bin", testing::kEffectInputs).inputs[0];
  const std::vector<Effect> chain = {effect_of("affine", {20, 1, -2, 1.1, 0, 0}),
                                     effect_of("contrast", {1.5}),
                                     effect_of("blur", {1}),
                                     effect_of("hue", {0.2}),
                                     effect_of("sharpness", {1.6}),
                                     effect_of("erase", {2, 3, 4, 5, 9, 8, 7})};
  Picture one_by_one = in;
  for (size_t n = 1; n <= chain.size(); ++n) {
    one_by_one = applied({chain[n - 1]}, one_by_one);
    EXPECT_EQ(applied({chain.begin(), chain.begin() + ptrdiff_t(n)}, in), one_by_one) << n;
  }
}

TEST(Effects, WorkOnImagesOfOnePixel) {
  for (const char* name : {"blur", "sharpness", "equalize", "autocontrast", "contrast", "hue"})
    EXPECT_EQ(applied({effect_of(name, {1})}, {10, 10, 10}, 1), (Picture{10, 10, 10})) << name;
}

AugmentOptions everything() {
  AugmentOptions options;
  options.size = 64;
  options.rotate = 30;
  options.translate = 0.25;
  options.zoom = 0.3;
  options.shear = 15;
  options.brightness = 0.4;
  options.contrast = 0.5;
  options.saturation = 1.3;
  options.hue = 0.2;
  options.grey = 0.1;
  options.blur = 0.25;
  options.erase = 0.6;
  options.erase_scale_min = 0.05;
  options.erase_scale_max = 0.9;
  return options;
}

// The passes as on a GPU: images side by side, a blur's rows in the output.
TEST(FinishBatch, EqualsApplyEffectsThenNormalizePixels) {
  AugmentOptions options = everything();
  options.size = kSize;
  const Normalize normalize = make_normalize(options);
  constexpr size_t kCount = 12, kValues = testing::kEffectValues;
  const Goldens goldens = read_goldens("effects.bin", testing::kEffectInputs);
  std::vector<uint8_t> images, spare(kCount * kValues);
  std::vector<EffectList> lists;
  std::vector<float> expected(kCount * kValues), got(expected.size());
  for (size_t i = 0; i < kCount; ++i) {
    const Picture& in = goldens.inputs[i % testing::kEffectInputs];
    images.insert(images.end(), in.begin(), in.end());
    lists.push_back(i == 0 ? EffectList() : draw_effects(options, {7, 1, i}));
    Picture alone = in;
    EffectScratch scratch;
    apply_effects(lists[i], kSize, scratch, alone.data());
    normalize_pixels(normalize, alone, expected.data() + i * kValues);
  }
  finish_batch_cpu(
      {images.data(), lists.data(), spare.data(), kCount, kSize, normalize, got.data()});
  EXPECT_EQ(got, expected);
}

TEST(DrawEffects, HasEachKindInOrder) {
  const AugmentOptions options = everything();
  std::map<EffectKind, int> seen;
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const EffectList list = draw_effects(options, {7, 1, i});
    for (int n = 0; n < list.count; ++n) {
      ++seen[list.effect[n].kind];
      if (n > 0) {
        EXPECT_LT(list.effect[n - 1].kind, list.effect[n].kind);
      }
    }
  }
  EXPECT_EQ(seen[EffectKind::kAffine], kDraws);
  EXPECT_EQ(seen[EffectKind::kContrast], kDraws);
  EXPECT_NEAR(seen[EffectKind::kGrey], 0.1 * kDraws, 200);
  EXPECT_NEAR(seen[EffectKind::kBlur], 0.25 * kDraws, 250);
}

TEST(DrawEffects, IsEmptyIfAllIsOff) {
  AugmentOptions options;
  options.size = 64;
  EXPECT_EQ(draw_effects(options, {7, 1, 5}).count, 0);
  EXPECT_FALSE(has_effects(options));
}

TEST(DrawEffects, EachOptionIsKnownToHaveEffects) {
  using Option = double AugmentOptions::*;
  for (const Option option :
       {Option(nullptr), &AugmentOptions::rotate, &AugmentOptions::shear,
        &AugmentOptions::translate, &AugmentOptions::zoom, &AugmentOptions::brightness,
        &AugmentOptions::contrast, &AugmentOptions::saturation, &AugmentOptions::hue,
        &AugmentOptions::grey, &AugmentOptions::blur, &AugmentOptions::gaussian_noise,
        &AugmentOptions::erase}) {
    AugmentOptions options;
    options.size = 64;
    if (option)
      options.*option = 0.5;
    else
      options.policy = Policy::kTrivial;
    int drawn = 0;
    for (uint64_t i = 0; i < 40; ++i) drawn += draw_effects(options, {7, 1, i}).count;
    EXPECT_GT(drawn, 0);
    EXPECT_TRUE(has_effects(options));
  }
}

TEST(DrawEffects, OneOperationDoesNotInfluenceAnother) {
  const EffectList all = draw_effects(everything(), {7, 1, 5});
  AugmentOptions options;
  options.size = 64;
  options.hue = 0.2;
  const EffectList hue = draw_effects(options, {7, 1, 5});
  ASSERT_EQ(hue.count, 1);
  ASSERT_EQ(all.effect[4].kind, EffectKind::kHue);
  EXPECT_EQ(hue.effect[0].value[0], all.effect[4].value[0]);
  EXPECT_NE(hue.effect[0].value[0], draw_effects(options, {7, 2, 5}).effect[0].value[0]);
  EXPECT_NE(hue.effect[0].value[0], draw_effects(options, {8, 1, 5}).effect[0].value[0]);
  EXPECT_NE(hue.effect[0].value[0], draw_effects(options, {7, 1, 6}).effect[0].value[0]);
}

// The values that draw_effects and draw_affine draw, by the names in effect_draws.txt.
std::map<std::string, std::vector<double>> drawn_values(int draws) {
  AugmentOptions options = everything();
  options.erase = 1;
  std::map<std::string, std::vector<double>> values;
  for (int i = 0; i < draws; ++i) {
    const SampleKey key{3, 0, uint64_t(i)};
    const AffineSpec affine = draw_affine(options, key);
    values["angle"].push_back(affine.angle);
    values["translate_x"].push_back(affine.translate_x);
    values["translate_y"].push_back(affine.translate_y);
    values["scale"].push_back(affine.scale);
    values["shear_x"].push_back(affine.shear_x);
    const EffectList list = draw_effects(options, key);
    for (int n = 0; n < list.count; ++n) {
      const Effect& effect = list.effect[n];
      for (const char* name : {"brightness", "contrast", "saturation", "hue"})
        if (effect.kind == kind_of(name)) values[name].push_back(double(effect.value[0]));
      if (effect.kind != EffectKind::kErase) continue;
      values["erase_x"].push_back(double(effect.value[0]));
      values["erase_y"].push_back(double(effect.value[1]));
      values["erase_width"].push_back(double(effect.value[2]));
      values["erase_height"].push_back(double(effect.value[3]));
    }
  }
  return values;
}

TEST(DrawEffects, IsDistributedLikeTorchvisions) {
  const auto values = drawn_values(100000);
  size_t cases = 0;
  for (auto& line : golden_lines("effect_draws.txt")) {
    std::string quantity;
    line >> quantity;
    const auto found = values.find(quantity);
    if (found == values.end()) continue;
    EXPECT_LT(testing::share_distance(found->second, line),
              testing::share_limit(found->second.size()))
        << quantity;
    ++cases;
  }
  EXPECT_EQ(cases, 13u);
}

TEST(DrawEffects, BlurSigmaIsUniform) {
  AugmentOptions options;
  options.size = 64;
  options.blur = 1;
  options.blur_sigma_min = 0.5;
  options.blur_sigma_max = 1.5;
  int below[10] = {};
  constexpr int kDraws = 100000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double sigma = double(draw_effects(options, {7, 1, i}).effect[0].value[0]);
    ++below[std::clamp(static_cast<int>((sigma - 0.5) * 10), 0, 9)];
  }
  double chi_square = 0;
  for (const int count : below) chi_square += std::pow(count - kDraws / 10, 2) / (kDraws / 10.0);
  EXPECT_LT(chi_square, 27.9);  // 9 degrees of freedom, p = 0.001
}

}  // namespace
}  // namespace saturate
