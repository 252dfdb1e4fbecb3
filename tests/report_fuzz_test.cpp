// Parsers of the modules with torch, on randomly mutated input: an error or data, never a crash,
// and no text of a run becomes markup in a report. data_fuzz_test.cpp has the other parsers.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/report.h"
#include "saturate/data/image.h"
#include "saturate/data/recipe.h"
#include "saturate/weights.h"
#include "step/step_package.h"
#include "tests/compiled_testing.h"
#include "tests/fuzz/fuzz_torch_modules.h"
#include "tests/fuzz/memory_env.h"
#include "tests/fuzz/mutator.h"
#include "tests/report_testing.h"

namespace saturate {
namespace {

using testing::MemoryEnv;
using testing::Mutator;
using testing::read_text;
using testing::source_path;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(FuzzTorchModules, Ladders) {
  Mutator mutator(1);
  size_t sound = 0;
  for (const char* name : {"storage", "free-speed", "scale-out", "frozen-encoder"}) {
    const std::string seed = read_text(source_path("ladders/") + name + ".toml");
    EXPECT_EQ(testing::fuzz_ladder(bytes_of(seed)), 1u) << name;
    for (int round = 0; round < 500; ++round) {
      const std::string text = mutator.mutate(seed);
      ASSERT_NO_THROW(sound += testing::fuzz_ladder(bytes_of(text))) << round << ": " << text;
    }
  }
  EXPECT_GT(sound, 20u) << "every mutation was refused: this tests little";
}

TEST(FuzzTorchModules, Metrics) {
  Mutator mutator(2);
  const std::string seed = read_text(source_path("tests/goldens/watch/metrics.jsonl"));
  EXPECT_EQ(testing::fuzz_metrics(bytes_of(seed)), 4u);
  size_t records = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string text = mutator.mutate(seed);
    ASSERT_NO_THROW(records += testing::fuzz_metrics(bytes_of(text))) << round << ": " << text;
  }
  EXPECT_GT(records, 2000u);
}

// Numbers beyond a counter's range are skipped, not wrapped around; a line with an invalid step is
// not a record.
TEST(FuzzTorchModules, NumbersBeyondAnyCounterAreSkipped) {
  const auto record = from_json_line(
      R"({"kind":"step","step":4,"samples":18446744073709551615,"memory_peak_bytes":-1e300})");
  ASSERT_TRUE(record);
  EXPECT_FALSE(from_json_line(R"({"kind":"step","step":1e300})"));
  EXPECT_EQ(record->samples, 0);
  EXPECT_FALSE(record->memory_peak_bytes);
}

// A resumed run removes the records that it repeats, whatever other lines are among them.
TEST(FuzzTorchModules, AResumedRunDropsInvalidLines) {
  const testing::TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  const std::string kept = "{\"kind\":7,\"step\":\"three\"}\n[]\n{\"kind\":\"step\",\"step\":2}\n";
  testing::write_file(file, kept +
                                "[]\n\n{\"kind\":7}\n{\"kind\":\"step\",\"step\":4}\n"
                                "{\"kind\":\"end\"}\n{\"kind");
  EXPECT_EQ(end_of_records(Env::posix(), file, 3), kept.size());
  EXPECT_EQ(end_of_records(Env::posix(), file, 1), 0u);
}

constexpr const char* kEvil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"";

std::string trace_of_two_steps() {
  nlohmann::json events = nlohmann::json::array();
  events.push_back({{"ph", "M"}, {"name", "thread_name"}, {"tid", 1}, {"args", {{"name", kEvil}}}});
  for (int step = 0; step < 2; ++step)
    for (const std::string& name : {"step " + std::to_string(step), std::string(kEvil)})
      events.push_back({{"ph", "X"},
                        {"cat", "phase"},
                        {"tid", 1},
                        {"name", name},
                        {"ts", 1000 * step},
                        {"dur", 900}});
  return nlohmann::json{{"traceEvents", events}}.dump();
}

// A run's folder with every file that a report reads, with hostile text.
MemoryEnv hostile_run() {
  const Image pixel{1, 1, {1, 2, 3}};
  MemoryEnv env;
  Recipe recipe;
  recipe.data.source = std::string("folder:") + kEvil;
  using nlohmann::json;
  const json label = {{"class", kEvil}, {"weight", 0.5}};
  const json image = {{"file", "training-000.png"},
                      {"labels", json::array({label})},
                      {"class", kEvil},
                      {"predicted", kEvil},
                      {"probability", 0.9},
                      {"loss", 3},
                      {"name", kEvil}};
  const json kept = {{"step", 1}, {"images", json::array({image})}};
  const json rung = {{"name", kEvil},
                     {"images_per_s", 3},
                     {"phases", {{"wait", 0.5}, {kEvil, 0.5}}},
                     {"set", json::array({kEvil})},
                     {"seed_figure", kEvil}};
  env.files = {
      {"run/metrics.jsonl", read_text(source_path("tests/goldens/watch/metrics.jsonl"))},
      {"run/recipe.toml", to_toml(recipe)},
      {"run/host.json", json{{"cpu", kEvil}, {kEvil, 3}}.dump()},
      {"run/samples/training.json", kept.dump()},
      {"run/samples/mistakes.json", kept.dump()},
      {"run/samples/training-000.png", testing::to_text(encode_png(pixel.pixels.data(), 1, 1, 3))},
      {"run/trace.json", trace_of_two_steps()},
      {"ladder.json", json{{"title", kEvil}, {"rungs", json::array({rung})}}.dump()}};
  return env;
}

size_t count(const std::string& text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Empty if the run or the ladder is refused, which is allowed.
std::string report_of(MemoryEnv& env) {
  try {
    const RunReading run = read_run(env, "run");
    const LadderReading ladder = read_ladder_json(env, "ladder.json");
    return make_report({&run, 1}, {&ladder, 1});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw std::logic_error(error.what());
    return "";
  }
}

TEST(FuzzTorchModules, ReportsOfDamagedRuns) {
  Mutator mutator(3);
  MemoryEnv whole = hostile_run();
  const std::string page = report_of(whole);
  const size_t scripts = count(page, "<script"), ends = count(page, "</script");
  ASSERT_GT(scripts, 0u);
  EXPECT_EQ(count(page, "<img"), 0u);
  EXPECT_EQ(count(page, "onerror=alert(2)>"), 0u);
  const nlohmann::json run = testing::data_of_page(page)["runs"][0];
  for (const char* kept : {"training", "mistakes"})
    EXPECT_EQ(run[kept]["images"].size(), 1u) << kept;
  EXPECT_EQ(run["training"]["images"][0]["title"], kEvil);
  size_t reports = 0;
  for (int round = 0; round < 600; ++round) {
    MemoryEnv env = hostile_run();
    auto file = std::next(env.files.begin(), ptrdiff_t(mutator.below(env.files.size())));
    file->second = mutator.mutate(file->second);
    std::string found;
    ASSERT_NO_THROW(found = report_of(env)) << round << ", " << file->first << ": " << file->second;
    if (found.empty()) continue;
    ++reports;
    ASSERT_EQ(count(found, "<script"), scripts) << round << ", " << file->first;
    ASSERT_EQ(count(found, "</script"), ends) << round << ", " << file->first;
    ASSERT_EQ(count(found, "<img"), 0u) << round << ", " << file->first;
    ASSERT_NO_THROW(testing::data_of_page(found)) << round << ", " << file->first;
  }
  EXPECT_GT(reports, 400u);
}

// A package of tools/compile_step.py is an archive; torch's code reads it.
TEST(FuzzTorchModules, CompiledPackages) {
  const testing::TempDir dir;
  Recipe recipe;
  recipe.model.name = "mlp";
  recipe.model.classes = 2;
  const auto model = make_model(recipe.model, {2, 4, Env::posix()});
  testing::write_package(dir / "step.pt2", testing::describe_package(recipe, *model, "library"),
                         "library");
  const std::string seed = read_text(dir / "step.pt2");
  Mutator mutator(4);
  size_t sound = 0;
  for (int round = 0; round < 1000; ++round) {
    MemoryEnv env;
    env.files["step.pt2"] = round == 0 ? seed : mutator.mutate(seed);
    try {
      sound += read_step_package(env, "step.pt2").library.size() == 7;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUsage) << round << ": " << error.what();
    }
  }
  EXPECT_GT(sound, 0u) << "every mutation was refused: this tests little";
}

TEST(FuzzTorchModules, ArchivesOfWeights) {
  Mutator mutator(5);
  size_t sound = 0;
  for (const char* name : {"all_kinds.pt", "training.pt", "legacy.pt"}) {
    const std::string seed = read_text(source_path("tests/goldens/weights/") + name);
    for (int round = 0; round < 500; ++round) {
      MemoryEnv env;
      env.files["weights.pt"] = round == 0 ? seed : mutator.mutate(seed);
      try {
        for (const auto& [tensor_name, tensor] : read_weights(env, "weights.pt"))
          tensor.to(at::kDouble).sum();  // reads all of it
        ++sound;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kRun) << name << " " << round << ": " << error.what();
      }
    }
  }
  EXPECT_GT(sound, 3u) << "every mutation was refused: this tests little";
}

}  // namespace
}  // namespace saturate
