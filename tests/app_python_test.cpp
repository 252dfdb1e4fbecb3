// The command together with a Python that has torch: a whole run with a compiled step, and exported
// models that Python runs. Skipped without such a Python (compiled_testing.h).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "tests/app_testing.h"
#include "tests/array_testing.h"
#include "tests/compiled_testing.h"

namespace saturate::testing {
namespace {

class BesidePython : public TrainingTest {
 protected:
  void SetUp() override {
    if (compiling_python().empty()) GTEST_SKIP() << kNoPython;
  }
};

double seconds_of_backward(const std::string& run) {
  return read_metrics(run).back()["phases"]["backward"];
}

// The images of synth:, and the tensors of the other tasks.
struct CompiledCase {
  const char* name;
  std::vector<std::string> settings;
};

std::vector<CompiledCase> compiled_cases() {
  const std::string tensors = "augment.size=0", whole = "augment.crop=none";
  const std::string table = "data.source=synth-table:count=203",
                    held_table = "data.eval_source=synth-table:count=40,split=test",
                    text = "synth-text:symbols=30,context=16,count=",
                    volumes = "synth-volume:size=8,count=";
  return {
      {"images", {"model.width=0.5"}},
      {"oblongs", {"augment.size=[16, 24]", "model.name=mlp"}},
      {"masks",
       {"data.source=synth:size=8,count=103,masks=true,classes=3",
        "data.eval_source=synth:size=8,count=20,masks=true,classes=3,split=test", "augment.size=8",
        whole, "model.name=toy_seg", "train.task=segment", "train.accumulate=2"}},
      {"values", {table, held_table, tensors, whole, "model.name=mlp", "train.loss=huber"}},
      {"tokens",
       {"data.source=" + text + "103", "data.eval_source=" + text + "20,split=test", tensors, whole,
        "model.name=gpt_tiny", "optimizer.name=adamw", "optimizer.lr=0.003"}},
      {"volumes",
       {"data.source=" + volumes + "43", "data.eval_source=" + volumes + "10,split=test", tensors,
        whole, "model.name=unet3d", "model.width=0.25", "train.batch=10"}},
  };
}

// The last batch of an epoch may be smaller, and is then computed without the package.
TEST_F(BesidePython, ARunWithACompiledStepMatchesOneWithoutIt) {
  std::vector<std::string> last;
  for (auto& [name, settings] : compiled_cases()) {
    SCOPED_TRACE(name);
    settings.push_back("train.device=cpu");
    const std::string package = compile_package(dir, recipe, settings);
    const std::string plain = std::string(name) + "-plain", compiled = name;
    const CommandResult without = train(plain, settings);
    ASSERT_EQ(without.exit_code, 0) << without.err;
    settings.push_back("train.compiled=" + package);
    const CommandResult result = train(compiled, settings);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const char* kind : {"step", "epoch", "eval"}) {
      const auto expected = losses(dir / plain, kind), found = losses(dir / compiled, kind);
      ASSERT_EQ(found.size(), expected.size());
      ASSERT_FALSE(found.empty());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 1e-3) << kind << " " << i;
    }
    const double eager = seconds_of_backward(dir / plain);
    EXPECT_GT(eager, 0);
    EXPECT_LT(seconds_of_backward(dir / compiled), eager / 2) << "the package was not used";
    last = settings;
  }
  last.push_back("data.source=synth-volume:size=16,count=20");  // the model has the same weights
  last.push_back("data.eval_source=");
  expect_error(train("other", last), 2,
               {"it was made for samples whose input is Float [1,8,8,8], not Float [1,16,16,16]"});
}

// The command makes all weights of 2-D convolutions channels_last, also if the samples are tensors.
TEST_F(BesidePython, ACompiledStepOfTensorsHasTheMemoryOrderOfConvolutions) {
  const std::string own = dir / "own.py", program = dir / "own.pt";
  write_file(own,
             "import sys, torch\n"
             "def make(classes, size, width):\n"
             "    return torch.nn.Sequential(torch.nn.Conv2d(size[0], 4, 3), torch.nn.Flatten(),\n"
             "                               torch.nn.Linear(16, classes))\n"
             "if __name__ == '__main__':\n"
             "    torch.jit.script(make(3, [2, 4, 4], 1)).save(sys.argv[1])\n");
  const std::string script = "'" + compiling_python() + "' '" + own + "' '" + program + "'";
  ASSERT_EQ(std::system((script + " 2>/dev/null").c_str()), 0);
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int i = 0; i < 20 * 32; ++i) x.push_back(float(i * 7 % 13) / 13);
  for (int i = 0; i < 20; ++i) y.push_back(i % 3);
  write_file(dir / "x.npy", npy("<f4", "20, 2, 4, 4", raw(x)));
  write_file(dir / "y.npy", npy("<i8", "20,", raw(y)));
  std::vector<std::string> settings = {"data.source=npy:" + (dir / "x.npy") + "," + (dir / "y.npy"),
                                       "data.eval_source=",
                                       "augment.size=0",
                                       "augment.crop=none",
                                       "model.name=torchscript",
                                       "model.file=" + program,
                                       "train.batch=10",
                                       "train.device=cpu"};
  settings.push_back("train.compiled=" +
                     compile_package(dir, recipe, settings, "--module '" + own + ":make'"));
  const CommandResult result = train("grid", settings);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// The images of tests/oracles/run_exported.py.
at::Tensor simple_images(int64_t count, int64_t size) {
  return (at::arange(count * 3 * size * size).remainder(17).to(at::kFloat) / 8 - 1)
      .view({count, 3, size, size});
}

// The logits of the checkpoint's own model.
at::Tensor logits_of_run(const std::string& run, int64_t count) {
  const at::NoGradGuard no_grad;
  const Checkpoint checkpoint = find_checkpoint(Env::posix(), run, [](const std::string&) {});
  const Recipe recipe = parse_recipe(checkpoint.recipe_toml, run);
  const auto model =
      make_model(recipe.model, {recipe.model.classes, checkpoint.image_size, Env::posix()});
  load_into(*model, checkpoint.model, run);
  model->set_training(false);
  return model->forward(simple_images(count, checkpoint.image_size.width));
}

TEST_F(BesidePython, PythonComputesTheSameWithExportedModels) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string script = dir / "model.pt", weights = dir / "model.safetensors";
  for (const auto& [format, out] : {std::pair("torchscript", script), {"safetensors", weights}})
    ASSERT_EQ(
        run_saturate("export " + (dir / "run") + " --format " + format + " --out " + out).exit_code,
        0);
  const std::string log = dir / "log", command = "'" + compiling_python() + "' '" +
                                                 source_path("tests/oracles/run_exported.py") +
                                                 "' '" + script + "' '" + weights + "' 16 >'" +
                                                 (dir / "logits.json") + "' 2>'" + log + "'";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_text(log);
  const auto found = nlohmann::json::parse(read_text(dir / "logits.json"));
  const at::Tensor expected = logits_of_run(dir / "run", 3);
  EXPECT_GT(expected.abs().max().item<double>(), 0.1) << "this shows nothing otherwise";
  const auto compare = [&](const char* kind) {
    const std::vector<std::vector<double>> rows = found[kind];
    ASSERT_EQ(rows.size(), 3u);
    for (size_t i = 0; i < rows.size(); ++i)
      for (size_t j = 0; j < rows[i].size(); ++j)
        EXPECT_NEAR(rows[i][j], expected[int64_t(i)][int64_t(j)].item<double>(), 1e-5) << kind;
  };
  compare("torchscript");
  if (found["safetensors"].is_null()) GTEST_SKIP() << "this Python has no safetensors";
  compare("safetensors");
}

}  // namespace
}  // namespace saturate::testing
