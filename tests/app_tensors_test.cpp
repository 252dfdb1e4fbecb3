// Tables and arrays as a user trains, evaluates and exports them.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/app_testing.h"
#include "tests/array_testing.h"

namespace saturate {
namespace {

using testing::CommandResult;
using testing::run_saturate;
using testing::TempDir;

constexpr const char* kQuick = " --set train.threads=1 data.threads=1 train.device=cpu";

TEST(TensorCommands, ATableIsTrainedEvaluatedAndExported) {
  const TempDir dir;
  std::string rows = "area,town,price\n";
  for (int i = 0; i < 300; ++i)
    rows += std::to_string(i % 17) + (i % 3 ? ",a," : ",b,") +
            std::to_string((i % 17) * 0.1 + (i % 3 ? 0 : 1)) + "\n";
  testing::write_file(dir / "t.csv", rows);
  const std::string table = dir / "t.csv", run = dir / "run";
  const CommandResult trained =
      run_saturate("train " + table + " --out " + run + kQuick + " train.epochs=20");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_NE(trained.out.find("held out    r2 "), std::string::npos) << trained.out;
  EXPECT_NE(trained.out.find("samples/s in training"), std::string::npos) << trained.out;
  const CommandResult seen = run_saturate("eval " + run + " --data split:held,1/5,csv:" + table +
                                          " --json " + (dir / "e"));
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_TRUE(seen.out.starts_with("r2 ")) << seen.out;
  const auto json = nlohmann::json::parse(testing::read_text(dir / "e"));
  EXPECT_GT(json["r2"].get<double>(), 0.9);
  EXPECT_FALSE(json.contains("classes"));
  // Another table, of large areas, has the training table's mean; and its columns.
  rows = "area,town,price\n";
  for (int i = 0; i < 30; ++i)
    rows += std::to_string(12 + i % 5) + (i % 3 ? ",a," : ",b,") +
            std::to_string((12 + i % 5) * 0.1 + (i % 3 ? 0 : 1)) + "\n";
  testing::write_file(dir / "other.csv", rows);
  const std::string other = "eval " + run + " --data " + (dir / "other.csv");
  ASSERT_EQ(run_saturate(other + " --json " + (dir / "e")).exit_code, 0);
  EXPECT_GT(nlohmann::json::parse(testing::read_text(dir / "e"))["r2"].get<double>(), 0.5);
  testing::write_file(dir / "other.csv", "town,area,price\na,1,0.1\n");
  testing::expect_error(run_saturate(other), 3, {"other columns than the training part"});
  for (const std::string format : {"onnx", "torchscript", "safetensors"}) {
    const CommandResult made =
        run_saturate("export " + run + " --format " + format + " --out " + (dir / format));
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }
  EXPECT_NE(testing::read_text(dir / "onnx").find("input"), std::string::npos);
  testing::expect_error(
      run_saturate("eval " + run + " --data csv:" + table + " --predictions " + (dir / "p")), 2,
      {"the run is regression"});
  testing::expect_error(run_saturate("eval " + run + " --data synth-table:"), 2,
                        {"the samples are x, float32 [10]"});
  const CommandResult report = run_saturate("report " + run + " --out " + (dir / "r.html"));
  ASSERT_EQ(report.exit_code, 0) << report.err;
  EXPECT_NE(testing::read_text(dir / "r.html").find("\"r2\":["), std::string::npos);
  EXPECT_NE(testing::read_text(dir / "r.html").find("\"unit\":\"samples\""), std::string::npos);
}

TEST(TensorCommands, APackedTableTrainsWithTheSameLosses) {
  const TempDir dir;
  std::string rows = "area,town,price\n";
  for (int i = 0; i < 60; ++i)
    rows += std::to_string(i % 17) + (i % 3 ? ",a," : ",b,") + std::to_string(i % 7) + "\n";
  testing::write_file(dir / "t.csv", rows);
  const std::string source = "csv:" + (dir / "t.csv"), shard = "shard:" + (dir / "t.shard");
  const CommandResult packed = run_saturate("data pack " + source + " --verify --out " + shard);
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_NE(packed.out.find("60 samples of 2 fields"), std::string::npos) << packed.out;
  EXPECT_NE(packed.out.find("read back and compared"), std::string::npos) << packed.out;
  EXPECT_EQ(run_saturate("data verify " + shard).exit_code, 0);
  const CommandResult seen = run_saturate("data inspect " + shard);
  EXPECT_NE(seen.out.find("note     x is (area - "), std::string::npos) << seen.out;
  const std::string from_table = dir / "a", from_shard = dir / "b";
  for (const auto& [run, data] : {std::pair(from_table, source), std::pair(from_shard, shard)}) {
    const CommandResult trained =
        run_saturate("train " + data + " --out " + run + kQuick + " data.eval_source=" + data +
                     " train.batch=16 train.epochs=3 watch.every=1");
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
  }
  for (const char* kind : {"step", "eval"})
    testing::expect_same_losses(from_table, from_shard, kind);
}

TEST(TensorCommands, TokensOfVaryingLengthArePackedTrainedAndExported) {
  const TempDir dir;
  testing::write_file(dir / "t.npz", testing::counting_npz(200, 20));
  const std::string source = "npz:" + (dir / "t.npz") + ",lengths=n,vocabulary=11";
  const std::string shard = "shard:" + (dir / "t.shard");
  const CommandResult packed = run_saturate("data pack " + source + " --verify --out " + shard);
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  for (const std::string& data : {source, shard}) {
    EXPECT_EQ(run_saturate("data verify " + data).exit_code, 0);
    const CommandResult seen = run_saturate("data inspect " + data);
    EXPECT_NE(seen.out.find("y: uint16 [up to 19], the target, 0 to 10"), std::string::npos)
        << seen.out;
  }
  const std::string from_arrays = dir / "a", from_shard = dir / "b", ranks = dir / "c";
  const std::string settings = std::string(kQuick) + " train.epochs=3 watch.every=1 train.batch=16";
  for (const auto& [run, data] : {std::pair(from_arrays, source), std::pair(from_shard, shard)}) {
    const CommandResult trained = run_saturate("train " + data + " --out " + run + settings);
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    EXPECT_NE(trained.out.find("held out    perplexity "), std::string::npos) << trained.out;
    const CommandResult shown = run_saturate("train " + run + "/recipe.toml --print-recipe");
    EXPECT_TRUE(shown.out.ends_with(
        "\n# samples: input int64 [19], target int64 [19], of varying length\n"))
        << shown.out << shown.err;
  }
  for (const char* kind : {"step", "eval"})
    testing::expect_same_losses(from_arrays, from_shard, kind);
  const CommandResult launched =
      run_saturate("launch --nproc-per-node 2 -- train " + source + " --out " + ranks + settings);
  ASSERT_EQ(launched.exit_code, 0) << launched.err;
  const auto one = testing::losses(from_arrays, "step"), two = testing::losses(ranks, "step");
  ASSERT_EQ(two.size(), one.size());
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(two[i], one[i], 1e-3);
  EXPECT_EQ(run_saturate("eval " + from_arrays + " --data " + shard).exit_code, 0);
  const CommandResult said = run_saturate("eval " + from_shard + " --generate '1 2' --tokens 40");
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_TRUE(said.out.starts_with("1 2 ")) << said.out;
  for (const std::string format : {"onnx", "torchscript", "safetensors"}) {
    const CommandResult made =
        run_saturate("export " + from_shard + " --format " + format + " --out " + (dir / format));
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }
}

TEST(TensorCommands, SamplesOfVaryingLengthAreInspected) {
  const std::string source =
      "npz:" + testing::source_path("tests/goldens/formats/sequences.npz") + ",lengths=n";
  const std::string named = source + ",sequence=x+tags";
  const CommandResult seen = run_saturate("data inspect " + named);
  EXPECT_NE(seen.out.find("float32 [up to 13, 3]"), std::string::npos) << seen.out;
  testing::expect_error(run_saturate("train " + named + " --set model.name=mlp"), 2,
                        {"varying length, such as x", "lengths=NAME"});
}

}  // namespace
}  // namespace saturate
