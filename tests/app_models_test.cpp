// Weights on the command line: loading, freezing, exporting; and a user's TorchScript programs.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "run/checkpoint.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"
#include "tests/app_testing.h"
#include "tests/compiled_testing.h"

namespace saturate::testing {
namespace {

const std::string kGoldens = source_path("tests/goldens/weights/");

class ModelCommand : public TrainingTest {
 protected:
  Checkpoint checkpoint(const std::string& run) {
    return find_checkpoint(Env::posix(), dir / run, [](const std::string&) {});
  }
  at::Tensor stem_weight(const std::string& run) {
    const auto model = checkpoint(run).model;
    return std::ranges::find(model, "stem_weight", &NamedTensor::name)->tensor;
  }
};

TEST_F(ModelCommand, AFrozenLoadedResNet18IsFineTunedForOtherClasses) {
  const std::vector<std::string> shape = {"model.name=resnet18", "model.width=0.125",
                                          "augment.size=32", "data.eval_source="};
  auto options = shape;
  options.push_back("data.source=synth:size=32,count=60,classes=6");
  ASSERT_EQ(train("six", options).exit_code, 0);
  ASSERT_EQ(run_saturate("export " + (dir / "six") + " --format safetensors --out " +
                         (dir / "six.safetensors"))
                .exit_code,
            0);
  options = shape;
  for (const std::string& option :
       {std::string("data.source=synth:size=32,count=60,classes=3,seed=9"),
        "model.weights=" + (dir / "six.safetensors"),
        std::string("optimizer.freeze=[\"conv1*\", \"bn1*\", \"layer*\"]")})
    options.push_back(option);
  const CommandResult tuned = train("three", options);
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_NE(tuned.err.find("fc.weight, fc.bias are initialised randomly"), std::string::npos)
      << tuned.err;
  const Checkpoint before = checkpoint("six"), after = checkpoint("three");
  ASSERT_EQ(before.model.size(), after.model.size());
  for (const auto& [name, tensor] : after.model) {
    const auto old = std::ranges::find(before.model, name, &NamedTensor::name);
    ASSERT_NE(old, before.model.end());
    if (name.starts_with("fc.")) {
      EXPECT_EQ(tensor.size(0), 3);
    } else if (name.ends_with(".weight") || name.ends_with(".bias")) {
      EXPECT_TRUE(at::equal(tensor, old->tensor)) << name;
    }
  }
  const auto found = losses(dir / "three", "step");
  EXPECT_LT(found.back(), found.front());
}

// resnet9 computes its stem from the data: also one that the file lacks, but not one that the file
// has.
TEST_F(ModelCommand, AStemThatTheFileLacksIsComputedFromTheData) {
  const std::vector<std::string> shape = {"model.name=resnet9", "model.width=0.0625",
                                          "train.epochs=1", "data.eval_source="};
  ASSERT_EQ(train("first", shape).exit_code, 0);
  const auto stem_of = [&](const std::string& run, const std::string& match) {
    auto options = shape;
    options.push_back("data.source=synth:size=16,count=60,difficulty=0.5,seed=9");
    if (!match.empty()) {
      options.push_back("model.weights=" + (dir / "first/checkpoints/step-00000010.safetensors"));
      options.push_back("model.weights_match=" + match);
    }
    const CommandResult result = train(run, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return stem_weight(run);
  };
  const at::Tensor first = stem_weight("first"), fresh = stem_of("fresh", "");
  EXPECT_FALSE(at::equal(first, fresh)) << "this shows nothing otherwise";
  EXPECT_TRUE(at::equal(stem_of("without", "[\"conv*\"]"), fresh));
  EXPECT_TRUE(at::equal(stem_of("with", "[\"conv*\", \"stem_weight\"]"), first));
}

TEST_F(ModelCommand, AResumedRunNeedsNoWeightsFile) {
  const std::string weights = dir / "copy.pt";
  write_file(weights, read_text(kGoldens + "simple_cnn.pt"));
  ASSERT_EQ(
      train("run", {"model.width=0.0625", "model.weights=" + weights, "train.epochs=1"}).exit_code,
      0);
  std::filesystem::remove(weights);
  const CommandResult resumed =
      run_saturate("train --resume " + (dir / "run") + " --set train.epochs=2");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

TEST_F(ModelCommand, WeightsThatDoNotFitAreOneErrorBeforeTraining) {
  expect_error(
      train("a", {"model.weights=" + kGoldens + "simple_cnn.pt"}), 2,
      {"the weights do not fit the model: of another shape: conv1.conv.weight [2, 3, 3, 3] "
       "instead of [32, 3, 3, 3]",
       "simple_cnn.pt", "model.width"});
  expect_error(train("b", {"model.weights=" + kGoldens + "harmful.pt"}), 4,
               {"posix.system", "harmful.pt", "torch.save(model.state_dict(), FILE)"});
  expect_error(train("c", {"model.weights=nowhere.pt"}), 2, {"no such file", "nowhere.pt"});
}

TEST_F(ModelCommand, ExportWritesTheWeightsThatEvalUses) {
  ASSERT_EQ(train("run", {"train.ema=0.9"}).exit_code, 0);
  const auto exported = [&](const std::string& more) {
    const std::string out = dir / "out.safetensors";
    const CommandResult result =
        run_saturate("export " + (dir / "run") + " --format safetensors --out " + out + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_safetensors(Env::posix(), out);
  };
  const auto weight_of = [](const std::vector<NamedTensor>& list) {
    return std::ranges::find(list, "conv2.conv.weight", &NamedTensor::name)->tensor;
  };
  const Checkpoint saved = checkpoint("run");
  const SafetensorsFile averaged = exported("");
  EXPECT_TRUE(at::equal(weight_of(averaged.tensors), weight_of(saved.average)));
  EXPECT_TRUE(at::equal(weight_of(exported(" --plain").tensors), weight_of(saved.model)));
  EXPECT_EQ(averaged.tensors.size(), saved.model.size());
  EXPECT_EQ(averaged.metadata.at("format"), "pt");
  EXPECT_EQ(averaged.metadata.at("model"), "simple_cnn");
  EXPECT_EQ(nlohmann::json::parse(averaged.metadata.at("classes")).size(), 10u);

  const std::string unnamed = "export " + (dir / "run") + " --format safetensors",
                    here = "cd '" + dir.path() + "';", path = dir / "simple_cnn.safetensors";
  EXPECT_EQ(run_saturate(unnamed, here).exit_code, 0);
  const std::string before = read_text(path);
  EXPECT_FALSE(before.empty());
  expect_error(run_saturate(unnamed + " --plain", here), 2, {"the file exists", "--out"});
  EXPECT_EQ(read_text(path), before) << "it may be of trained weights that nobody named";
}

// Here the highest loss is the best, so that an early checkpoint is the best.
TEST_F(ModelCommand, TheBestCheckpointCanBeChosen) {
  ASSERT_EQ(train("run", {"train.monitor=eval_loss:max", "train.epochs=4", "checkpoint.keep=1"})
                .exit_code,
            0);
  const auto losses_found = losses(dir / "run", "eval");
  ASSERT_EQ(losses_found.size(), 4u);
  const double highest = *std::ranges::max_element(losses_found);
  ASSERT_GT(highest, losses_found.back());
  const std::string eval =
      "eval " + (dir / "run") + " --data " + kSmallSynthTest + " --json " + (dir / "eval.json");
  ASSERT_EQ(run_saturate(eval + " --best").exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_text(dir / "eval.json"))["loss"], highest);
  ASSERT_EQ(run_saturate(eval).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_text(dir / "eval.json"))["loss"], losses_found.back());

  const CommandResult exported =
      run_saturate("export " + (dir / "run") + " --best --format safetensors --out " +
                   (dir / "best.safetensors"));
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const std::string best = best_checkpoint_path(Env::posix(), dir / "run");
  EXPECT_NE(exported.out.find(best), std::string::npos) << exported.out;
  EXPECT_NE(best, list_checkpoints(Env::posix(), dir / "run/checkpoints").front());

  expect_error(run_saturate("eval " + best + " --best --data " + kSmallSynthTest), 2,
               {"this is one file", "remove --best"});
  std::filesystem::remove(best);
  expect_error(run_saturate("eval " + (dir / "run") + " --best --data " + kSmallSynthTest), 4,
               {"no checkpoint of its best weights", "checkpoint.keep_best=true"});
}

TEST_F(ModelCommand, AProgramIsTrainedEvaluatedResumedAndExported) {
  ASSERT_EQ(
      train("run", {"model.name=torchscript", "model.file=" + kGoldens + "scripted.pt"}).exit_code,
      0);
  const auto found = losses(dir / "run", "eval");
  EXPECT_LT(found.back(), found.front());
  const CommandResult eval = run_saturate("eval " + (dir / "run") + " --data " + kSmallSynthTest +
                                          " --json " + (dir / "eval.json"));
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(read_text(dir / "eval.json"))["loss"], found.back());
  EXPECT_EQ(run_saturate("train --resume " + (dir / "run") + " --set train.epochs=3").exit_code, 0);
  EXPECT_EQ(
      run_saturate("export " + (dir / "run") + " --format torchscript --out " + (dir / "model.pt"))
          .exit_code,
      0);
  const std::string records = read_text(dir / "run/metrics.jsonl");
  expect_error(run_saturate("export " + (dir / "run") + " --format torchscript --out " +
                            (dir / "run/metrics.jsonl")),
               2, {"would be lost", dir / "run/metrics.jsonl", ".pt"});
  EXPECT_EQ(read_text(dir / "run/metrics.jsonl"), records);
  const std::string safetensors =
      "'" + std::string(kCommand) + "' export " + (dir / "run") + " --format safetensors --out ";
  ASSERT_EQ(std::system((safetensors + (dir / "file.safetensors") + " >/dev/null").c_str()), 0);
  ASSERT_EQ(std::system((safetensors + "/dev/stdout >" + (dir / "stdout")).c_str()), 0);
  ASSERT_EQ(std::system((safetensors + "/dev/stdout | cat >" + (dir / "pipe")).c_str()), 0);
  EXPECT_EQ(read_text(dir / "stdout"), read_text(dir / "file.safetensors"));
  EXPECT_EQ(read_text(dir / "pipe"), read_text(dir / "file.safetensors"));
  expect_error(run_saturate("export " + (dir / "run") + " --format pt2 --out /dev/stdout"), 2,
               {"pt2 is written as a file"});
}

// The graph has the run's weights by name, and what readers must know.
TEST_F(ModelCommand, ExportsOnnx) {
  ASSERT_EQ(train("run", {"model.width=0.0625"}).exit_code, 0);
  const std::string out = dir / "model.onnx";
  const CommandResult result =
      run_saturate("export " + (dir / "run") + " --format onnx --out " + out);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string file = read_text(out);
  for (const auto& [name, tensor] : checkpoint("run").model) {
    if (name.ends_with("num_batches_tracked")) continue;
    const at::Tensor values = tensor.contiguous();
    EXPECT_NE(file.find(name), std::string::npos) << name;
    EXPECT_NE(file.find({static_cast<const char*>(values.const_data_ptr()), values.nbytes()}),
              std::string::npos)
        << name;
  }
  for (const char* text : {"image_size", "simple_cnn", "logits", "BatchNormalization"})
    EXPECT_NE(file.find(text), std::string::npos) << text;
}

// [height, width] in training, evaluation, on resuming, in exports, and with letterbox.
TEST_F(ModelCommand, ImagesThatAreNotSquareAreTrainedEvaluatedResumedAndExported) {
  ASSERT_EQ(train("run", {"augment.size=[12, 20]", "augment.crop=letterbox"}).exit_code, 0);
  EXPECT_EQ(checkpoint("run").image_size, ImageSize(12, 20));
  const CommandResult eval = run_saturate("eval " + (dir / "run") + " --data " + kSmallSynthTest +
                                          " --json " + (dir / "eval.json"));
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(read_text(dir / "eval.json"))["loss"],
            losses(dir / "run", "eval").back());
  EXPECT_EQ(run_saturate("train --resume " + (dir / "run") + " --set train.epochs=3").exit_code, 0);
  for (const std::string format : {"onnx", "torchscript", "safetensors"}) {
    const CommandResult result = run_saturate("export " + (dir / "run") + " --format " + format +
                                              " --out " + (dir / "model." + format));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_NE(read_text(dir / "model.safetensors").find("12x20"), std::string::npos);
}

// The checkpoint has the last size; the run that resumes ends like one that was not interrupted.
TEST_F(ModelCommand, SizesByEpochAreTrainedAndResumed) {
  const std::string sizes = "augment.size=[0:8, 1:12x16, 2:16]";
  const std::string steady = "schedule.name=constant";
  ASSERT_EQ(train("whole", {sizes, steady, "train.epochs=3"}).exit_code, 0);
  ASSERT_EQ(train("run", {sizes, steady, "train.epochs=1"}).exit_code, 0);
  EXPECT_EQ(checkpoint("run").image_size, ImageSize(16));
  ASSERT_EQ(run_saturate("train --resume " + (dir / "run") + " --set train.epochs=3").exit_code, 0);
  EXPECT_EQ(losses(dir / "run", "eval").back(), losses(dir / "whole", "eval").back());
  EXPECT_EQ(run_saturate("eval " + (dir / "run") + " --data " + kSmallSynthTest).exit_code, 0);
  expect_error(train("mlp", {sizes, "model.name=mlp"}), 2, {"mlp takes images of one size"});
}

// A run's model, and the same in Python as `saturate export --format pt2` writes it.
void expect_same_program(const TempDir& dir, const std::string& run, const ModelInput& input,
                         const std::vector<at::Tensor>& samples) {
  for (const char* format : {"safetensors", "pt2"}) {
    const CommandResult result = run_saturate("export " + run + " --format " + format + " --out " +
                                              (dir / "model.") + format);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
  }
  const Recipe recipe = parse_recipe(read_text(run + "/recipe.toml"), run);
  const auto model = make_model(recipe.model, input);
  load_weights(Env::posix(), dir / "model.safetensors", *model);
  model->set_training(false);
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> tensors;
  for (const at::Tensor& each : samples) {
    const std::string count = std::to_string(each.size(0));
    tensors.push_back({"images" + count, each});
    tensors.push_back({"logits" + count, model->forward(each)});
  }
  write_safetensors(Env::posix(), dir / "expected.safetensors", tensors, {});
  const std::string command =
      "'" + compiling_python() + "' '" + source_path("tests/oracles/run_pt2.py") + "' '" +
      (dir / "model.pt2") + "' '" + (dir / "expected.safetensors") + "' " + recipe.model.name;
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(ModelCommand, ExportsAProgramOfTorchExportThroughPython) {
  if (compiling_python().empty()) GTEST_SKIP() << kNoPython;
  ASSERT_EQ(train("run", {"model.width=0.0625"}).exit_code, 0);
  expect_same_program(dir, dir / "run", {10, 16, Env::posix()},
                      {at::randn({1, 3, 16, 16}), at::randn({3, 3, 16, 16})});
}

TEST_F(ModelCommand, ExportsProgramsOfTensors) {
  if (compiling_python().empty()) GTEST_SKIP() << kNoPython;
  const std::vector<std::string> none = {"data.eval_source=", "augment.size=0", "augment.crop=none",
                                         "train.epochs=1"};
  auto with = none;
  with.insert(with.end(), {"data.source=synth-text:symbols=30,context=16,count=40",
                           "model.name=gpt_tiny", "optimizer.lr=0.01"});
  ASSERT_EQ(train("text", with).exit_code, 0);
  ModelInput input{30, 0, Env::posix()};
  input.tensor = {.name = "tokens", .type = ElementType::kInt64, .shape = {16}, .values = 30};
  expect_same_program(dir, dir / "text", input,
                      {at::randint(30, {1, 16}, at::kLong), at::randint(30, {3, 16}, at::kLong)});
  with = none;
  with.insert(with.end(), {"data.source=synth-volume:size=8,count=40", "model.name=unet3d",
                           "model.width=0.25"});
  ASSERT_EQ(train("volumes", with).exit_code, 0);
  const Recipe volumes = parse_recipe(read_text(dir / "volumes/recipe.toml"), "");
  input.outputs = volumes.model.classes;
  input.tensor = {.name = "x", .type = ElementType::kFloat32, .shape = {1, 8, 8, 8}};
  expect_same_program(dir, dir / "volumes", input,
                      {at::randn({1, 1, 8, 8, 8}), at::randn({3, 1, 8, 8, 8})});
}

TEST_F(ModelCommand, APythonThatCannotExportIsOneError) {
  ASSERT_EQ(train("run", {"train.epochs=1"}).exit_code, 0);
  const std::string more = "export " + (dir / "run") + " --format pt2 --out " + (dir / "model.pt2");
  write_file(dir / "python",
             "#!/bin/sh\necho noise >&2\necho 'it lacks torch (here). Get it' >&2\nexit 1\n");
  std::filesystem::permissions(dir / "python", std::filesystem::perms::owner_all);
  expect_error(run_saturate(more, "SATURATE_PYTHON='" + (dir / "python") + "'"), 4,
               {"it lacks torch (here). Get it"});
  expect_error(
      run_saturate(more, "SATURATE_PYTHON='" + (dir / "python") + "' env --ignore-signal=CHLD"), 4,
      {"it lacks torch (here). Get it"});
  expect_error(run_saturate(more, "SATURATE_PYTHON='" + (dir / "nowhere") + "'"), 2,
               {"nowhere cannot be run", "SATURATE_PYTHON"});
  EXPECT_FALSE(std::filesystem::exists(dir / "model.pt2"));
}

TEST_F(ModelCommand, ConflictingOptionsOfProgramsAreRefused) {
  expect_error(train("a", {"model.name=torchscript"}), 2, {"model.file is missing"});
  expect_error(train("b", {"model.file=x.pt"}), 2, {"model.file has no effect", "simple_cnn"});
  expect_error(train("c", {"model.name=torchscript", "model.file=x.pt", "model.width=0.5"}), 2,
               {"model.width cannot change"});
  expect_error(train("d", {"model.name=torchscript", "model.file=" + kGoldens + "two_heads.pt"}), 2,
               {"cannot be trained", "two_heads.pt", "torch.jit.script(module).save(FILE)"});
  expect_error(run_saturate("export x --format tflite"), 2, {"tflite", "onnx", "pt2"});
}

}  // namespace
}  // namespace saturate::testing
