// saturate bench augment: the cost of each step from decoded pixels to a finished sample.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "app/bench_report.h"
#include "app/command.h"
#include "base/thread_pool.h"
#include "saturate/data/augment.h"
#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kImages = 64;  // maximum, decoded in advance

std::vector<Image> decoded_images(const Dataset& data) {
  std::vector<Image> images(std::min(data.size(), kImages));
  Decoder decoder;
  Sample sample;
  for (size_t i = 0; i < images.size(); ++i) {
    data.read(i, sample);
    decode_sample(decoder, sample, images[i]);
  }
  return images;
}

// A thread's own memory; shared data is only read.
struct Workbench {
  const AugmentOptions& options;
  const Normalize normalize;
  Resizer resizer = {};
  EffectScratch scratch = {};
  std::vector<uint8_t> pixels = {};  // [height, width, 3]
  std::vector<float> values = {};    // [height, width, 3]

  explicit Workbench(const AugmentOptions& augment)
      : options(augment), normalize(make_normalize(augment)) {
    pixels.resize(size_t(augment.size.area()) * 3);
    values.resize(pixels.size());
  }
  void crop(const Image& image, const SampleKey& key) {
    RandomStream random = key.stream(RandomUse::kAugment);
    const SampleTransform drawn = draw_transform(options, random, image.width, image.height);
    apply_transform(options, drawn, image, resizer, pixels.data());
  }
  void apply(const EffectList& list) { apply_effects(list, options.size, scratch, pixels.data()); }
  void finish() { normalize_pixels(normalize, pixels, values.data()); }
};

using Step = std::function<void(Workbench&, const Image& image, const SampleKey& key)>;
struct Operation {
  std::string name;
  Step step;
  bool begins_cut = true;  // Workbench::pixels holds the cropped image, else the step makes it
};

Effect affine_effect() {
  Effect effect{EffectKind::kAffine, {}};
  AffineSpec spec;
  spec.angle = 15;
  spec.scale = 1.1;
  set_affine(spec, effect);
  return effect;
}

std::vector<Operation> operations(const ImageSize& size) {
  const float quarter = static_cast<float>(size.shorter() / 4);
  const std::pair<const char*, Effect> effects[] = {
      {"affine", affine_effect()},
      {"brightness", {EffectKind::kBrightness, {1.2f}}},
      {"contrast", {EffectKind::kContrast, {1.2f}}},
      {"saturation", {EffectKind::kSaturation, {1.2f}}},
      {"hue", {EffectKind::kHue, {0.1f}}},
      {"grey", {EffectKind::kGrey, {}}},
      {"blur, sigma 1", {EffectKind::kBlur, {1}}},
      {"erase", {EffectKind::kErase, {quarter, quarter, 2 * quarter, 2 * quarter, 1, 2, 3}}},
      {"sharpness", {EffectKind::kSharpness, {1.2f}}},
      {"posterize", {EffectKind::kPosterize, {4}}},
      {"solarize", {EffectKind::kSolarize, {128}}},
      {"autocontrast", {EffectKind::kAutocontrast, {}}},
      {"equalize", {EffectKind::kEqualize, {}}}};
  std::vector<Operation> all = {
      {"crop and resize",
       [](Workbench& bench, const Image& image, const SampleKey& key) { bench.crop(image, key); },
       false}};
  for (const auto& [name, effect] : effects) {
    EffectList list;
    list.effect[list.count++] = effect;
    all.push_back(
        {name, [list](Workbench& bench, const Image&, const SampleKey&) { bench.apply(list); }});
  }
  all.push_back(
      {"normalise", [](Workbench& bench, const Image&, const SampleKey&) { bench.finish(); }});
  all.push_back({"recipe",
                 [](Workbench& bench, const Image& image, const SampleKey& key) {
                   bench.crop(image, key);
                   bench.apply(draw_effects(bench.options, key));
                   bench.finish();
                 },
                 false});
  return all;
}

struct AugmentVariant {
  Operation operation;
  int threads;
  BenchRow row;
};

// Images per second of one core. Effects start from a fresh cropped image each time, whose copy is
// included: some effects are slower on their own output.
double measure(Env& env, const AugmentVariant& variant, const Recipe& recipe,
               const std::vector<Image>& images, const std::vector<std::vector<uint8_t>>& cut,
               double seconds) {
  std::vector<double> rates(size_t(variant.threads), 0.0);
  parallel_for(rates.size(), variant.threads, [&](size_t thread) {
    Workbench bench(recipe.augment);
    uint64_t done = 0;
    const int64_t start = env.now_ns();
    double passed = 0;
    while (passed < seconds || done == 0) {
      for (size_t i = 0; i < images.size(); ++i, ++done) {
        if (variant.operation.begins_cut)
          std::memcpy(bench.pixels.data(), cut[i].data(), cut[i].size());
        variant.operation.step(bench, images[i], {recipe.seed, uint32_t(thread), done});
      }
      passed = double(env.now_ns() - start) * 1e-9;
    }
    rates[thread] = double(done) / passed;
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0) / variant.threads;
}

std::vector<AugmentVariant> make_variants(const ImageSize& size, const std::vector<int>& threads) {
  std::vector<AugmentVariant> variants;
  for (const int count : threads)
    for (Operation& operation : operations(size)) {
      const std::string name = fmt::format("{} threads={}", operation.name, count);
      BenchRow row{name, "images/s/core", {}, {{"operation", operation.name}, {"threads", count}}};
      variants.push_back({std::move(operation), count, std::move(row)});
    }
  return variants;
}

int bench_augment(const BenchInput& arguments) {
  require_release_build();
  Env& env = Env::posix();
  Recipe recipe = recipe_of(env, arguments);
  const auto data = open_dataset(env, recipe.data.source, recipe.data.store_options());
  const std::vector<Image> images = decoded_images(*data);
  if (!recipe.augment.size.is_set())
    recipe.augment.size = std::min(images[0].width, images[0].height);
  std::vector<std::vector<uint8_t>> cut;
  Workbench bench(recipe.augment);
  for (size_t i = 0; i < images.size(); ++i) {
    bench.crop(images[i], {recipe.seed, 0, i});
    cut.push_back(bench.pixels);
  }
  std::vector<AugmentVariant> variants = make_variants(recipe.augment.size, arguments.threads);
  for (AugmentVariant& variant : variants) measure(env, variant, recipe, images, cut, 0);
  for (int i = 0; i < arguments.repeats; ++i)
    for (AugmentVariant& variant : variants)
      variant.row.values.push_back(measure(env, variant, recipe, images, cut, arguments.seconds));
  BenchReport report{"augment", {}};
  for (AugmentVariant& variant : variants) {
    variant.row.keys["us_per_image"] = 1e6 / median_of(variant.row.values);
    report.rows.push_back(std::move(variant.row));
  }
  return publish(report, arguments.json);
}

}  // namespace

void add_bench_augment(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<BenchInput>(
      bench, exit_code, "augment",
      "Images per second and core of each effect, and of a recipe's whole chain", bench_augment,
      {.threads = {1}, .repeats = 5, .seconds = 0.2});
  add_bench_input(command, arguments);
}

}  // namespace saturate
