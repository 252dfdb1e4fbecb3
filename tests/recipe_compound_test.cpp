// Keys whose value sets several members, and the retired keys that they replace.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/printable.h"
#include "recipe/option_row.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {
namespace {

using Texts = std::vector<std::string>;

constexpr const char* kSynthRecipe = "[data]\nsource = \"synth:\"\n";

Recipe recipe_with(const Texts& overrides) {
  return parse_recipe(kSynthRecipe, "r.toml", overrides);
}

std::string error_with(const Texts& overrides) {
  try {
    recipe_with(overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "no error";
}

// The key's value after an override, as another override; it reads back to the same.
std::string stored_value(const std::string& text) {
  const std::string key = text.substr(0, text.find('='));
  const std::string found = setting_of(recipe_with({text}), key);
  EXPECT_EQ(setting_of(recipe_with({found}), key), found);
  return found.substr(key.size() + 1);
}

TEST(CompoundKeys, AListHasANumberForEachMember) {
  const Recipe recipe = recipe_with({"augment.scale=[0.2, 0.5]", "optimizer.betas=[0.8, 0.7]",
                                     "train.lookahead=[0.5, 3]", "precision.loss_scale=1024"});
  EXPECT_EQ(recipe.augment.scale_min, 0.2);
  EXPECT_EQ(recipe.augment.scale_max, 0.5);
  EXPECT_EQ(recipe.optimizer.beta1, 0.8);
  EXPECT_EQ(recipe.optimizer.beta2, 0.7);
  EXPECT_EQ(recipe.train.lookahead, 0.5);
  EXPECT_EQ(recipe.train.lookahead_every, 3);
  EXPECT_EQ(recipe.train.lookahead_power, 0);
  EXPECT_EQ(recipe.precision.initial_scale, 1024);
  EXPECT_EQ(recipe.precision.growth_interval, 2000);
  EXPECT_EQ(error_with({"augment.scale=[0.5, 0.2]"}),
            "augment.scale has low above high (--set augment.scale=[0.5, 0.2]). Write it as [0.2, "
            "0.5]");
  for (const char* wrong : {"augment.scale=0.5", "augment.scale=[0.5]", "augment.scale=[0, 1]",
                            "optimizer.betas=[0.9, 2]", "train.lookahead=[0.5, 2.5]",
                            "train.lookahead=[]", "augment.ratio=[\"a\", \"b\"]"})
    EXPECT_TRUE(error_with({wrong}).starts_with(std::string(wrong).substr(0, 13))) << wrong;
}

// A whole number stays one in a saved recipe.
TEST(CompoundKeys, AListMayBeginWithAWholeNumber) {
  const Recipe recipe = recipe_with(
      {"train.early_stop=[5, 0.25]", "train.monitor=train_loss", "schedule.patience=[0, 3]"});
  EXPECT_EQ(recipe.train.early_stop, 5);
  EXPECT_EQ(recipe.train.min_delta, 0.25);
  EXPECT_EQ(recipe.schedule.patience, 0);
  EXPECT_EQ(recipe.schedule.cooldown, 3);
  EXPECT_EQ(stored_value("schedule.patience=4"), "4");
  EXPECT_EQ(stored_value("schedule.patience=[4, 0]"), "4");
  EXPECT_EQ(stored_value("train.early_stop=[0, 0.5]"), "[0.0, 0.5]");
  EXPECT_EQ(recipe_with({"schedule.patience=[2, 3]", "schedule.patience=7"}).schedule.cooldown, 0)
      << "not added to";
  EXPECT_EQ(error_with({"train.early_stop=ten"}),
            "train.early_stop must be 1 to 2 numbers (--set train.early_stop=ten). Write it as "
            "[values, min_delta]");
  for (const char* wrong :
       {"train.early_stop=2.5", "train.early_stop=[1, 2, 3]", "train.early_stop=[3, -1]",
        "train.early_stop=-1", "schedule.patience=[1, 0.5]", "schedule.patience=true"})
    EXPECT_TRUE(error_with({wrong}).starts_with(std::string(wrong).substr(0, 16))) << wrong;
}

TEST(CompoundKeys, CycleMomentumIsTwoNumbersOrFalse) {
  EXPECT_TRUE(recipe_with({}).schedule.cycle_momentum);
  for (const char* off : {"schedule.cycle_momentum=false", "schedule.cycle_momentum=[]"})
    EXPECT_FALSE(recipe_with({off}).schedule.cycle_momentum);
  const Recipe recipe = recipe_with({"schedule.cycle_momentum=[0.5, 0.6]"});
  EXPECT_TRUE(recipe.schedule.cycle_momentum);
  EXPECT_EQ(recipe.schedule.momentum_low, 0.5);
  EXPECT_EQ(recipe.schedule.momentum_high, 0.6);
}

TEST(CompoundKeys, WordsHaveNumbersOrDefaults) {
  EXPECT_EQ(stored_value("data.shuffle=block"), "block:128");
  EXPECT_EQ(stored_value("data.shuffle=block:7"), "block:7");
  EXPECT_EQ(stored_value("augment.crop=pad"), "pad:4");
  EXPECT_EQ(stored_value("augment.crop=pad_reflect:2"), "pad_reflect:2");
  EXPECT_EQ(stored_value("augment.policy=rand"), "rand:2:9");
  EXPECT_EQ(stored_value("augment.policy=rand:3"), "rand:3:9");
  EXPECT_EQ(stored_value("augment.flip=alternate"), "\"alternate:0.5\"");
  EXPECT_EQ(stored_value("augment.flip=0.25"), "0.25");
  EXPECT_EQ(stored_value("augment.contrast=gamma:0.5"), "\"gamma:0.5\"");
  EXPECT_EQ(stored_value("augment.contrast=0.5"), "0.5");
  EXPECT_EQ(stored_value("augment.crop=random"), "random");
  EXPECT_TRUE(error_with({"augment.contrast=gamma"}).ends_with("Write it as gamma:EXPONENT"));
  EXPECT_EQ(stored_value("distributed.compress=powersgd:2"), "powersgd:2");
  EXPECT_EQ(stored_value("data.cache=device:decoded"), "device:decoded");
  EXPECT_EQ(stored_value("train.monitor=eval_loss:max"), "eval_loss:max");
  EXPECT_EQ(stored_value("data.stage=/scratch"), "/scratch");
  EXPECT_EQ(stored_value("data.stage=tmpfs"), "tmpfs");
  EXPECT_EQ(stored_value("watch.prometheus=9400"), "9400");
  EXPECT_EQ(stored_value("watch.prometheus=::1:9400"), "::1:9400");
  const Recipe recipe = recipe_with({"augment.crop=pad_reflect:2", "watch.prometheus=::1:9400"});
  EXPECT_EQ(recipe.augment.crop, CropKind::kPad);
  EXPECT_EQ(recipe.augment.pad_mode, PadMode::kReflect);
  EXPECT_EQ(recipe.augment.padding, 2);
  EXPECT_EQ(recipe.watch.prometheus_address, "::1");
  EXPECT_EQ(recipe.watch.prometheus_port, 9400);
  EXPECT_NE(error_with({"watch.prometheus=,host"}).find("has no port"), std::string::npos);
  EXPECT_EQ(error_with({"data.shuffle=block:0"}),
            "data.shuffle is out of range: 0 (--set data.shuffle=block:0). Give 1 to 1073741824 "
            "for samples");
  for (const char* wrong :
       {"data.shuffle=blocks", "data.shuffle=block:x", "data.shuffle=full:3",
        "augment.crop=pad:", "augment.policy=rand:9", "augment.policy=rand:2:3:4",
        "data.cache=ram:encoded", "train.monitor=eval_loss:mean", "augment.flip=alternate:0",
        "data.stage=tmps", "watch.prometheus=localhost", "watch.prometheus=70000"})
    EXPECT_TRUE(error_with({wrong}).starts_with(std::string(wrong).substr(0, 10))) << wrong;
}

TEST(CompoundKeys, AWordForWhatIsTheDefaultNowHasNoEffect) {
  const auto off = [](const std::string& value) {
    return setting_of(recipe_with({"debug.off=" + value}), "debug.off");
  };
  EXPECT_EQ(off("['cudnn_benchmark', 'fused']"), off("fused"));
  EXPECT_EQ(off("cudnn_benchmark"), off("[]"));
  EXPECT_NE(off("cudnn_heuristics"), off("[]"));
}

TEST(CompoundKeys, IntervalsHaveUnits) {
  const auto expect = [](const std::string& value, int epochs, int steps, double minutes) {
    const CheckpointOptions found = recipe_with({"checkpoint.every=" + value}).checkpoint;
    EXPECT_EQ(found.every, epochs) << value;
    EXPECT_EQ(found.every_steps, steps) << value;
    EXPECT_EQ(found.every_minutes, minutes) << value;
  };
  expect("2", 2, 0, 0);
  expect("0", 0, 0, 0);
  expect("[]", 0, 0, 0);
  expect("500 steps", 0, 500, 0);
  expect("\"1 epoch\"", 1, 0, 0);
  expect("0.5 minutes", 0, 0, 0.5);
  expect("[\"1 epoch\", \"1 step\", \"10 minutes\"]", 1, 1, 10);
  EXPECT_EQ(stored_value("checkpoint.every=[\"500 steps\"]"), "\"500 steps\"");
  EXPECT_EQ(stored_value("checkpoint.every=[\"1 epoch\", \"500 steps\"]"),
            "[\"1 epoch\", \"500 steps\"]");
  EXPECT_EQ(stored_value("train.eval_every=[\"2 epochs\"]"), "2");
  for (const char* wrong :
       {"train.eval_every=5 hours", "train.eval_every=10 minutes", "train.eval_every=2.5",
        "train.eval_every=-1", "train.eval_every=[1, 2]", "train.eval_every=[1 epoch, 2 epochs]"})
    EXPECT_TRUE(error_with({wrong}).starts_with("train.eval_every")) << wrong;
}

TEST(CompoundKeys, NamesSwitchMembers) {
  EXPECT_TRUE(recipe_with({}).optimizer.fused);
  const Recipe recipe = recipe_with({"debug.off=[\"sdpa\", \"fused\"]", "debug.checks=anomaly",
                                     "train.tta=[\"shift:2\", \"flip\"]"});
  EXPECT_FALSE(recipe.optimizer.fused);
  EXPECT_TRUE(recipe.optimizer.set_to_none);
  EXPECT_EQ(recipe.model.attention, Attention::kNaive);
  EXPECT_TRUE(recipe.train.detect_anomaly);
  EXPECT_FALSE(recipe.pipeline.check);
  EXPECT_TRUE(recipe.train.eval_flip);
  EXPECT_EQ(recipe.train.eval_shift, 2);
  EXPECT_EQ(setting_of(recipe, "debug.off"), "debug.off=[\"fused\", \"sdpa\"]");
  EXPECT_EQ(recipe_with({"debug.off=[fused, sdpa]"}).model.attention, Attention::kNaive)
      << "as after a shell";
  EXPECT_TRUE(recipe_with({"debug.off=fused", "debug.off=[]"}).optimizer.fused)
      << "the list is replaced";
  EXPECT_EQ(error_with({"debug.off=[\"fussed\"]"}),
            "debug.off has no value \"fussed\" (--set debug.off=[\"fussed\"]). Did you mean "
            "\"fused\"?");
  for (const char* wrong : {"debug.off=true", "debug.off=[1]", "debug.off=[fused"})
    EXPECT_NE(error_with({wrong}).find("must be a list of text"), std::string::npos) << wrong;
  EXPECT_TRUE(error_with({"train.tta=shift"}).starts_with("train.tta has no number in \"shift\""));
  EXPECT_TRUE(
      error_with({"train.tta=[shift:1, shift:2]"}).starts_with("train.tta has shift twice"));
}

// A non-default value of each retired key, with other keys that give it an effect.
struct Old {
  std::string value, now;
  Texts beside = {};
};
const std::map<std::string, Old>& old_values() {
  static const std::map<std::string, Old> table = {
      {"train.channels_last", {"false", "debug.off=['channels_last']"}},
      {"train.cudnn_benchmark", {"true", "debug.off=['cudnn_heuristics']"}},
      {"train.create_on_device", {"false", "debug.off=['create_on_device']"}},
      {"train.keep_memory", {"false", "debug.off=['keep_memory']"}},
      {"train.inference_mode", {"false", "debug.off=['inference_mode']"}},
      {"train.late_metrics", {"false", "debug.off=['late_metrics']"}},
      {"checkpoint.background", {"false", "debug.off=['background']"}},
      {"optimizer.fused", {"false", "debug.off=['fused']"}},
      {"optimizer.set_to_none", {"false", "debug.off=['set_to_none']"}},
      {"precision.tf32", {"false", "debug.off=['tf32']"}},
      {"model.attention", {"\"naive\"", "debug.off=['sdpa']"}},
      {"train.detect_anomaly", {"true", "debug.checks=['anomaly']"}},
      {"pipeline.check", {"true", "debug.checks=['streams']", {"pipeline.copy=true"}}},
      {"train.eval_flip", {"true", "train.tta=['flip']"}},
      {"train.eval_shift", {"2", "train.tta=['shift:2']"}},
      {"train.eval_every_steps", {"5", "train.eval_every=['1 epoch', '5 steps']"}},
      {"train.lookahead_every", {"3", "train.lookahead=[0.5, 3.0]", {"train.lookahead=0.5"}}},
      {"train.lookahead_power", {"2", "train.lookahead=[0.5, 5.0, 2.0]", {"train.lookahead=0.5"}}},
      {"train.monitor_mode", {"\"max\"", "train.monitor=auto:max"}},
      {"train.min_delta", {"0.5", "train.early_stop=[0.0, 0.5]"}},
      {"checkpoint.every_steps", {"5", "checkpoint.every=['1 epoch', '5 steps']"}},
      {"checkpoint.every_minutes", {"0.5", "checkpoint.every=['1 epoch', '0.5 minutes']"}},
      {"watch.prometheus_port", {"9400", "watch.prometheus=9400"}},
      {"watch.prometheus_address",
       {"\"0.0.0.0\"", "watch.prometheus=0.0.0.0:9400", {"watch.prometheus=9400"}}},
      {"watch.prometheus_hosts",
       {"\"node7,*\"", "watch.prometheus=9400,node7,*", {"watch.prometheus=9400"}}},
      {"train.effective_batch", {"64", "train.batch=\"auto:64\"", {"train.batch=auto"}}},
      {"distributed.powersgd_rank",
       {"2", "distributed.compress=powersgd:2", {"distributed.compress=powersgd"}}},
      {"data.shuffle_block", {"64", "data.shuffle=block:64", {"data.shuffle=block"}}},
      {"data.cache_form", {"\"decoded\"", "data.cache=ram:decoded", {"data.cache=ram"}}},
      {"data.stage_folder", {"\"/scratch\"", "data.stage=/scratch", {"data.stage=tmpfs"}}},
      {"augment.padding", {"2", "augment.crop=pad:2", {"augment.crop=pad"}}},
      {"augment.pad_mode", {"\"reflect\"", "augment.crop=pad_reflect:4", {"augment.crop=pad"}}},
      {"augment.scale_min", {"0.5", "augment.scale=[0.5, 1.0]"}},
      {"augment.scale_max", {"0.5", "augment.scale=[0.08, 0.5]"}},
      {"augment.ratio_min", {"0.5", "augment.ratio=[0.5, 1.3333333333333333]"}},
      {"augment.ratio_max", {"2", "augment.ratio=[0.75, 2.0]"}},
      {"augment.flip_alternate", {"true", "augment.flip='alternate:0.5'"}},
      {"augment.policy_ops", {"3", "augment.policy=rand:3:9", {"augment.policy=rand"}}},
      {"augment.policy_magnitude", {"3", "augment.policy=rand:2:3", {"augment.policy=rand"}}},
      {"augment.blur_sigma", {"[0.5, 1.5]", "augment.blur=[0.0, 0.5, 1.5]"}},
      {"augment.blur_sigma_min", {"0.5", "augment.blur=[0.0, 0.5]"}},
      {"augment.blur_sigma_max", {"3", "augment.blur=[0.0, 0.1, 3.0]"}},
      {"augment.erase_scale_min", {"0.1", "augment.erase_scale=[0.1, 0.33]"}},
      {"augment.erase_scale_max", {"0.5", "augment.erase_scale=[0.02, 0.5]"}},
      {"augment.erase_ratio_min", {"0.5", "augment.erase_ratio=[0.5, 3.3]"}},
      {"augment.erase_ratio_max", {"2", "augment.erase_ratio=[0.3, 2.0]"}},
      {"optimizer.beta1", {"0.8", "optimizer.betas=[0.8, 0.999]"}},
      {"optimizer.beta2", {"0.95", "optimizer.betas=[0.9, 0.95]"}},
      {"schedule.momentum_low", {"0.8", "schedule.cycle_momentum=[0.8, 0.95]"}},
      {"schedule.momentum_high", {"0.9", "schedule.cycle_momentum=[0.85, 0.9]"}},
      {"schedule.cooldown", {"2", "schedule.patience=[10.0, 2.0]"}},
      {"precision.initial_scale", {"1024", "precision.loss_scale=1024.0"}},
      {"precision.growth_interval", {"7", "precision.loss_scale=[65536.0, 7.0]"}}};
  return table;
}

TEST(RetiredKeys, AreErrorsThatNameTheReplacement) {
  EXPECT_EQ(retired_rows().size(), old_values().size());
  for (const RetiredRow& retired : retired_rows()) {
    const Old& old = old_values().at(retired.row.key);
    const std::string setting = retired.row.key + "=" + old.value;
    Texts settings = {setting};
    settings.insert(settings.end(), old.beside.begin(), old.beside.end());
    std::string now = old.now;
    std::ranges::replace(now, '\'', '"');
    EXPECT_EQ(error_with(settings), retired.row.key + " is now " + retired.now + " (--set " +
                                        setting + "). Write --set " + shell_word(now));
    const Recipe written = recipe_with({now});
    EXPECT_EQ(setting_of(written, retired.now), now);
  }
}

TEST(RetiredKeys, InAFileTheErrorNamesTheLineAndAllReplacements) {
  const auto error_of_text = [](const std::string& text) -> std::string {
    try {
      parse_recipe(text, "r.toml");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of_text(std::string(kSynthRecipe) +
                          "[optimizer]\nname = \"adam\"\nbeta1 = 0.8\nbeta2 = 0.95\n"),
            "optimizer.beta1 is now optimizer.betas, the first of 2 old keys (r.toml:5). Write "
            "optimizer.betas = [0.8, 0.95]");
  EXPECT_EQ(
      error_of_text(std::string(kSynthRecipe) + "[optimizer]\nbetas = [0.8, 0.9]\nbeta2 = 0.95\n"),
      "optimizer.beta2 is now optimizer.betas (r.toml:5). Remove it, and write "
      "optimizer.betas = [0.8, 0.95] in one line");
  EXPECT_EQ(error_of_text(std::string(kSynthRecipe) + "[train]\nlate_metrics = true\n"),
            "train.late_metrics is now debug.off (r.toml:4). Remove it: debug.off = [] is the "
            "default, of list of text");
  EXPECT_EQ(error_of_text("[augment]\npadding = 2\ncrop = \"pad\"\n" + std::string(kSynthRecipe)),
            "augment.padding is now augment.crop (r.toml:2). Remove it, and write augment.crop = "
            "'pad:2' in one line");
}

// As an earlier version wrote it: old and new keys, in any order, and a flag that is now a list.
TEST(RetiredKeys, KeepTheirMeaningInASavedRecipe) {
  std::map<std::string, std::string> sections;
  const auto add = [&](const std::string& setting) {
    const auto dot = setting.find('.'), equals = setting.find('=');
    const std::string line =
        setting.substr(dot + 1, equals - dot - 1) + " = " + setting.substr(equals + 1) + "\n";
    sections[setting.substr(0, dot)] += line;
  };
  for (const auto& [key, old] : old_values()) add(key + "=" + old.value);
  for (const char* beside :
       {"data.source=\"synth:\"", "data.cache=\"ram\"", "data.shuffle=\"block\"",
        "data.stage=\"tmpfs\"", "augment.crop=\"pad\"", "augment.policy=\"rand\"",
        "train.lookahead=0.5", "train.batch=\"auto\"", "pipeline.copy=true",
        "schedule.cycle_momentum=true", "distributed.compress=\"powersgd\""})
    add(beside);
  std::string text;
  for (const auto& [section, lines] : sections) text += "[" + section + "]\n" + lines;
  EXPECT_THROW(parse_recipe(text, "r.toml"), Error);
  const Recipe found = parse_saved_recipe(text, "r.toml");
  const Recipe expected = recipe_with(
      {"debug.off=['channels_last', 'cudnn_heuristics', 'create_on_device', 'keep_memory', "
       "'inference_mode', 'late_metrics', 'background', 'fused', 'set_to_none', 'tf32', 'sdpa']",
       "debug.checks=['anomaly', 'streams']",
       "train.tta=['flip', 'shift:2']",
       "train.eval_every=['1 epoch', '5 steps']",
       "train.lookahead=[0.5, 3, 2]",
       "train.monitor=auto:max",
       "train.early_stop=[0, 0.5]",
       "checkpoint.every=['1 epoch', '5 steps', '0.5 minutes']",
       "train.batch=auto:64",
       "watch.prometheus=0.0.0.0:9400,node7,*",
       "distributed.compress=powersgd:2",
       "data.shuffle=block:64",
       "data.cache=ram:decoded",
       "data.stage=/scratch",
       "augment.crop=pad_reflect:2",
       "augment.scale=[0.5, 0.5]",
       "augment.ratio=[0.5, 2]",
       "augment.flip=alternate",
       "augment.policy=rand:3:3",
       "augment.blur=[0, 0.5, 3]",
       "augment.erase_scale=[0.1, 0.5]",
       "augment.erase_ratio=[0.5, 2]",
       "optimizer.betas=[0.8, 0.95]",
       "schedule.cycle_momentum=[0.8, 0.9]",
       "schedule.patience=[10, 2]",
       "precision.loss_scale=[1024, 7]",
       "pipeline.copy=true"});
  EXPECT_EQ(to_toml(found), to_toml(expected));
  EXPECT_EQ(to_toml(parse_recipe(to_toml(found), "again")), to_toml(found));
  const Texts overrides = {"train.lookahead=0", "debug.off=[]"};
  EXPECT_EQ(parse_saved_recipe(text, "r.toml", overrides).train.lookahead, 0) << "overrides win";
  EXPECT_TRUE(parse_saved_recipe(text, "r.toml", overrides).optimizer.fused);
  const Texts old_override = {"optimizer.fused=true"};
  EXPECT_THROW(parse_saved_recipe(text, "r.toml", old_override), Error);
}

// Values that an earlier version accepted and present keys do not: readable again once saved.
TEST(RetiredKeys, InASavedRecipeStayReadable) {
  const std::string text =
      "[schedule]\nmomentum_low = 0.95\nmomentum_high = 0.85\n[data]\nsource = \"synth:\"\n"
      "stage = \"tmpfs\"\nstage_folder = \"staged\"\n[watch]\nprometheus_port = 9400\n"
      "prometheus_address = \"\"\n";
  const Recipe found = parse_saved_recipe(text, "r.toml");
  EXPECT_EQ(found.data.stage.folder, "./staged");
  EXPECT_EQ(setting_of(found, "schedule.cycle_momentum"), "schedule.cycle_momentum=[0.85, 0.95]");
  EXPECT_EQ(setting_of(found, "watch.prometheus"), "watch.prometheus=9400");
  EXPECT_EQ(to_toml(parse_saved_recipe(to_toml(found), "again")), to_toml(found));
  const std::string refused =
      std::string(kSynthRecipe) + "[augment]\nflip = 0\nflip_alternate = true\n";
  EXPECT_THROW(parse_saved_recipe(refused, "r.toml"), Error) << "before anything is written";
  const Texts better = {"augment.flip=0.5"};
  EXPECT_EQ(parse_saved_recipe(refused, "r.toml", better).augment.flip, 0.5);
}

TEST(RetiredKeys, AreReplacedByAcceptedValues) {
  EXPECT_EQ(error_with({"augment.scale_max=0.05"}),
            "augment.scale_max is now augment.scale (--set augment.scale_max=0.05). Write --set "
            "'augment.scale=[0.05, 0.08]'");
}

}  // namespace
}  // namespace saturate
