// Pictures with a height and a width against torchvision and Pillow; see
// tests/oracles/nonsquare_goldens.py.
#include <gtest/gtest.h>

#include <map>

#include "image/policies.h"
#include "saturate/data/augment.h"
#include "tests/effect_testing.h"

namespace saturate {
namespace {

// The oracle's picture.
Image formula_picture(const ImageSize& size) {
  Image image;
  image.resize(size.width, size.height);
  for (int y = 0; y < size.height; ++y)
    for (int x = 0; x < size.width; ++x)
      for (int c = 0; c < 3; ++c)
        image.row(y)[x * 3 + c] = uint8_t((x * (7 + c) + y * y * 3 + 31 * c + x * y) % 256);
  return image;
}

Effect golden_effect(const std::string& name, const std::vector<float>& p) {
  static const std::map<std::string, EffectKind> kinds = {{"affine", EffectKind::kAffine},
                                                          {"blur", EffectKind::kBlur},
                                                          {"sharpness", EffectKind::kSharpness},
                                                          {"contrast", EffectKind::kContrast},
                                                          {"erase", EffectKind::kErase}};
  Effect effect{kinds.at(name), {}};
  if (effect.kind == EffectKind::kAffine) {
    AffineSpec spec{p[0], p[1], p[2], p[3], p[4], p[5]};
    if (p.size() > 6) spec.center_x = p[6], spec.center_y = p[7];
    set_affine(spec, effect);
  } else {
    std::copy(p.begin(), p.end(), effect.value);
  }
  return effect;
}

std::vector<float> rest_of(std::istringstream& line) {
  std::vector<float> numbers;
  for (float number = 0; line >> number;) numbers.push_back(number);
  return numbers;
}

// Each kind of case, with `data` at its first value.
struct Oracle {
  std::ifstream data{testing::golden("nonsquare.bin"), std::ios::binary};

  template <class T>
  std::vector<T> next(const ImageSize& size) {
    std::vector<T> values(size_t(size.area()) * 3);
    data.read(reinterpret_cast<char*>(values.data()), std::streamsize(values.size() * sizeof(T)));
    EXPECT_TRUE(data.good());
    return values;
  }

  void effect(const ImageSize& size, std::istringstream& line) {
    std::string name;
    line >> name;
    const Effect effect = golden_effect(name, rest_of(line));
    testing::expect_levels(testing::applied({effect}, formula_picture(size).pixels, size),
                           next<float>(size), 1e-4, line.str());
  }

  void letterbox(const ImageSize& size, std::istringstream& line) {
    ImageSize in;
    int flip = 0;
    line >> in.height >> in.width >> flip;
    AugmentOptions options;
    options.size = size;
    options.crop = CropKind::kLetterbox;
    SampleTransform transform = eval_transform(options, in.width, in.height);
    transform.flip = flip != 0;
    std::vector<uint8_t> out(size_t(size.area()) * 3);
    Resizer resizer;
    apply_transform(options, transform, formula_picture(in), resizer, out.data());
    const auto expected = next<uint8_t>(size);
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_LE(std::abs(out[i] - expected[i]), 1) << line.str() << ", value " << i;
  }

  void mask(const ImageSize& size, std::istringstream& line) {
    ImageSize in;
    SampleTransform transform;
    Box& crop = transform.crop;
    line >> in.height >> in.width >> crop.x >> crop.y >> crop.width >> crop.height >>
        transform.flip;
    std::vector<std::string> words;
    for (std::string word; line >> word;) words.push_back(word);
    EffectList list;
    if (words.size() > 1) {
      std::vector<float> affine;
      for (size_t i = 0; i + 1 < words.size(); ++i) affine.push_back(std::stof(words[i]));
      list.effect[list.count++] = golden_effect("affine", affine);
    }
    std::vector<uint8_t> classes, out(size_t(size.area()));
    for (int y = 0; y < in.height; ++y)
      for (int x = 0; x < in.width; ++x) classes.push_back(uint8_t((7 * x + y * y) % 20));
    AugmentOptions options;
    options.size = size;
    transform_mask(options, transform, list, {in.width, in.height, classes.data()}, 99, out.data());
    EXPECT_EQ(testing::crc(out), words.back()) << line.str();
  }

  void magnitude(const ImageSize& size, std::istringstream& line) {
    static const std::map<std::string, PolicyOp> ops = {{"TranslateX", PolicyOp::kTranslateX},
                                                        {"TranslateY", PolicyOp::kTranslateY},
                                                        {"ShearX", PolicyOp::kShearX}};
    std::string name;
    line >> name;
    const std::vector<float> expected = rest_of(line);
    ASSERT_EQ(expected.size(), size_t{kPolicyMagnitudes});
    for (int bin = 0; bin < kPolicyMagnitudes; ++bin)
      EXPECT_NEAR(policy_magnitude(Policy::kRand, ops.at(name), bin, size), expected[size_t(bin)],
                  1e-5)
          << line.str();
  }
};

TEST(NonSquare, EqualsTorchvisionAndPillow) {
  Oracle oracle;
  std::map<std::string, int> cases;
  for (auto& line : testing::golden_lines("nonsquare.txt")) {
    std::string kind;
    ImageSize size;
    line >> kind >> size.height >> size.width;
    if (kind == "effect") oracle.effect(size, line);
    if (kind == "letterbox") oracle.letterbox(size, line);
    if (kind == "mask") oracle.mask(size, line);
    if (kind == "magnitude") oracle.magnitude(size, line);
    ++cases[kind];
  }
  const std::map<std::string, int> all = {
      {"effect", 18}, {"letterbox", 6}, {"mask", 4}, {"magnitude", 6}};
  EXPECT_EQ(cases, all);
}

AugmentOptions options_for(CropKind kind, const ImageSize& size) {
  AugmentOptions options;
  options.crop = kind;
  options.size = size;
  return options;
}

// As torchvision's Resize to cover the size and CenterCrop, on the pixels of the source.
TEST(NonSquare, EvaluationCropsTheCentreWithTheSizesRatio) {
  AugmentOptions options = options_for(CropKind::kCenter, {100, 200});
  EXPECT_EQ(eval_transform(options, 400, 300).crop, (Box{0, 50, 400, 200}));
  EXPECT_EQ(eval_transform(options, 300, 400).crop, (Box{0, 125, 300, 150}));
  EXPECT_EQ(eval_transform(options, 900, 300).crop, (Box{150, 0, 600, 300}));
  options.eval_resize = 1.25;
  EXPECT_EQ(eval_transform(options, 400, 300).crop, (Box{40, 70, 320, 160}));
  EXPECT_EQ(eval_transform(options, 1, 1).crop, (Box{0, 0, 1, 1}));
}

TEST(NonSquare, LetterboxCentresTheFittedImage) {
  const auto fitted = [](const ImageSize& size, int width, int height) {
    return eval_transform(options_for(CropKind::kLetterbox, size), width, height).fitted;
  };
  EXPECT_EQ(fitted({100, 200}, 50, 50), (Box{50, 0, 100, 100}));
  EXPECT_EQ(fitted({100, 200}, 800, 200), (Box{0, 25, 200, 50}));
  EXPECT_EQ(fitted({100, 200}, 400, 200), Box{});
  EXPECT_EQ(fitted({9, 9}, 4, 8), (Box{2, 0, 4, 9}));  // 4.5 columns
  EXPECT_EQ(fitted({8, 8}, 1000, 1), (Box{0, 3, 8, 1}));
  // An image of the output's size, such as a held one, is not padded again.
  EXPECT_EQ(fitted({40, 64}, 64, 40), Box{});
}

TEST(NonSquare, DrawsStayInsideTheirSide) {
  AugmentOptions options = options_for(CropKind::kRandomResized, {20, 50});
  options.translate = 0.2;
  options.erase = 1;
  options.cutmix = 1;
  double furthest_x = 0, furthest_y = 0;
  int lowest = 0, rightmost = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    const SampleKey key{3, 0, i};
    const AffineSpec affine = draw_affine(options, key);
    furthest_x = std::max(furthest_x, std::abs(affine.translate_x));
    furthest_y = std::max(furthest_y, std::abs(affine.translate_y));
    const EffectList list = draw_effects(options, key);
    for (int n = 0; n < list.count; ++n) {
      const float* const box = list.effect[n].value;
      if (list.effect[n].kind != EffectKind::kErase) continue;
      EXPECT_LE(box[0] + box[2], 50);
      EXPECT_LE(box[1] + box[3], 20);
    }
    const Mix mix = draw_mix(options, key, 8);
    lowest = std::max(lowest, mix.box.y + mix.box.height);
    rightmost = std::max(rightmost, mix.box.x + mix.box.width);
    EXPECT_NEAR(mix.lambda, 1 - mix.box.width * mix.box.height / 1000.0, 1e-12);
  }
  EXPECT_EQ(furthest_x, 10);
  EXPECT_EQ(furthest_y, 4);
  EXPECT_EQ(lowest, 20);
  EXPECT_EQ(rightmost, 50);
}

// A CutMix of planar images equals that of interleaved ones.
TEST(NonSquare, CutMixTakesTheBoxInEitherLayout) {
  const ImageSize size(3, 5);
  const Mix mix{MixKind::kCutMix, 0.5, 1, {2, 1, 3, 2}};
  std::vector<float> planar(2 * 45), interleaved(2 * 45);
  const auto at = [](size_t n, size_t c, size_t y, size_t x, bool is_planar) {
    return n * 45 + (is_planar ? (c * 3 + y) * 5 + x : (y * 5 + x) * 3 + c);
  };
  const auto for_each = [&](const auto& visit) {
    for (size_t n = 0; n < 2; ++n)
      for (size_t c = 0; c < 3; ++c)
        for (size_t y = 0; y < 3; ++y)
          for (size_t x = 0; x < 5; ++x) visit(n, c, y, x);
  };
  const auto value = [](size_t n, size_t c, size_t y, size_t x) {
    return float(n * 1000 + c * 100 + y * 10 + x);
  };
  for_each([&](size_t n, size_t c, size_t y, size_t x) {
    planar[at(n, c, y, x, true)] = interleaved[at(n, c, y, x, false)] = value(n, c, y, x);
  });
  for (auto* images : {&planar, &interleaved})
    mix_images(mix, PixelType::kFloat32, images == &planar, 2, size,
               reinterpret_cast<std::byte*>(images->data()));
  for_each([&](size_t n, size_t c, size_t y, size_t x) {
    const bool is_other = x >= 2 && y >= 1;
    const float expected = value(is_other ? 1 - n : n, c, y, x);
    EXPECT_EQ(planar[at(n, c, y, x, true)], expected);
    EXPECT_EQ(interleaved[at(n, c, y, x, false)], expected);
  });
}

}  // namespace
}  // namespace saturate
