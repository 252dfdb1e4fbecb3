// The option table: parsing, overrides, errors, saving, and the generated documents.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "recipe/option_row.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"
#include "tests/paths.h"

namespace saturate {
namespace {

constexpr const char* kMinimal = "[data]\nsource = \"synth:\"\n";

std::string recipe_error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_recipe(text, "r.toml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "no error";
}

TEST(Recipe, SavedTextReadsBackToTheSameRecipe) {
  const Recipe recipe = parse_recipe(
      "seed = 7\n[data]\nsource = \"tar:a \\\"b\\\" \\\\ \\u00e9.tar\"\non_error = \"skip\"\n"
      "[augment]\nmean = [0.1, 2, 0.3]\n[optimizer]\nlr = 1e-5\nfreeze = [\"a*\", \"\\\"b\"]\n"
      "[train]\nepochs = 3\n",
      "r.toml");
  EXPECT_EQ(recipe.data.on_error, OnError::kSkip);
  EXPECT_EQ(recipe.augment.mean, (std::vector<double>{0.1, 2, 0.3}));
  EXPECT_EQ(recipe.optimizer.freeze, (std::vector<std::string>{"a*", "\"b"}));
  const std::string saved = to_toml(recipe);
  const Recipe again = parse_recipe(saved, "saved.toml");
  for (const auto& row : option_table()) EXPECT_EQ(row.get(recipe), row.get(again)) << row.key;
  EXPECT_EQ(saved, to_toml(again));
}

TEST(Recipe, ShuffleAcceptsItsFormerFlag) {
  const auto mode = [](const std::string& text, const std::vector<std::string>& overrides = {}) {
    return parse_recipe(kMinimal + text, "r.toml", overrides).data.shuffle.mode;
  };
  EXPECT_EQ(mode(""), ShuffleMode::kFull);
  EXPECT_EQ(mode("shuffle = true\n"), ShuffleMode::kFull);
  EXPECT_EQ(mode("shuffle = false\n"), ShuffleMode::kNone);
  EXPECT_EQ(mode("shuffle = \"block\"\n"), ShuffleMode::kBlock);
  EXPECT_EQ(mode("", {"data.shuffle=false"}), ShuffleMode::kNone);
  EXPECT_EQ(mode("shuffle = false\n", {"data.shuffle=true"}), ShuffleMode::kFull);
  EXPECT_EQ(mode("", {"data.shuffle=block"}), ShuffleMode::kBlock);
  EXPECT_NE(recipe_error(kMinimal, {"data.shuffle=blocks"}).find("block"), std::string::npos);
  EXPECT_NE(recipe_error(std::string(kMinimal) + "shuffle = 3\n").find("data.shuffle"),
            std::string::npos);
}

TEST(Recipe, DecodedCacheAndFastDecodingExcludeEachOther) {
  const std::vector<std::string> both = {"data.cache=ram:decoded", "data.decode=fast"};
  const std::string error = recipe_error(kMinimal, both);
  EXPECT_NE(error.find("data.cache = ram:decoded"), std::string::npos) << error;
  EXPECT_NE(error.find("data.decode=exact"), std::string::npos) << error;
  for (size_t skipped = 0; skipped < both.size(); ++skipped) {
    auto two = both;
    two.erase(two.begin() + ptrdiff_t(skipped));
    EXPECT_EQ(recipe_error(kMinimal, two), "no error");
  }
}

TEST(Recipe, DecodingOnAGpuIsFastDecoding) {
  EXPECT_EQ(parse_recipe(kMinimal, "test", {}).data.decode_device, DecodeDevice::kAuto);
  const std::string error = recipe_error(kMinimal, {"data.decode_device=cuda"});
  EXPECT_NE(error.find("data.decode_device"), std::string::npos) << error;
  EXPECT_NE(error.find("data.decode=fast"), std::string::npos) << error;
  EXPECT_EQ(recipe_error(kMinimal, {"data.decode_device=cuda", "data.decode=fast"}), "no error");
  EXPECT_EQ(recipe_error(kMinimal, {"data.decode_device=cpu"}), "no error");
}

TEST(Recipe, AnIndexIsAFile) {
  EXPECT_EQ(recipe_error(kMinimal, {"data.index=s3:/x"}), "no error");
  const std::string error = recipe_error(kMinimal, {"data.index=s3://bucket/x"});
  EXPECT_NE(error.find("not a URL"), std::string::npos) << error;
}

TEST(Recipe, ImagesHeldOnTheDeviceExcludeRandomResizedCrops) {
  const std::string error =
      recipe_error(kMinimal, {"data.cache=device", "augment.crop=random_resized"});
  EXPECT_NE(error.find("data.cache"), std::string::npos) << error;
  EXPECT_NE(error.find("data.cache=ram"), std::string::npos) << error;
  EXPECT_EQ(recipe_error(kMinimal, {"data.cache=device", "augment.crop=pad"}), "no error");
  std::vector<std::string> whole = {"data.cache=device:decoded", "augment.crop=random_resized"};
  EXPECT_EQ(recipe_error(kMinimal, whole), "no error");
  whole.push_back("data.decode=fast");
  const std::string fast = recipe_error(kMinimal, whole);
  EXPECT_NE(fast.find("data.decode=exact"), std::string::npos) << fast;
}

TEST(Recipe, EveryRowStoresItsValue) {
  const Recipe defaults;
  for (const auto& row : option_table()) {
    Recipe recipe;
    OptionValue value = row.get(defaults);
    if (auto* flag = std::get_if<bool>(&value)) *flag = !*flag;
    if (auto* text = std::get_if<std::string>(&value); text && row.type == "text")
      *text = row.key == "watch.trace" ? "steps:1-2" : "other";
    if (auto* list = std::get_if<std::vector<double>>(&value)) {
      if (list->size() == 2)
        *list = {0.5, 0.75};
      else
        *list = {0.75, 1, 2};
    }
    if (auto* list = std::get_if<std::vector<std::string>>(&value)) {
      const std::string names = row.range;  // of words; empty: any text
      if (names.empty())
        *list = {"a", "b"};
      else
        *list = {names.substr(0, names.find(','))};
    }
    row.set(recipe, value, "test");
    EXPECT_EQ(row.get(recipe), value) << row.key;
    for (const auto& other : option_table()) {
      if (other.key == row.key) continue;
      EXPECT_EQ(other.get(recipe), other.get(defaults)) << other.key;
    }
  }
}

TEST(Recipe, OverridesTakePrecedenceAndNeedNoQuotes) {
  const Recipe recipe = parse_recipe(
      kMinimal, "r.toml",
      std::vector<std::string>{"data.source=folder:a=b,c", "train.batch=64", "model.name=\"mlp\"",
                               "augment.std=[1, 2, 3]", "debug.off=channels_last"});
  EXPECT_EQ(recipe.data.source, "folder:a=b,c");
  EXPECT_EQ(recipe.train.batch, 64);
  EXPECT_EQ(recipe.model.name, "mlp");
  EXPECT_EQ(recipe.augment.std, (std::vector<double>{1, 2, 3}));
  EXPECT_FALSE(recipe.train.channels_last);
}

TEST(Recipe, OnlyUtf8TextIsAcceptedAndKept) {
  EXPECT_NE(recipe_error(kMinimal, {"data.source=tar:/a\xff.tar"}).find("is not UTF-8"),
            std::string::npos);
  const std::string odd = "tar:/\xc3\xa9 \"x\" \\ \x01\t'.tar";
  const Recipe recipe = parse_recipe(kMinimal, "r.toml", std::vector{"data.source=" + odd});
  EXPECT_EQ(recipe.data.source, odd);
  EXPECT_EQ(parse_recipe(to_toml(recipe), "again.toml").data.source, odd);
}

TEST(Recipe, SomeIntegersMayBeAuto) {
  for (const auto& text : {"[train]\nbatch = \"auto\"\n[data]\nsource = \"synth:\"\n", kMinimal}) {
    const Recipe recipe = parse_recipe(
        text, "r.toml",
        std::vector<std::string>{"train.batch=auto", "train.checkpoint_segments=\"auto\""});
    EXPECT_EQ(recipe.train.batch, kAutomatic);
    EXPECT_EQ(recipe.train.checkpoint_segments, kAutomatic);
    const Recipe again = parse_recipe(to_toml(recipe), "saved.toml");
    EXPECT_EQ(again.train.batch, kAutomatic);
    EXPECT_EQ(again.train.checkpoint_segments, kAutomatic);
  }
  EXPECT_NE(recipe_error(kMinimal, {"train.batch=-1"}).find("out of range: -1"), std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"watch.every=auto"}).find("must be an integer"),
            std::string::npos);
}

TEST(Recipe, AnUnknownKeyNamesTheNearestOne) {
  EXPECT_EQ(recipe_error("[train]\nbatchs = 3\n"),
            "unknown key train.batchs (r.toml:2). Did you mean train.batch?");
  EXPECT_EQ(recipe_error(kMinimal, {"optimiser.lr=1"}),
            "unknown key optimiser.lr (--set optimiser.lr=1). Did you mean optimizer.lr?");
  EXPECT_NE(recipe_error("[trian]\nbatch = 3\n").find("unknown section [trian]"),
            std::string::npos);
}

TEST(Recipe, AValueOutOfRangeNamesKeyAndRange) {
  EXPECT_EQ(recipe_error("[train]\nbatch = 0\n"),
            "train.batch is out of range: 0 (r.toml:2). Give 1 to 1048576");
  EXPECT_EQ(recipe_error(kMinimal, {"train.epochs=-1"}),
            "train.epochs is out of range: -1 (--set train.epochs=-1). Give above 0");
  for (const char* endless : {"train.epochs=nan", "train.epochs=inf", "data.cache_gb=inf"})
    EXPECT_NE(recipe_error(kMinimal, {endless}).find("out of range"), std::string::npos) << endless;
  EXPECT_NE(recipe_error(kMinimal, {"augment.mean=[nan, 0, 0]"}).find("list of 3"),
            std::string::npos);
}

TEST(Recipe, AValueOfAnotherTypeIsRefused) {
  EXPECT_NE(recipe_error("[train]\nbatch = \"many\"\n").find("must be an integer"),
            std::string::npos);
  EXPECT_NE(recipe_error("[train]\nbatch = 2.5\n").find("must be an integer"), std::string::npos);
  EXPECT_NE(recipe_error("[augment]\nmean = [1, 2]\n").find("list of 3"), std::string::npos);
  EXPECT_NE(recipe_error("[data]\non_error = \"skipp\"\n").find("Did you mean \"skip\"?"),
            std::string::npos);
  EXPECT_NE(recipe_error("[train]\nbatch = 1979-05-27\n").find("train.batch"), std::string::npos);
}

TEST(Recipe, AnOverrideThatIsNotTomlIsRefusedByItsKey) {
  EXPECT_EQ(recipe_error(kMinimal, {"train.batch=ten"}),
            "train.batch must be an integer, auto or auto:IMAGES (--set train.batch=ten). Give "
            "auto, such as auto:1024, or 1 to "
            "1048576");
  const auto refused = [](const std::string& text, const std::string& problem) {
    const std::string error = recipe_error(kMinimal, {text});
    EXPECT_TRUE(error.starts_with(problem)) << error;
    EXPECT_NE(error.find("(--set " + text + "). "), std::string::npos) << error;
    EXPECT_EQ(error.find("TOML"), std::string::npos) << error;
  };
  refused("watch.every=", "watch.every must be an integer");
  refused("optimizer.lr=fast", "optimizer.lr must be a number");
  refused("train.drop_last=yes", "train.drop_last must be true or false");
  refused("augment.mean=[1, 2", "augment.mean must be a list of 3 numbers");
  refused("optimizer.freeze=[stem*", "optimizer.freeze must be a list of text");
  refused("seed=99999999999999999999", "seed must be an integer");
  refused("model.name=\"a\"b\"", "model.name has quotes that do not enclose one text");
  EXPECT_EQ(recipe_error(kMinimal, {"optimizer.lr=1\nx = 2"}).find("optimizer.lr must be a number"),
            0u);
}

TEST(Recipe, ASectionIsNotAKeyAndAKeyIsNotASection) {
  EXPECT_EQ(recipe_error(kMinimal, {"train=3"}).find("train is a section, which has no value"), 0u);
  const std::string error = recipe_error("train = 3\n[data]\nsource = \"synth:\"\n");
  EXPECT_EQ(error.find("train is a section, which has no value (r.toml:1). Name a key in it, such "
                       "as train."),
            0u)
      << error;
  EXPECT_EQ(recipe_error("[train.batch]\nx = 1\n").find("train.batch is a key, not a section"), 0u);
}

TEST(Recipe, ListsMayHaveAnyLengthExceptColours) {
  const Recipe recipe = parse_recipe(
      kMinimal, "r.toml",
      std::vector<std::string>{"schedule.milestones=[1, 2.5]", "optimizer.freeze=[\"stem*\"]"});
  EXPECT_EQ(recipe.schedule.milestones, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(recipe.optimizer.freeze, std::vector<std::string>{"stem*"});
  EXPECT_NO_THROW(
      parse_recipe(kMinimal, "r.toml",
                   std::vector<std::string>{"optimizer.freeze=[]", "schedule.milestones=[]"}));
  EXPECT_NE(recipe_error(kMinimal, {"schedule.milestones=[0, 1]"}).find("out of range: 0"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"schedule.milestones=3"}).find("list of numbers"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"optimizer.freeze=[1]"}).find("list of text"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"optimizer.freeze=[1, \"a\"]"}).find("optimizer.freeze"),
            std::string::npos);
}

TEST(Recipe, WeightAveragesExcludeHalfPrecisionWeightsAndNeedAShareBelowOne) {
  for (const std::string key : {"train.ema", "train.lookahead"}) {
    EXPECT_NE(recipe_error(kMinimal, {key + "=1"}).find(key + " must be below 1"),
              std::string::npos);
    for (const char* mode :
         {"precision.mode=bf16-o2", "precision.mode=fp16-o2", "precision.mode=fp16-o3"})
      EXPECT_NE(recipe_error(kMinimal, {key + "=0.5", mode}).find(key + " cannot average weights"),
                std::string::npos)
          << mode;
    EXPECT_EQ(recipe_error(kMinimal, {key + "=0.5", "precision.mode=bf16"}), "no error");
  }
}

TEST(Recipe, AtMostOneWeightAverage) {
  EXPECT_NE(recipe_error(kMinimal, {"train.ema=0.9", "train.swa=0.5"})
                .find("train.swa cannot be combined with train.ema"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"train.swa=0.5", "precision.mode=bf16-o2"})
                .find("train.swa cannot average weights"),
            std::string::npos);
  EXPECT_EQ(recipe_error(kMinimal, {"train.swa=0.5"}), "no error");
}

TEST(Recipe, ScheduleLengthsMustFitTheRun) {
  const auto refused = [](std::vector<std::string> overrides, const std::string& part) {
    overrides.push_back("train.epochs=10");
    EXPECT_NE(recipe_error(kMinimal, overrides).find(part), std::string::npos)
        << overrides[0] << ": " << recipe_error(kMinimal, overrides);
  };
  for (const std::string name : {"step", "exponential", "cosine_restarts"})
    refused({"schedule.name=" + name}, "schedule.every_epochs is missing");
  refused({"schedule.name=step", "schedule.every_epochs=10"}, "only 10 epochs follow");
  refused({"schedule.name=cosine_restarts", "schedule.every_epochs=9", "schedule.warmup_epochs=2"},
          "only 8 epochs follow");
  refused({"schedule.name=multistep"}, "schedule.milestones is missing");
  refused({"schedule.name=multistep", "schedule.milestones=[3, 3]"}, "must rise");
  refused({"schedule.name=multistep", "schedule.milestones=[3, 9]", "schedule.warmup_epochs=1"},
          "has 9 when only 9 epochs follow");
  refused({"schedule.name=onecycle", "schedule.warmup_epochs=1"}, "starts with a rise");
  refused({"schedule.name=onecycle", "schedule.rise=1"}, "nothing after the rise");
  refused({"schedule.name=onecycle", "optimizer.momentum=0", "optimizer.nesterov=false"},
          "needs a momentum to cycle");
  refused({"schedule.name=onecycle", "optimizer.name=muon", "schedule.cycle_momentum=[0.85, 1]"},
          "schedule.cycle_momentum is 1, and a mean");
  refused({"optimizer.name=muon", "optimizer.momentum=1"}, "optimizer.momentum is 1, and a mean");
  refused({"schedule.cycle_momentum=[0.96, 0.95]"}, "schedule.cycle_momentum has low above high");
  refused({"schedule.name=plateau"}, "needs evaluations");
  refused({"schedule.name=plateau", "data.eval_source=synth:", "train.eval_every=0"},
          "train.eval_every is 0");
  EXPECT_EQ(recipe_error(kMinimal, {"schedule.name=plateau",
                                    "data.eval_source=synth:", "train.eval_every=5 steps"}),
            "no error");
  EXPECT_EQ(recipe_error(kMinimal, {"schedule.name=cosine_restarts", "schedule.every_epochs=10"}),
            "no error");
}

TEST(Recipe, EarlyStoppingNeedsEvaluationsBeforeTheEnd) {
  const std::vector<std::string> none = {"train.early_stop=3",
                                         "data.eval_source=synth:", "train.eval_every=0"};
  EXPECT_NE(recipe_error(kMinimal, none).find("the only one is at the end"), std::string::npos);
  for (const char* more : {"train.eval_every=5 steps", "train.monitor=train_loss"}) {
    auto some = none;
    some.push_back(more);
    EXPECT_EQ(recipe_error(kMinimal, some), "no error") << more;
  }
}

// As floats, the type of weights and gradients, they would be infinite or zero.
TEST(Recipe, FactorsBeyondFloatAreRefusedByName) {
  for (const std::string key :
       {"train.clip_norm", "optimizer.lr", "optimizer.weight_decay", "optimizer.trust"}) {
    EXPECT_NE(recipe_error(kMinimal, {key + "=1e39"}).find(key + " is out of range: 1e+39"),
              std::string::npos)
        << recipe_error(kMinimal, {key + "=1e39"});
    EXPECT_EQ(recipe_error(kMinimal, {key + "=1e30"}), "no error");
  }
  EXPECT_NE(recipe_error(kMinimal, {"optimizer.eps=1e-300"}).find("optimizer.eps is out of range"),
            std::string::npos);
}

TEST(Recipe, BrokenTomlNamesTheLine) {
  EXPECT_NE(recipe_error("seed = 1\n[data\n").find("(r.toml:2)"), std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"train.batch=["}).find("--set train.batch=["),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"train.batch"}).find("no value"), std::string::npos);
}

TEST(Recipe, ConflictingKeysAreRefused) {
  EXPECT_NE(recipe_error("").find("data.source is missing"), std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"optimizer.momentum=0"}).find("needs a momentum"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"train.accumulate=129"}).find("above train.batch"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"train.batch=auto", "train.accumulate=2"}).find("chosen by"),
            std::string::npos);
  EXPECT_EQ(recipe_error(kMinimal, {"train.batch=auto:64"}), "no error");
  for (const char* wrong : {"auto:", "auto:0", "auto:2.5", "auto:1048577", "automatic"})
    EXPECT_NE(recipe_error(kMinimal, {"train.batch=" + std::string(wrong)}).find("auto:IMAGES"),
              std::string::npos)
        << wrong;
  EXPECT_NE(
      recipe_error(kMinimal, {"precision.mode=tf32", "debug.off=tf32"}).find("debug.off has tf32"),
      std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"train.compiled=a.pt2", "precision.mode=fp16-o2"})
                .find("train.compiled needs weights in fp32"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"train.compiled=a.pt2", "train.accumulate=3"})
                .find("needs micro-batches of equal size"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"schedule.warmup_epochs=10"}).find("as long as the run"),
            std::string::npos);
  EXPECT_NE(recipe_error(kMinimal, {"distributed.find_unused=true", "train.checkpoint_segments=2"})
                .find("cannot search in"),
            std::string::npos);
}

// A new key takes the place of another, or joins one (recipe/compound_rows.h).
TEST(Recipe, HasAtMost133Keys) {
  EXPECT_LE(option_table().size(), 133u);
  EXPECT_EQ(option_table().size(), recipe_options().size());
}

TEST(Recipe, TheDocumentIsGeneratedFromTheTable) {
  std::ifstream file(testing::source_path("docs/recipe.md"));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), recipe_markdown())
      << "run: build/saturate list options --markdown > docs/recipe.md";
}

TEST(Recipe, ShippedRecipesAreValid) {
  for (const char* name : {"demo", "cifar10", "cifar10-quick", "cifar10-speed", "imagenet-sample",
                           "poor", "segment", "segment-toy"})
    EXPECT_NO_THROW(
        load_recipe(Env::posix(), testing::source_path(std::string("recipes/") + name + ".toml")))
        << name;
}

}  // namespace
}  // namespace saturate
