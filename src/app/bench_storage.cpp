// saturate bench storage: how fast sources deliver samples, undecoded.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "app/bench_report.h"
#include "app/command.h"
#include "app/scratch_folder.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "data/crop_rows.h"
#include "data/read_ahead.h"
#include "data/sources.h"
#include "saturate/data/dataset.h"
#include "saturate/data/loader.h"
#include "store/link.h"
#include "store/object_store.h"
#include "store/store_env.h"

namespace saturate {
namespace {

struct StorageArguments {
  std::vector<std::string> sources;
  std::string json;
  std::vector<int> threads;
  int repeats = 3, block = 128;
  size_t samples = 4096;
  StoreOptions store;
};

struct Order {
  const char* name;
  ShuffleMode mode;
};
constexpr Order kOrders[] = {{"sequential", ShuffleMode::kNone},
                             {"block", ShuffleMode::kBlock},
                             {"shuffled", ShuffleMode::kFull}};

struct LinkColumn {
  const char* unit;
  double LinkUse::*value;
  double scale;
};
constexpr LinkColumn kLinkColumns[] = {
    {"network MB/s", &LinkUse::bytes_per_s, 1e-6},
    {"requests/s", &LinkUse::requests_per_s, 1},
    {"ms to the first byte", &LinkUse::first_byte_s, 1e3},
    {"ms to the first byte (95th percentile)", &LinkUse::late_first_byte_s, 1e3},
    {"% from the cache on disk", &LinkUse::disk_share, 100}};

// Those of most trainings on photographs.
AugmentOptions usual_crops() {
  AugmentOptions augment;
  augment.size = 224;
  augment.crop = CropKind::kRandomResized;
  return augment;
}

// A source, read in one order by some threads.
struct StorageVariant {
  const Dataset& data;
  Order order;
  int threads;
  bool cold;
  BenchRow samples, megabytes;     // per second
  std::vector<BenchRow> far = {};  // for objects of a store: the columns of kLinkColumns
  StoreCounts all_use = {};        // summed over all measurements,
  double all_s = 0;                // and their seconds
  LinkUse link = {};
  double crop_share = 1;  // see LinkUse, also for the next
  bool is_packed = false;

  // Reads the first samples of an epoch in that order.
  void measure(Env& env, uint32_t epoch, const StorageArguments& arguments) {
    constexpr uint64_t kSeed = 1;
    const ShuffleOptions shuffle{order.mode, arguments.block};
    std::vector<uint32_t> order_of = epoch_order(data.size(), kSeed, epoch, shuffle);
    order_of.resize(std::min(order_of.size(), arguments.samples));
    if (cold) {
      if (store_counts(env, arguments.store)) shared_store(env, arguments.store)->empty_cache();
      for (const uint32_t sample : order_of) data.advise(ReadAdvice::kNotAgain, sample, 1);
    }
    ReadAhead ahead(data, shuffle, kSeed, size_t(2 * threads), /*idle=*/false);
    std::vector<Sample> scratch(size_t(threads), Sample{});
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> bytes{0};
    const std::optional<StoreCounts> before = store_counts(env, arguments.store);
    const int64_t start = env.now_ns();
    ahead.start(epoch, 0, order_of, 0, order_of.size());
    parallel_for(size_t(threads), threads, [&](size_t thread) {
      for (size_t i; (i = next++) < order_of.size();) {
        if (thread == 0) ahead.advance(i, i);
        require_running();
        data.read(order_of[i], scratch[thread]);
        bytes += scratch[thread].bytes.size();
      }
    });
    const double seconds = double(env.now_ns() - start) * 1e-9;
    samples.values.push_back(double(order_of.size()) / seconds);
    megabytes.values.push_back(double(bytes) * 1e-6 / seconds);
    if (before) shared_store(env, arguments.store)->flush();  // for the warm variant that follows
    if (!before || data.look_ahead() == 0) return;
    const StoreCounts after = *store_counts(env, arguments.store);
    const LinkUse use = link_use(*before, after, seconds);
    add_use(all_use, *before, after);
    all_s += seconds;
    link = link_use(all_use, all_s);
    link.crop_share = crop_share;
    link.is_packed = is_packed;
    link.in_random_order = order.mode == ShuffleMode::kFull;
    far.resize(std::size(kLinkColumns), {samples.name, "", {}, samples.keys});
    for (size_t i = 0; i < far.size(); ++i) {
      far[i].unit = kLinkColumns[i].unit;
      far[i].values.push_back(kLinkColumns[i].scale * (use.*kLinkColumns[i].value));
    }
  }
};

std::vector<StorageVariant> make_storage_variants(const Dataset& data, const std::string& source,
                                                  bool is_packed, const std::vector<int>& threads) {
  const double crop_share = data.look_ahead() > 0 ? crop_share_of(data, usual_crops()) : 1;
  std::vector<StorageVariant> variants;
  for (const int count : threads) {
    for (const Order& order : kOrders) {
      for (const bool cold : {true, false}) {
        const std::string name =
            fmt::format("{} {} {} threads={}", source, order.name, cold ? "cold" : "warm", count);
        const nlohmann::ordered_json keys = {
            {"source", source}, {"order", order.name}, {"cold", cold}, {"threads", count}};
        variants.push_back(
            {data, order, count, cold, {name, "samples/s", {}, keys}, {name, "MB/s", {}, keys}});
        variants.back().crop_share = crop_share;
        variants.back().is_packed = is_packed;
      }
    }
  }
  return variants;
}

int measure_storage(Env& env, const StorageArguments& arguments) {
  const std::vector<int> threads =
      arguments.threads.empty() ? std::vector{available_cores()} : arguments.threads;
  std::vector<std::unique_ptr<Dataset>> sources;
  std::vector<StorageVariant> variants;
  for (const std::string& source : arguments.sources) {
    sources.push_back(open_dataset(env, source, arguments.store));
    for (StorageVariant& variant : make_storage_variants(
             *sources.back(), without_queries(source), !has_file_per_sample(env, source), threads))
      variants.push_back(std::move(variant));
  }
  // A warm variant follows the cold one that read the same samples; interleaving lets a machine
  // that slows down affect all of them.
  for (int i = 0; i < arguments.repeats; ++i)
    for (StorageVariant& variant : variants) variant.measure(env, uint32_t(i), arguments);
  BenchReport report{"storage", {}};
  for (StorageVariant& variant : variants) {
    report.rows.push_back(variant.samples);  // its name is printed below
    report.rows.push_back(std::move(variant.megabytes));
    std::ranges::move(variant.far, std::back_inserter(report.rows));
  }
  return publish(report, arguments.json, [&](const BenchReport&) {
    print_report(report);
    for (const StorageVariant& variant : variants) {
      if (variant.link.requests_per_s > 0)
        fmt::print("\n{}: {}\n", variant.samples.name, link_text(variant.link));
      for (const std::string& line : link_advice(variant.link)) fmt::print("  {}\n", line);
    }
  });
}

int bench_storage(const StorageArguments& given) {
  require_release_build();
  StorageArguments arguments = given;
  std::optional<ScratchFolder> cache;  // its own, since cold measurements empty it
  if (const std::string folder = checked_cache_folder(given.store.cache_dir); !folder.empty()) {
    catch_stop_signals_of_writing("removing its cache");
    arguments.store.cache_dir = cache.emplace(folder).path();
  }
  return until_stopped([&] { return measure_storage(Env::posix(), arguments); });
}

}  // namespace

void add_bench_storage(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<StorageArguments>(
      bench, exit_code, "storage",
      "Samples and MB per second of sources, undecoded: in their own order, by blocks and "
      "shuffled; cold (after dropping them from the page cache) and warm",
      bench_storage);
  command.add_option("SOURCE", arguments.sources, "Sources, as data.source of a recipe")
      ->required();
  command
      .add_option("--threads", arguments.threads,
                  "Numbers of threads, such as 1,2; default: one per available core")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  add_number(command, "--samples", arguments.samples, size_t{1}, size_t{1} << 31,
             "Maximum number of samples read in one measurement");
  add_number(command, "--block", arguments.block, 1, 1 << 30,
             "Samples per block, like N in data.shuffle=block:N");
  add_number(command, "--repeats", arguments.repeats, 1, 1000, "Measurements of each variant");
  CLI::Option* const folder = command.add_option(
      "--cache-dir", arguments.store.cache_dir,
      "As data.cache_dir; a new folder in this one is used, and removed at the end");
  command.add_option("--cache-gb", arguments.store.cache_gb, "As data.cache_gb, of --cache-dir")
      ->check(CLI::NonNegativeNumber)
      ->needs(folder);
  add_json_option(command, arguments.json);
}

}  // namespace saturate
