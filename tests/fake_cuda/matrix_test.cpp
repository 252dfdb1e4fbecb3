// All combinations of a recipe's settings on a GPU, each for a few steps under a StreamWatch: it
// must run to its end, replay its graph if it says that it can, and use streams correctly. The
// results of torch's kernels are not checked.
#include <fmt/format.h>

#include "saturate/optimizer.h"
#include "step/graphed_step.h"
#include "tests/fake_cuda/host_testing.h"
#include "tests/fake_cuda/stream_watch.h"

namespace saturate::testing {
namespace {

constexpr int kSteps = 8, kWarmUps = 3;

using Settings = std::vector<std::string>;

struct Combination {
  std::string name;
  Settings settings;
  friend void PrintTo(const Combination& of, std::ostream* out) { *out << of.name; }
};

std::string plain(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return text;
}

// Each of `rows` with the graph off and on.
std::vector<Combination> graphed(const std::vector<Combination>& rows) {
  std::vector<Combination> all;
  for (const Combination& row : rows)
    for (const char* graph : {"off", "auto"}) {
      all.push_back(row);
      all.back().name = plain(row.name + (graph[0] == 'a' ? "_graph" : ""));
      all.back().settings.push_back(std::string("train.graph=") + graph);
    }
  return all;
}

const Settings kSegmenting = {"data.source=synth:size=32,count=80,classes=2,masks=true",
                              "train.task=segment"};

const Settings kVolumes = {"data.source=synth-volume:count=80,size=16",
                           "augment.size=8",
                           "augment.crop=random",
                           "model.name=unet3d",
                           "model.width=0.125",
                           "augment.rotate=20",
                           "augment.contrast=gamma:0.3"};

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<Combination> all_models() {
  std::vector<Combination> rows;
  for (const auto& entry : models()) {
    const std::string name(entry.name);
    if (entry.traits.is_file || entry.traits.is_language ||
        (entry.traits.takes_tensors && name != "mlp") || name == "looks_at_numbers")
      continue;
    Settings settings = {"model.name=" + name};
    const bool is_vit = name.starts_with("vit");
    settings.push_back(is_vit ? "model.width=0.34" : "model.width=0.125");
    if (name == "unet" || name == "toy_seg")
      settings.insert(settings.end(), kSegmenting.begin(), kSegmenting.end());
    rows.push_back({name, settings});
    if (is_vit) {
      settings.push_back("debug.off=sdpa");
      rows.push_back({name + "_naive", settings});
    }
  }
  return graphed(rows);
}

std::vector<Combination> all_precisions_and_optimizers() {
  std::vector<Combination> rows;
  for (const char* mode : {"fp32", "tf32", "bf16", "fp16", "bf16-o2", "fp16-o2", "fp16-o3", "auto"})
    for (const auto& entry : optimizers())
      for (const char* fused : {"[]", "fused"})
        rows.push_back(
            {std::string(mode) + "_" + std::string(entry.name) + (fused[0] == '[' ? "" : "_plain"),
             {"model.name=simple_cnn", "model.width=0.25", std::string("precision.mode=") + mode,
              "optimizer.name=" + std::string(entry.name), std::string("debug.off=") + fused}});
  return graphed(rows);
}

std::vector<Combination> all_pipelines() {
  std::vector<Combination> rows;
  for (int bits = 0; bits < 16; ++bits) {
    const bool copy = bits & 1, augment = bits & 2, encoder = bits & 4, held = bits & 8;
    if (encoder && held) continue;  // masks are not cached on the device
    const auto text = [](bool on) { return std::string(on ? "true" : "false"); };
    Settings settings = {
        "pipeline.copy=" + text(copy), "pipeline.augment=" + text(augment),
        "pipeline.encoder=" + text(encoder),
        std::string("debug.checks=") + (copy || augment || encoder ? "streams" : "[]"),
        std::string("data.cache=") + (held ? "device" : "none")};
    if (encoder) {
      settings.insert(settings.end(), kSegmenting.begin(), kSegmenting.end());
      settings.insert(settings.end(),
                      {"model.name=unet", "model.width=0.0625", "optimizer.freeze=[\"encoder.*\"]",
                       "optimizer.freeze_statistics=true"});
    } else {
      settings.insert(settings.end(), {"augment.rotate=20", "augment.blur=0.5"});
    }
    rows.push_back({std::string(copy ? "copy_" : "") + (augment ? "augment_" : "") +
                        (encoder ? "encoder_" : "") + (held ? "held_" : "") + "stages",
                    settings});
  }
  return graphed(rows);
}

std::vector<Combination> all_else() {
  const std::string held_out = "data.eval_source=synth:size=32,count=30,split=test";
  return graphed({
      {"effects",
       {"augment.device=cuda", "augment.policy=rand", "augment.erase=0.5", "augment.hue=0.1",
        "augment.shear=10", "augment.grey=0.3", "augment.contrast=0.3"}},
      {"effects_of_cpu", {"augment.device=cpu", "augment.policy=trivial"}},
      {"volumes", kVolumes},
      {"volumes_of_cpu", with(kVolumes, {"augment.device=cpu"})},
      {"volumes_beside", with(kVolumes, {"pipeline.augment=true", "debug.checks=streams"})},
      {"volumes_changed", with(kVolumes, {"augment.rotate=0", "augment.device=cuda"})},
      {"bytes_to_bf16", {"augment.output=bf16", "precision.mode=bf16"}},
      {"mixup", {"augment.mixup=0.5"}},
      {"cutmix", {"augment.cutmix=1", "pipeline.augment=true"}},
      {"accumulated", {"train.accumulate=3", "train.clip_norm=1"}},
      {"accumulated_fp16", {"train.accumulate=2", "precision.mode=fp16", "train.clip_norm=1"}},
      {"checkpointed", {"model.name=resnet18", "model.width=0.125", "train.checkpoint_segments=2"}},
      {"checkpointed_vit",
       {"model.name=vit_tiny", "model.width=0.34", "train.checkpoint_segments=auto"}},
      {"vit_fp32", {"model.name=vit_tiny", "model.width=0.34", "precision.mode=fp32"}},
      {"averaged", {"train.ema=0.9", held_out, "train.eval_every=[\"1 epoch\", \"3 steps\"]"}},
      {"lookahead", {"train.lookahead=[0.5, 2]"}},
      {"evaluated", {held_out, "train.tta=[\"flip\", \"shift:1\"]"}},
      {"evaluated_held", {held_out, "data.cache=device", "debug.off=inference_mode"}},
      {"dropout", {"model.name=mobilenet_v2", "model.width=0.125", "model.dropout=0.5"}},
      {"planar", {"model.name=simple_cnn", "debug.off=channels_last"}},
      {"early_metrics", {"debug.off=late_metrics"}},
      {"host_made", {"debug.off=create_on_device"}},
      {"kept_gradients", {"debug.off=set_to_none"}},
      {"smoothed", {"train.label_smoothing=0.1"}},
      {"anomalies", {"debug.checks=anomaly"}},
      {"histograms", {"watch.histograms=2"}},
      {"samples", {"watch.samples=8", "watch.every=2"}},
      {"batch_auto", {"train.batch=auto:10", "train.memory_gb=0.5"}},
      {"onecycle", {"schedule.name=onecycle"}},
      {"replicas", {"distributed.mode=dp"}},
      {"replicas_bf16",
       {"distributed.mode=dp", "precision.mode=bf16", "model.name=resnet18", "model.width=0.125"}},
      {"replicas_held", {"distributed.mode=dp", "data.cache=device", "pipeline.augment=true"}},
  });
}

class Matrix : public OnFakeCuda, public ::testing::WithParamInterface<Combination> {};

TEST_P(Matrix, RunsWithoutAStreamError) {
  Settings settings = {"data.source=synth:size=32,count=80", "augment.size=32"};
  settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
  const Recipe recipe = host_recipe(settings);
  const int64_t before = live_bytes();
  StreamWatch watch;
  const HostRun run = run_on_host(recipe, dir / "run");
  EXPECT_EQ(run.result.steps, kSteps);
  if (recipe.train.graph == GraphMode::kAuto && why_no_graph(recipe, 1).empty()) {
    const auto wanted = fmt::format("{} of {} steps replayed", kSteps - kWarmUps, kSteps);
    EXPECT_EQ(run.result.graph, wanted);
  }
  for (const std::string& finding : watch.take_findings()) ADD_FAILURE() << finding;
  if (live_bytes() == before) return;
  ADD_FAILURE() << "a run leaves memory behind";
  for (const std::string& text : watch.held()) ADD_FAILURE() << text;
}

std::string name_of(const ::testing::TestParamInfo<Combination>& of) {
  return of.param.name;
}

INSTANTIATE_TEST_SUITE_P(Models, Matrix, ::testing::ValuesIn(all_models()), name_of);
INSTANTIATE_TEST_SUITE_P(Numbers, Matrix, ::testing::ValuesIn(all_precisions_and_optimizers()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Pipelines, Matrix, ::testing::ValuesIn(all_pipelines()), name_of);
INSTANTIATE_TEST_SUITE_P(Rest, Matrix, ::testing::ValuesIn(all_else()), name_of);

}  // namespace
}  // namespace saturate::testing
