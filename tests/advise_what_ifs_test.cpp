// The changes that a diagnosis tries, by recipe, source and machine.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "advise/diagnose.h"
#include "advise/warm_source.h"
#include "advise/what_ifs.h"
#include "data/source_index.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

std::set<std::string> texts(const std::vector<WhatIf>& what_ifs) {
  std::set<std::string> found;
  for (const WhatIf& other : what_ifs)
    found.insert(other.text() + (other.skipped.empty() ? "" : " skipped"));
  return found;
}

Recipe plain_recipe(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"data.source=folder:x", "data.threads=2",
                                  "train.threads=8",      "train.batch=64",
                                  "train.device=cpu",     "precision.mode=fp32"};
  all.insert(all.end(), settings.begin(), settings.end());
  return parse_recipe("", "test", all);
}

SourceFacts photographs() {
  SourceFacts facts;
  facts.samples = 1000;
  facts.has_jpeg = facts.is_encoded = true;
  facts.bytes = 1e5;
  facts.pixel_bytes = 5e5;
  return facts;
}

Machine eight_cores() {
  Machine machine;
  machine.cores = 8;
  machine.memory_bytes = 2e9;
  return machine;
}

TEST(WhatIfs, ForAPlainRecipe) {
  EXPECT_EQ(
      texts(input_what_ifs(plain_recipe({}), eight_cores(), photographs())),
      (std::set<std::string>{"data.threads=8", "data.threads=1", "data.prefetch=8",
                             "data.decode=fast", "data.cache=ram", "data.cache=ram:decoded"}));
  EXPECT_EQ(
      texts(step_what_ifs(plain_recipe({}), eight_cores(), photographs(), 0)),
      (std::set<std::string>{"train.batch=128", "train.batch=32", "train.graph=auto skipped"}));
}

TEST(WhatIfs, ForASlowRecipe) {
  const Recipe recipe =
      plain_recipe({"train.checkpoint_segments=3", "train.accumulate=2", "train.threads=1",
                    "checkpoint.every=1 step", "debug.checks=anomaly",
                    "debug.off=[\"fused\", \"channels_last\", \"late_metrics\", \"background\"]"});
  Machine machine = eight_cores();
  machine.has_bf16 = true;
  EXPECT_EQ(texts(step_what_ifs(recipe, machine, photographs(), 0.5)),
            (std::set<std::string>{
                "debug.off=[\"fused\", \"late_metrics\", \"background\"]",  // channels_last is on
                "debug.off=[\"fused\", \"channels_last\", \"late_metrics\"]",
                "debug.off=[\"channels_last\", \"late_metrics\", \"background\"]",
                "debug.off=[\"fused\", \"channels_last\", \"background\"]", "debug.checks=[]",
                "train.checkpoint_segments=0", "train.accumulate=1",
                "checkpoint.every=\"100 steps\"", "train.threads=8", "precision.mode=bf16",
                "train.batch=128", "train.batch=32", "train.graph=auto skipped"}));
}

TEST(WhatIfs, AugmentationIsRemovedAsAWholeAndOneByOne) {
  const Recipe recipe = plain_recipe({"augment.policy=rand", "augment.blur=0.5",
                                      "augment.gaussian_noise=0.1", "data.decode=fast"});
  const auto all = texts(input_what_ifs(recipe, eight_cores(), photographs()));
  EXPECT_TRUE(all.contains("augment.policy=none augment.blur=0 augment.gaussian_noise=0"));
  EXPECT_TRUE(all.contains("data.cache=ram:decoded data.decode=exact"));
  EXPECT_FALSE(all.contains("data.decode=fast"));
  EXPECT_EQ(
      texts(single_effects(recipe)),
      (std::set<std::string>{"augment.policy=none", "augment.blur=0", "augment.gaussian_noise=0"}));
  EXPECT_TRUE(single_effects(plain_recipe({"augment.blur=0.5"})).empty());
}

TEST(WhatIfs, ASourceThatDoesNotFitInMemoryIsNotCached) {
  Machine machine = eight_cores();
  machine.memory_bytes = 5e8;  // half of it is available: 0.1 GB fits, 0.5 GB does not
  const auto found = texts(input_what_ifs(plain_recipe({}), machine, photographs()));
  EXPECT_TRUE(found.contains("data.cache=ram"));
  EXPECT_TRUE(found.contains("data.cache=ram:decoded skipped"));
}

TEST(WhatIfs, DeviceCacheKernelAndStreamsAreTriedOnAGpu) {
  Machine machine = eight_cores();
  machine.on_gpu = machine.augments = true;
  const auto tried = [&](const std::vector<std::string>& settings, int64_t samples = 1000) {
    SourceFacts facts = photographs();
    facts.samples = size_t(samples);
    std::set<std::string> found;
    std::vector<std::string> all = {"augment.size=64", "augment.crop=pad", "augment.device=cuda",
                                    "pipeline.copy=true"};
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string& text : texts(input_what_ifs(plain_recipe(all), machine, facts)))
      if (text.starts_with("pipeline.") || text.starts_with("augment.") ||
          text.starts_with("data.cache=device"))
        found.insert(text);
    return found;
  };
  using Set = std::set<std::string>;
  EXPECT_EQ(tried({}), (Set{"augment.device=cpu", "pipeline.augment=true", "data.cache=device"}));
  EXPECT_EQ(
      tried({"pipeline.copy=false", "augment.device=cpu"}),
      (Set{"pipeline.copy=true", "augment.device=cuda", "data.cache=device augment.device=cuda"}));
  EXPECT_EQ(tried({"pipeline.augment=true", "data.cache=device"}), Set{});
  EXPECT_EQ(tried({"augment.crop=random_resized"}),
            (Set{"augment.device=cpu", "pipeline.augment=true"}))
      << "cached images are cropped already";
  EXPECT_TRUE(tried({}, 100'000).contains("data.cache=device skipped"));
  machine.augments = false;
  EXPECT_EQ(tried({"augment.device=cpu", "pipeline.copy=false"}), Set{"pipeline.copy=true"});
  machine.on_gpu = false;
  EXPECT_EQ(tried({"augment.device=cpu", "pipeline.copy=false"}), Set{});
}

TEST(WhatIfs, JpegsInSegmentsAreTriedOnAGpu) {
  Machine machine = eight_cores();
  machine.on_gpu = machine.augments = true;
  SourceFacts facts = photographs();
  facts.is_segmented = true;
  const auto tried = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"augment.crop=random_resized", "augment.device=cuda",
                                    "data.decode=fast"};
    all.insert(all.end(), settings.begin(), settings.end());
    std::set<std::string> found;
    for (const std::string& text : texts(input_what_ifs(plain_recipe(all), machine, facts)))
      if (text.find("data.decode_device") != std::string::npos) found.insert(text);
    return found;
  };
  using Set = std::set<std::string>;
  EXPECT_EQ(tried({}), Set{"data.decode_device=cuda"});
  EXPECT_EQ(tried({"data.decode=exact", "augment.device=cpu"}),
            Set{"data.decode_device=cuda data.decode=fast augment.device=cuda"});
  EXPECT_EQ(tried({"data.decode_device=cuda"}),
            (Set{"augment.device=cpu data.decode_device=cpu",
                 "data.cache=ram:decoded data.decode=exact data.decode_device=cpu"}));
  for (const char* never : {"augment.crop=pad", "augment.crop=letterbox"})
    EXPECT_EQ(tried({never}), Set{}) << never;
  EXPECT_EQ(tried({"augment.crop=center", "data.cache=device"}), Set{});
  facts.is_segmented = false;
  EXPECT_EQ(tried({}), Set{});
  facts.is_indexed = true;
  EXPECT_EQ(tried({}), Set{"data.decode_device=cuda"});
  machine.augments = false;
  EXPECT_EQ(tried({}), Set{});
}

TEST(SourceFacts, TellWhetherJpegsAreIndexed) {
  const testing::TempDir dir;
  for (int i = 0; i < 4; ++i)
    testing::write_file(dir / "set/a/" + std::to_string(i) + ".jpg",
                        testing::noise_jpeg(200 + i, 180, uint64_t(i)));
  const auto index =
      std::make_shared<SourceIndex>(Env::posix(), dir / "x.points", SourceIndex::Kind::kGiven);
  const auto data = with_index(open_dataset(Env::posix(), dir / "set"), index);
  EXPECT_FALSE(source_facts(*data, {0, 1, 2, 3}).is_indexed);
  index_dataset(*data, *index, 1, ProgressCallback());
  EXPECT_TRUE(source_facts(*data, {0, 1, 2, 3}).is_indexed);
}

TEST(WhatIfs, OnlyPrecisionsOfTheHardwareAreTried) {
  const auto precisions = [](const char* mode, bool on_gpu, bool has_bf16) {
    Machine machine = eight_cores();
    machine.on_gpu = on_gpu;
    machine.has_bf16 = has_bf16;
    std::set<std::string> found;
    for (const std::string& text : texts(step_what_ifs(
             plain_recipe({std::string("precision.mode=") + mode}), machine, photographs(), 0)))
      if (text.starts_with("precision.mode=")) found.insert(text.substr(15));
    return found;
  };
  using Set = std::set<std::string>;
  EXPECT_EQ(precisions("fp32", false, false), Set{});
  EXPECT_EQ(precisions("fp32", false, true), Set{"bf16"});
  EXPECT_EQ(precisions("bf16", false, false), Set{"fp32"});
  EXPECT_EQ(precisions("fp32", true, true), (Set{"bf16", "fp16", "tf32"}));
  EXPECT_EQ(precisions("bf16", true, true), Set{});
}

TEST(WhatIfs, AGraphIsTriedOnAGpuIfNothingPreventsIt) {
  const auto skipped = [](const std::vector<std::string>& settings, bool on_gpu) {
    Machine machine = eight_cores();
    machine.on_gpu = on_gpu;
    for (const WhatIf& other : step_what_ifs(plain_recipe(settings), machine, photographs(), 0))
      if (other.text() == "train.graph=auto") return other.skipped;
    return std::string("not there");
  };
  EXPECT_EQ(skipped({}, true), "");
  EXPECT_NE(skipped({}, false).find("needs a GPU"), std::string::npos);
  EXPECT_NE(skipped({"augment.mixup=0.2"}, true).find("augment.mixup"), std::string::npos);
  EXPECT_EQ(skipped({"train.graph=auto"}, true), "not there");
}

TEST(WhatIfs, FrequentRecordsAreMadeRarer) {
  const auto logging = [](const std::vector<std::string>& settings, bool on_gpu) {
    Machine machine = eight_cores();
    machine.on_gpu = on_gpu;
    std::set<std::string> found;
    for (const WhatIf& other : step_what_ifs(plain_recipe(settings), machine, photographs(), 0))
      if (other.cause == Cause::kLogging) found.insert(other.text());
    return found;
  };
  using Set = std::set<std::string>;
  EXPECT_EQ(logging({}, false), Set{});
  EXPECT_EQ(logging({"watch.every=1"}, false), Set{"watch.every=10"});
  EXPECT_EQ(logging({"watch.every=1"}, true), Set{}) << "on a GPU it is host-sync";
  EXPECT_EQ(logging({"watch.histograms=5"}, true), Set{"watch.histograms=50"});
}

TEST(WhatIfs, EvaluationsAndSavesOfARunAreCounted) {
  Recipe recipe;
  EXPECT_EQ(evaluations_of(recipe.train, 3, 10), 3);
  EXPECT_EQ(evaluations_of(recipe.train, 0.5, 10), 1) << "at the end";
  recipe.train.eval_every = 2;
  recipe.train.eval_every_steps = 4;
  EXPECT_EQ(evaluations_of(recipe.train, 3, 10), 7 + 1 + 1) << "and at the end";
  EXPECT_EQ(evaluations_of(recipe.train, 4, 5), 5 + 2) << "the last one is at the end";
  recipe.train.eval_every = 6;
  recipe.train.eval_every_steps = 0;
  EXPECT_EQ(evaluations_of(recipe.train, 10, 10), 2);
  recipe.checkpoint.every = 2;
  recipe.checkpoint.every_steps = 0;
  recipe.checkpoint.every_minutes = 0;
  EXPECT_EQ(saves_of(recipe.checkpoint, 5, 10, 600), 2);
  recipe.checkpoint.every_steps = 25;
  recipe.checkpoint.every_minutes = 5;
  EXPECT_EQ(saves_of(recipe.checkpoint, 5, 10, 600), 2 + 2 + 2);
}

TEST(WhatIfs, RequestedOnesHaveTheCauseOfTheirKey) {
  const auto asked = asked_what_ifs(
      plain_recipe({}),
      {"train.compiled=a.pt2", "data.threads=3", "model.width=2", "debug.off=set_to_none",
       "debug.off=keep_memory", "debug.off=cudnn_heuristics", "debug.off=create_on_device",
       "watch.every=50", "watch.csv=false", "pipeline.copy=true", "pipeline.augment=true"});
  ASSERT_EQ(asked.size(), 11u);
  EXPECT_EQ(asked[0].cause, Cause::kLaunchOverhead);
  EXPECT_EQ(asked[1].cause, Cause::kInputThreads);
  EXPECT_EQ(asked[2].cause, Cause::kComputeBound);
  EXPECT_EQ(asked[3].cause, Cause::kLaunchOverhead);
  EXPECT_EQ(asked[4].cause, Cause::kMemory);
  EXPECT_EQ(asked[5].cause, Cause::kLayout);
  EXPECT_EQ(asked[6].cause, Cause::kHostSync);
  EXPECT_EQ(asked[7].cause, Cause::kHostSync);
  EXPECT_EQ(asked[8].cause, Cause::kLogging);
  EXPECT_EQ(asked[9].cause, Cause::kCopy);
  EXPECT_EQ(asked[10].cause, Cause::kAugmentation);
}

}  // namespace
}  // namespace saturate
