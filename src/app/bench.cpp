// saturate bench: benchmarks of one part at a time.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "advise/warm_source.h"
#include "app/bench_report.h"
#include "app/command.h"
#include "base/files.h"
#include "base/thread_pool.h"
#include "data/source_index.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"

namespace saturate {
namespace {

// One loader, kept warm: its threads wait between repetitions.
struct Variant {
  std::unique_ptr<Loader> loader;
  BenchRow row;
  std::vector<double> cpu_ms = {};  // of all threads, per image; as many as row.values
  uint32_t epoch = 0;
  size_t images = 0, packed = 0;  // in total

  // Images per second over whole epochs of at least `seconds` in total, or over that time of a
  // longer epoch: up to a batch boundary, when the threads have hardly begun the next batch.
  void measure(Env& env, double seconds) {
    loader->start_epoch(epoch++);  // not timed: shuffling a large source takes a while
    const int64_t start = env.now_ns();
    const std::clock_t cpu_start = std::clock();
    const auto passed = [&] { return double(env.now_ns() - start) * 1e-9; };
    size_t done = 0;
    double now = 0;
    while (true) {
      const double begin = now;
      for (Batch batch; now - begin <= seconds && loader->next(batch); now = passed()) {
        done += batch.count();
        packed += size_t(std::ranges::count(batch.samples, true, &BatchSample::is_packed));
      }
      now = passed();  // also if every image was skipped
      if (now >= seconds) break;
      loader->start_epoch(epoch++);
    }
    loader->stop();  // it would otherwise run while others are measured
    row.values.push_back(double(done) / now);
    cpu_ms.push_back(1e3 * double(std::clock() - cpu_start) / CLOCKS_PER_SEC / double(done));
    images += done;
  }
};

LoaderOptions options_of(const Recipe& recipe, int threads) {
  LoaderOptions options;
  options.batch =
      size_t(recipe.train.batch == kAutomatic ? TrainOptions().batch : recipe.train.batch);
  options.threads = threads;
  options.prefetch = recipe.data.prefetch;
  options.on_error = recipe.data.on_error;
  options.seed = recipe.seed;
  options.wait_limit = wait_limit_for(recipe.data.store);
  return options;
}

// A row for each number of threads: tensors are neither decoded nor converted.
std::vector<Variant> tensor_variants(const Dataset& data, const Recipe& recipe,
                                     const std::vector<int>& threads) {
  std::vector<Variant> variants;
  for (const int count : threads) {
    LoaderOptions options = options_of(recipe, count);
    options.output = BatchOutput::kTensors;
    variants.push_back(
        {std::make_unique<Loader>(data, options, recipe.augment),
         {fmt::format("tensors threads={}", count), "samples/s", {}, {{"threads", count}}}});
  }
  return variants;
}

std::vector<Variant> make_variants(const Dataset& data, const Recipe& recipe,
                                   const std::vector<int>& threads) {
  if (!data.tensors().empty()) return tensor_variants(data, recipe, threads);
  std::vector<Variant> variants;
  for (const int count : threads) {
    for (const auto& [decode, decode_name] :
         {std::pair{DecodeMode::kExact, "exact"}, {DecodeMode::kFast, "fast"}}) {
      if (decode == DecodeMode::kFast && recipe.data.cache.mode == CacheMode::kRam &&
          recipe.data.cache.form == CacheForm::kDecoded)
        continue;  // not allowed in a recipe
      for (const auto& [type, type_name] : {std::pair{PixelType::kUint8, "uint8"},
                                            {PixelType::kBfloat16, "bf16"},
                                            {PixelType::kFloat32, "fp32"}}) {
        LoaderOptions options = options_of(recipe, count);
        options.type = type;
        options.decode = decode;
        variants.push_back({std::make_unique<Loader>(data, options, recipe.augment),
                            {fmt::format("{} {} threads={}", decode_name, type_name, count),
                             "images/s",
                             {},
                             {{"decode", decode_name}, {"type", type_name}, {"threads", count}}}});
      }
    }
  }
  return variants;
}

// Rows of a loader that packs JPEGs for decoding on a GPU (data.decode_device=cuda).
void add_packing(const Dataset& data, const Recipe& recipe, const std::vector<int>& threads,
                 std::vector<Variant>& variants) {
  if (!data.tensors().empty())
    fail(ErrorKind::kUsage, "the source has tensors, and only JPEGs are packed", "--pack",
         "Remove it");
  for (const int count : threads) {
    LoaderOptions options = options_of(recipe, count);
    options.output = BatchOutput::kUnfinished;
    options.decode = DecodeMode::kFast;
    options.packs = true;
    variants.push_back({std::make_unique<Loader>(data, options, recipe.augment),
                        {fmt::format("packed, not decoded threads={}", count),
                         "images/s",
                         {},
                         {{"decode", "packed"}, {"type", "uint8"}, {"threads", count}}}});
  }
}

// A row for packing says how many images were not packed, but decoded.
void note_packed(Variant& variant) {
  if (variant.row.keys.value("decode", "") != "packed") return;
  const double share = double(variant.packed) / double(std::max<size_t>(1, variant.images));
  variant.row.keys["packed_share"] = share;
  if (share == 0)
    fail(ErrorKind::kData, "no image of the source can be packed", "--pack",
         "Give JPEGs in segments (saturate data pack) or in a file data.index, an augment.crop "
         "other than pad and letterbox, and an augment.size of 200 or more");
  if (share < 1) variant.row.name += fmt::format(" ({:.1f} % were decoded)", 100 * (1 - share));
}

int bench_loader(const BenchInput& arguments) {
  require_release_build();
  Env& env = Env::posix();
  const Recipe recipe = recipe_of(env, arguments);
  const int own_threads = recipe.data.threads > 0 ? recipe.data.threads : available_cores();
  const std::vector<int> threads =
      arguments.threads.empty() ? std::vector{own_threads} : arguments.threads;
  auto source =
      stage_dataset(env, open_dataset(env, recipe.data.source, recipe.data.store_options()),
                    recipe.data.source, recipe.data.stage, own_threads);
  if (recipe.data.index.mode != IndexMode::kAuto)  // else only in each loader's memory
    source = with_index(std::move(source),
                        open_source_index(env, recipe.data.source, recipe.data.index));
  const auto data = warm_source(*source, recipe.data.cache,
                                spread_samples(source->size(), size_t(arguments.cached)));
  std::vector<Variant> variants = make_variants(*data, recipe, threads);
  if (arguments.pack) add_packing(*data, recipe, threads, variants);
  // One warm-up each fills buffers; then the variants are interleaved, so that a machine that slows
  // down affects all of them.
  for (Variant& variant : variants) {
    variant.measure(env, arguments.seconds);
    variant.row.values.clear();
    variant.cpu_ms.clear();
    variant.images = variant.packed = 0;
  }
  for (int i = 0; i < arguments.repeats; ++i)
    for (Variant& variant : variants) variant.measure(env, arguments.seconds);
  BenchReport report{"loader", {}};
  for (Variant& variant : variants) {
    variant.row.keys["cpu_ms_per_image"] = median_of(variant.cpu_ms);
    variant.row.keys["images"] = variant.images;
    note_packed(variant);
    report.rows.push_back(std::move(variant.row));
  }
  return publish(report, arguments.json);
}

void add_loader(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<BenchInput>(
      bench, exit_code, "loader",
      "Images per second of the loader: exact and fast decoding; uint8, bf16 and fp32",
      bench_loader, {.repeats = 7, .seconds = 0.5});
  add_bench_input(command, arguments);
  command.add_flag("--pack", arguments.pack,
                   "Also a row without decoding: JPEGs in segments are packed for a GPU "
                   "(data.decode_device=cuda)");
  add_number(command, "--cached", arguments.cached, 1, 1 << 30,
             "With data.cache: number of samples that are cached first and represent the source");
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure one part at a time");
  bench->require_subcommand(1);
  for (const auto add : {add_loader, add_bench_storage, add_bench_augment, add_bench_step,
                         add_bench_memory, add_bench_ledger, add_bench_allreduce})
    add(*bench, exit_code);
}

void add_bench_input(CLI::App& command, BenchInput& arguments) {
  command
      .add_option("INPUT", arguments.input,
                  "A recipe, or a source, which is then used with 224 pixels and random_resized")
      ->required();
  add_settings(command, arguments.overrides);
  auto* threads = command.add_option(
      "--threads", arguments.threads,
      arguments.threads.empty() ? "Numbers of threads, such as 1,2; default: one per available core"
                                : "Numbers of threads, such as 1,2");
  threads->delimiter(',')->check(CLI::Range(1, 1024));
  if (!arguments.threads.empty()) threads->capture_default_str();
  add_number(command, "--repeats", arguments.repeats, 1, 1000, "Measurements of each row");
  add_number(command, "--seconds", arguments.seconds, 0.0, 3600.0,
             "Minimum length of one measurement");
  add_json_option(command, arguments.json);
}

Recipe recipe_of(Env& env, const BenchInput& arguments) {
  const std::string file = file_or_shipped(env, "recipes", arguments.input);
  if (file.ends_with(".toml")) return load_recipe(env, file, arguments.overrides);
  std::vector<std::string> settings = {"data.source=" + arguments.input, "augment.size=224",
                                       "augment.crop=random_resized"};
  settings.insert(settings.end(), arguments.overrides.begin(), arguments.overrides.end());
  return parse_recipe("", "the command line", settings);
}

}  // namespace saturate
