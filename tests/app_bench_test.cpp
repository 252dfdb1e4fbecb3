// saturate bench: the output that scripts read.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>

#include "tests/app_testing.h"
#include "tests/store_testing.h"

namespace saturate::testing {
namespace {

const std::string kLoader =
    "bench loader synth:size=40,count=12,classes=2 --set augment.size=24 --set train.batch=5 "
    "--repeats 3 --seconds 0.001";

TEST(Bench, LedgerAlternatesWithAndWithoutIt) {
  const TempDir dir;
  const std::string command =
      "bench ledger " + write_small_recipe(dir, kSmallSynth) + " --rounds 3 --seconds 0.01";
#ifndef NDEBUG
  expect_error(run_saturate(command), 2, {"debug build"});
#else
  const CommandResult result = run_saturate(command + " --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("without the ledger: "), std::string::npos) << result.out;
  const auto rows = nlohmann::json::parse(read_text(dir / "b.json"))["rows"];
  ASSERT_EQ(rows.size(), 2u);
  for (const auto& row : rows) EXPECT_EQ(row["n"], 3);
  EXPECT_LE(rows[1]["low"], rows[1]["gain"]);
  EXPECT_LE(rows[1]["gain"], rows[1]["high"]);
#endif
}

TEST(Bench, LoaderWritesARowForEveryVariant) {
#ifndef NDEBUG
  expect_error(run_saturate(kLoader), 2, {"debug build"});
#else
  const TempDir dir;
  const CommandResult result = run_saturate(kLoader + " --threads 1,2 --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("fast fp32 threads=2"), std::string::npos) << result.out;
  const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
  EXPECT_EQ(json["bench"], "loader");
  EXPECT_GE(json["host"]["cores"], 1);
  EXPECT_TRUE(json["commit"].is_string());
  ASSERT_EQ(json["rows"].size(), 12u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["unit"], "images/s");
    EXPECT_EQ(row["n"], 3);
    EXPECT_GT(row["min"], 0);
    EXPECT_LE(row["min"], row["median"]);
    EXPECT_LE(row["median"], row["max"]);
    EXPECT_GT(row["cpu_ms_per_image"], 0);
  }
#endif
}

TEST(Bench, LoaderPacksOnRequestAndSaysSo) {
#ifndef NDEBUG
  GTEST_SKIP() << "a debug build refuses";
#endif
  const TempDir dir;
  const std::string shard = "shard:" + (dir / "s.shard"),
                    options =
                        " --set augment.size=96 --set train.batch=5 --repeats 2 --seconds 0.001 "
                        "--threads 1 --pack";
  ASSERT_EQ(run_saturate("data pack synth:size=160,count=20 --quality 80 --out " + shard).exit_code,
            0);
  const CommandResult result =
      run_saturate("bench loader " + shard + options + " --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("packed, not decoded threads=1"), std::string::npos) << result.out;
  const auto rows = nlohmann::json::parse(read_text(dir / "b.json"))["rows"];
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows[6]["decode"], "packed");
  EXPECT_GT(rows[6]["packed_share"], 0.5);
  EXPECT_GT(rows[6]["cpu_ms_per_image"], 0);
  expect_error(run_saturate("bench loader synth:size=40,count=12" + options), 3,
               {"no image of the source can be packed", "data pack"});
}

// Stops before the end of the epoch: 10^6 images would take minutes.
TEST(Bench, LoaderStopsWithinAnEpoch) {
#ifndef NDEBUG
  GTEST_SKIP() << "a debug build refuses";
#endif
  const TempDir dir;
  for (const char* cache : {"none", "ram"}) {
    const CommandResult result = run_saturate(
        "bench loader synth:size=16,count=1000000,classes=2 --set augment.size=16 --set "
        "train.batch=16 --repeats 2 --seconds 0.01 --threads 2 --set data.cache=" +
        std::string(cache) + " --json " + (dir / "b.json"));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto rows = nlohmann::json::parse(read_text(dir / "b.json"))["rows"];
    ASSERT_EQ(rows.size(), 6u) << cache;
    for (const auto& row : rows) {
      EXPECT_EQ(row["n"], 2);
      EXPECT_GT(row["min"], 0);
      EXPECT_GE(row["images"], 2 * 16);
      EXPECT_LT(row["images"], 200'000);
    }
  }
}

TEST(Bench, AugmentWritesARowForEveryOperation) {
#ifndef NDEBUG
  GTEST_SKIP() << "a debug build refuses";
#endif
  const TempDir dir;
  const CommandResult result = run_saturate(
      "bench augment synth:size=40,count=3,classes=2 --set augment.size=24 --set augment.hue=0.1 "
      "--repeats 2 --seconds 0 --threads 1,2 --json " +
      (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
  EXPECT_EQ(json["bench"], "augment");
  ASSERT_EQ(json["rows"].size(), 32u);
  EXPECT_EQ(json["rows"][0]["operation"], "crop and resize");
  EXPECT_EQ(json["rows"][31]["name"], "recipe threads=2");
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["unit"], "images/s/core");
    EXPECT_EQ(row["n"], 2);
    EXPECT_GT(row["min"], 0);
    EXPECT_GT(row["us_per_image"], 0);
  }
}

TEST(Bench, MemoryGrowsWithTheSquareRootOfTheDepthWithCheckpointing) {
  const std::string command = "bench memory --depths 16,64 --batch 2 --repeats 1";
#ifndef NDEBUG
  expect_error(run_saturate(command), 2, {"debug build"});
#else
  const TempDir dir;
  const CommandResult result = run_saturate(command + " --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto rows = nlohmann::json::parse(read_text(dir / "b.json"))["rows"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["name"], "depth=16 checkpointing=off");
  EXPECT_EQ(rows[3]["segments"], 8);
  EXPECT_GT(rows[2]["median"], 3.5 * double(rows[0]["median"]));
  EXPECT_LT(rows[3]["median"], 2.5 * double(rows[1]["median"]));
  EXPECT_GT(rows[3]["ms_per_step"], 0);
#endif
}

TEST(Bench, LoaderErrorsAreNamed) {
  expect_error(run_saturate("bench loader nothing:here"), 2, {"nothing"});
  expect_error(run_saturate("bench loader folder:absent --set augment.sise=9"), 2,
               {"augment.size"});
  expect_error(run_saturate("bench"), 2, {});
}

TEST(Bench, StorageWritesRatesOfEverySourceAndOrder) {
  const TempDir dir;
  write_folder_dataset(dir / "set", 20);
  const std::string folder = "folder:" + (dir / "set"), shard = "shard:" + (dir / "s.shard");
  ASSERT_EQ(run_saturate("data pack " + folder + " --out " + shard).exit_code, 0);
  const std::string command =
      "bench storage " + folder + " " + shard + " --threads 1,2 --repeats 2 --samples 15 --block 3";
#ifndef NDEBUG
  expect_error(run_saturate(command), 2, {"debug build"});
#else
  const CommandResult result = run_saturate(command + " --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
  EXPECT_EQ(json["bench"], "storage");
  std::set<std::string> variants;
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["n"], 2);
    EXPECT_GT(row["min"], 0);
    EXPECT_TRUE(row["unit"] == "samples/s" || row["unit"] == "MB/s");
    variants.insert(row["source"].get<std::string>() + row["order"].get<std::string>() +
                    row["cold"].dump() + row["threads"].dump() + row["unit"].get<std::string>());
  }
  EXPECT_EQ(variants.size(), 2u * 3 * 2 * 2 * 2);

  std::filesystem::rename(dir / "set", dir / "set\xff");  // a name that is not UTF-8
  const CommandResult named = run_saturate("bench storage 'folder:" + (dir / "set\xff") +
                                           "' --threads 1 --repeats 1 --json " + (dir / "c.json"));
  EXPECT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(nlohmann::json::parse(read_text(dir / "c.json"))["rows"].size(), 12u);
#endif
  expect_error(run_saturate("bench storage nothing:here"), 2, {"nothing"});
  expect_error(run_saturate("bench storage"), 2, {"SOURCE"});
}

#ifdef NDEBUG
TEST(Bench, StorageOfAServerShowsTheLink) {
  const TempDir dir;
  write_folder_dataset(dir / "set", 20);
  ASSERT_EQ(run_saturate("data pack folder:" + (dir / "set") + " --out shard:" + (dir / "s.shard"))
                .exit_code,
            0);
  StoreServer server;
  server.put("/s.shard", read_text(dir / "s.shard"));
  const CommandResult result =
      run_saturate("bench storage 'shard:" + server.url("/s.shard?sign=SECRET") +
                   "' --threads 2 --repeats 2 --cache-dir " + (dir / "cache") + " --cache-gb 1" +
                   " --json " + (dir / "b.json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const std::string& text : {result.out, result.err, read_text(dir / "b.json")})
    EXPECT_EQ(text.find("SECRET"), std::string::npos) << text;
  const size_t link = result.out.find(" requests/s; first byte after");
  ASSERT_NE(link, std::string::npos) << result.out;
  const std::string line = result.out.substr(result.out.rfind('\n', link) + 1);
  EXPECT_TRUE(line.starts_with("shard:" + server.url("/s.shard") + " ")) << line;
  std::map<std::string, double> largest;  // by unit
  const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
  for (const auto& row : json["rows"]) {
    double& at = largest[row["unit"].get<std::string>()];
    at = std::max(at, row["max"].get<double>());
    if (row["unit"] == "% from the cache on disk") {
      EXPECT_EQ(row["max"].get<double>() > 0, !row["cold"].get<bool>()) << row;
    }
  }
  EXPECT_EQ(largest.size(), 2u + 5u);
  EXPECT_GT(largest.at("network MB/s"), 0);
  EXPECT_GT(largest.at("requests/s"), 0);
  EXPECT_GT(largest.at("ms to the first byte"), 0);
  EXPECT_GE(largest.at("ms to the first byte (95th percentile)"),
            largest.at("ms to the first byte"));
  EXPECT_GT(largest.at("% from the cache on disk"), 0);
  EXPECT_FALSE(std::filesystem::exists(dir / "cache")) << "it has a folder of its own";
}
#endif

const std::string kBrief = " --rounds 1 --seconds 0.02";

class BenchStep : public ::testing::Test {
 protected:
  // The rows by name of a bench of the small recipe, with a separate TMPDIR.
  std::map<std::string, nlohmann::json> rows(const std::string& arguments,
                                             const std::string& length = kBrief) {
    std::filesystem::create_directory(dir / "tmp");
    const CommandResult result =
        run_saturate("bench step " + recipe + length + " --json " + (dir / "b.json") + arguments,
                     "TMPDIR='" + (dir / "tmp") + "'");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::map<std::string, nlohmann::json> rows;
    if (result.exit_code != 0) return rows;
    const auto json = nlohmann::json::parse(read_text(dir / "b.json"));
    EXPECT_EQ(json["bench"], "step");
    for (const auto& row : json["rows"]) rows[row["name"]] = row;
    return rows;
  }

  TempDir dir;
  std::string recipe = write_small_recipe(dir, kSmallSynth, kSmallSynthTest);
};

#ifdef NDEBUG
TEST_F(BenchStep, ComparesTheRecipesLoopWithABareOne) {
  const auto found = rows("");
  ASSERT_EQ(found.size(), 7u);
  for (const char* name : {"recipe", "held batch", "bare loop", "input alone"}) {
    const auto& row = found.at(name);
    EXPECT_EQ(row["unit"], "images/s");
    EXPECT_EQ(row["n"], 1);
    EXPECT_NEAR(row["median"].get<double>() * row["ms_per_step"].get<double>(), 20e3, 1);
    EXPECT_GT(row["cores_used"], 0);
  }
  for (const char* name : {"recipe", "held batch"}) {
    const auto& row = found.at(name);
    double sum = 0;
    for (const auto& [phase, ms] : row["phases_ms"].items()) sum += ms.get<double>();
    EXPECT_NEAR(sum, row["ms_per_step"].get<double>(), 1e-6) << "phases sum to wall time";
    EXPECT_GT(row["phases_ms"]["backward"], 0);
  }
  EXPECT_GT(found.at("recipe")["phases_ms"]["wait"], 0);
  EXPECT_FALSE(found.at("held batch")["phases_ms"].contains("wait"));
  EXPECT_GT(found.at("recipe")["memory_peak_bytes"], 1 << 20);
  EXPECT_NE(found.at("recipe")["recipe"].get<std::string>().find("simple_cnn"), std::string::npos);
}

// The values of a row of two rounds, in an unknown order.
using TwoRounds = std::array<double, 2>;

TwoRounds values_of(const nlohmann::json& row) {
  return {row["min"].get<double>(), row["max"].get<double>()};
}

// Microseconds of a step of 20 images, from images a second.
TwoRounds us_of(const nlohmann::json& row) {
  const auto [low, high] = values_of(row);
  return {20e6 / high, 20e6 / low};
}

// All combinations of two rows' values in each round.
template <class Of>
std::array<TwoRounds, 2> by_round(const TwoRounds& a, const TwoRounds& b, const Of& of) {
  return {TwoRounds{of(a[0], b[0]), of(a[1], b[1])}, TwoRounds{of(a[0], b[1]), of(a[1], b[0])}};
}

double mean_of(const TwoRounds& values) {
  return (values[0] + values[1]) / 2;
}

// Expects a mean over two rounds to be that of one of the two pairings.
void expect_mean(double found, const std::array<TwoRounds, 2>& either) {
  const double one = mean_of(either[0]), other = mean_of(either[1]);
  EXPECT_LT(std::min(std::abs(found - one), std::abs(found - other)), 1e-3)
      << found << " is neither " << one << " nor " << other;
}

// A median of two is their mean.
TEST_F(BenchStep, OverheadIsTheDifferenceToTheBareLoopInTheSameRound) {
  const auto found = rows("", " --rounds 2 --seconds 0.02");
  const auto minus = [](double a, double b) { return a - b; };
  const TwoRounds whole = us_of(found.at("recipe")), held = us_of(found.at("held batch")),
                  bare = us_of(found.at("bare loop"));
  for (const auto& [name, more, less] :
       {std::tuple{"host overhead", held, bare}, {"input", whole, held}}) {
    SCOPED_TRACE(name);
    const auto& row = found.at(name);
    EXPECT_EQ(row["n"], 2);
    expect_mean(row["median"].get<double>(), by_round(more, less, minus));
    expect_mean(row["percent"].get<double>(),
                by_round(more, less, [](double a, double b) { return 100 * (a / b - 1); }));
    const TwoRounds values = values_of(row);
    bool of_same_rounds = false;
    for (TwoRounds each : by_round(more, less, minus)) {
      std::sort(each.begin(), each.end());
      of_same_rounds |= std::abs(values[0] - each[0]) + std::abs(values[1] - each[1]) < 1e-3;
    }
    EXPECT_TRUE(of_same_rounds) << row;
  }
  const TwoRounds input = values_of(found.at("input alone")),
                  compute = values_of(found.at("held batch"));
  expect_mean(found.at("of the bound")["bound_images_per_s"].get<double>(),
              by_round(input, compute, [](double a, double b) { return 1 / (1 / a + 1 / b); }));
}

TEST_F(BenchStep, TheBoundCombinesInputAndComputeAlone) {
  const auto found = rows("");
  const auto rate = [&](const char* name) { return found.at(name)["median"].get<double>(); };
  const auto& bound = found.at("of the bound");
  const double both = 1 / (1 / rate("input alone") + 1 / rate("held batch"));
  EXPECT_EQ(bound["unit"], "%");
  EXPECT_NEAR(bound["bound_images_per_s"].get<double>(), both, 1e-6 * both);
  EXPECT_NEAR(rate("of the bound"), 100 * rate("recipe") / both, 1e-6);
}

TEST_F(BenchStep, RunsEveryKindOfRecipe) {
  for (const char* settings :
       {" --set optimizer.name=adam --set train.accumulate=3 --set train.batch=7",
        " --set optimizer.name=muon --set train.clip_norm=1", " --set precision.mode=bf16-o2",
        " --set optimizer.name=adamw --set precision.mode=fp16 --set data.eval_source=",
        " --set schedule.name=plateau --set train.max_minutes=0.000001"})
    EXPECT_EQ(rows(settings).size(), 7u) << settings;
}

TEST_F(BenchStep, ProfilesTheLibraries) {
  const auto found = rows(" --profile");
  const auto& onednn = found.at("oneDNN");
  EXPECT_EQ(onednn["unit"], "% of step");
  EXPECT_GT(onednn["ms_per_step"], 0);
  EXPECT_GT(found.at("  convolution")["median"], 0);
  EXPECT_LE(found.at("  convolution")["ms_per_step"].get<double>(),
            onednn["ms_per_step"].get<double>() * (1 + 1e-9));
}

TEST_F(BenchStep, RemovesItsTemporaryFiles) {
  rows("");
  EXPECT_TRUE(std::filesystem::is_empty(dir / "tmp"));
  expect_error(run_saturate("bench step " + recipe + kBrief + " --set data.source=idx:absent",
                            "TMPDIR='" + (dir / "tmp") + "'"),
               3, {"absent"});
  EXPECT_TRUE(std::filesystem::is_empty(dir / "tmp"));
}
#else
TEST_F(BenchStep, RefusesADebugBuild) {
  expect_error(run_saturate("bench step " + recipe), 2, {"debug build"});
}
#endif

TEST_F(BenchStep, ErrorsAreNamed) {
  expect_error(run_saturate("bench step"), 2, {"RECIPE"});
  expect_error(run_saturate("bench step " + recipe + " --seconds 0"), 2, {"--seconds"});
  expect_error(run_saturate("bench step " + recipe + " --rounds 0"), 2, {"--rounds"});
#ifdef NDEBUG
  expect_error(run_saturate("bench step " + (dir / "none.toml")), 2, {"none.toml"});
  expect_error(run_saturate("bench step " + recipe + " --set train.bach=2"), 2, {"train.batch"});
  expect_error(run_saturate("bench step " + recipe + kBrief, "TMPDIR=/nowhere"), 4, {"nowhere"});
#endif
}

}  // namespace
}  // namespace saturate::testing
