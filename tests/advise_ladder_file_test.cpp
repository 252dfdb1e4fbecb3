// Ladder files, needs and grids: their meaning, and their errors.
#include <gtest/gtest.h>

#include "advise/ladder.h"
#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;
using testing::write_file;
using Texts = std::vector<std::string>;

const std::string kHead = "title = \"T\"\nrecipe = \"r.toml\"\n";

Ladder parse(const std::string& rest) {
  return parse_ladder(kHead + rest, "l.toml", "dir");
}

void expect_ladder_refused(const std::string& text, const Texts& parts) {
  const Error error = error_of([&] { parse_ladder(text, "l.toml", "dir"); });
  EXPECT_EQ(error.exit_code(), 2) << text;
  for (const auto& part : parts)
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << part << " in " << error.what();
}

TEST(LadderFile, RungsBuildOnThePreviousOrTheNamedOne) {
  const Ladder ladder = parse(
      "set = [\"seed=1\"]\n"
      "[[rung]]\nname = \"a\"\nset = [\"data.threads=1\"]\nneeds = \"cores>=2\"\n"
      "[[rung]]\nname = \"b\"\nset = \"train.batch=8\"\n"
      "[[rung]]\nname = \"c\"\nfrom = \"base\"\nset = [\"train.batch=9\"]\n"
      "[[rung]]\nname = \"d\"\nfrom = \"a\"\nneeds = [\"cuda\"]\nseed_figure = \"3 steps/s\"\n");
  EXPECT_EQ(ladder.title, "T");
  EXPECT_EQ(ladder.recipe, "dir/r.toml");
  EXPECT_EQ(ladder.set, Texts{"seed=1"});
  ASSERT_EQ(ladder.rungs.size(), 4u);
  EXPECT_EQ(ladder.rungs[1].set, (Texts{"data.threads=1", "train.batch=8"}));
  EXPECT_EQ(ladder.rungs[1].needs, Texts{"cores>=2"});
  EXPECT_EQ(ladder.rungs[1].previous, 0u);
  EXPECT_EQ(ladder.rungs[2].set, Texts{"train.batch=9"});
  EXPECT_EQ(ladder.rungs[2].needs, Texts{});
  EXPECT_EQ(ladder.rungs[2].previous, 0u);
  EXPECT_EQ(ladder.rungs[3].set, Texts{"data.threads=1"});
  EXPECT_EQ(ladder.rungs[3].needs, (Texts{"cores>=2", "cuda"}));
  EXPECT_EQ(ladder.rungs[3].seed_figure, "3 steps/s");
}

TEST(LadderFile, ErrorsNameFileLineRungAndField) {
  const std::string a = "[[rung]]\nname = \"a\"\n";
  expect_ladder_refused("title = \n", {"not valid TOML", "l.toml:1"});
  expect_ladder_refused("title = \"T\"\n", {"recipe is missing", "l.toml:1", "demo.toml"});
  expect_ladder_refused(kHead, {"no rung", "[[rung]]"});
  expect_ladder_refused(kHead + "rungs = 1\n" + a,
                        {"unknown field rungs", "l.toml:3", "\"rung\"?"});
  expect_ladder_refused(kHead + "rung = 1\n", {"rung must be a list of tables", "l.toml:3"});
  expect_ladder_refused(kHead + "[[rung]]\nset = []\n", {"name is missing", "l.toml:3, rung 1"});
  expect_ladder_refused(kHead + a + a, {"name is used already", "l.toml:6, rung \"a\""});
  expect_ladder_refused(kHead + "[[rung]]\nname = \"base\"\n", {"name is used already"});
  expect_ladder_refused(kHead + a + "sets = []\n",
                        {"unknown field sets", "l.toml:5, rung \"a\"", "\"set\"?"});
  expect_ladder_refused(kHead + a + "set = [1]\n", {"set must be a list of text", "l.toml:5"});
  expect_ladder_refused(kHead + a + "from = \"b\"\n", {"first rung builds on the recipe"});
  expect_ladder_refused(
      kHead + a + "[[rung]]\nname = \"b\"\nfrom = \"aa\"\n",
      {"from is not the name of a rung above", "l.toml:7, rung \"b\"", "Did you mean \"a\"?"});
  expect_ladder_refused(kHead + a + "needs = \"cudas\"\n",
                        {"unknown \"cudas\"", "\"cuda\"?", "l.toml:5"});
  expect_ladder_refused(kHead + a + "needs = \"cuda>=0\"\n",
                        {"not a number above 0", "\"cuda>=2\""});
  expect_ladder_refused(kHead + a + "needs = \"cuda>=2x\"\n", {"not a number above 0"});
  expect_ladder_refused(kHead + a + "needs = \"feature: \"\n", {"unknown \"feature: \""});
  for (const char* count : {"0", "-1", "4097", "\"2\"", "1.5"})
    expect_ladder_refused(kHead + a + "processes = " + count + "\n",
                          {"processes must be a number from 1 to 4096", "l.toml:5, rung \"a\""});
  for (const char* figure : {"fast", "3", "-1 s", "0 s", "inf s", "3 miles"})
    expect_ladder_refused(kHead + a + "seed_figure = \"" + figure + "\"\n",
                          {"seed_figure", figure, "l.toml:5, rung \"a\""});
  expect_ladder_refused(kHead + "[[pack]]\nsource = \"synth:\"\nout = \"zip:a\"\n" + a,
                        {"no known scheme", "l.toml:5, pack 1"});
  expect_ladder_refused(kHead + "[[pack]]\nsource = \"synth:\"\n" + a,
                        {"out is missing", "pack 1"});
}

TEST(LadderFile, AMissingFileIsNamed) {
  const Error error = error_of([&] { load_ladder(Env::posix(), "none.toml"); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.where(), "none.toml");
}

TEST(LadderNeeds, UnmetOnesAreNamed) {
  MachineFacts machine;
  machine.cuda = 1;
  machine.cores = 4;
  Rung rung;
  EXPECT_EQ(unmet_needs(rung, machine), "");
  rung.needs = {"cuda", "cores>=4", "processes"};
  EXPECT_EQ(unmet_needs(rung, machine), "");
  rung.needs = {"cuda>=2", "feature: wings", "cores>=5", "cuda"};
  EXPECT_EQ(unmet_needs(rung, machine),
            "needs cuda>=2 (here 1), cores>=5 (here 4); this version has no wings");
  rung.needs = {"feature: wings", "feature: wheels"};
  EXPECT_EQ(unmet_needs(rung, machine), "this version has no wings, wheels");
}

TEST(LadderNeeds, ProcessesAreNeededAndInherited) {
  const Ladder ladder = parse(
      "[[rung]]\nname = \"a\"\n"
      "[[rung]]\nname = \"b\"\nprocesses = 2\nneeds = \"cores>=1\"\n"
      "[[rung]]\nname = \"c\"\n"
      "[[rung]]\nname = \"d\"\nprocesses = 3\nneeds = [\"processes>=3\"]\n"
      "[[rung]]\nname = \"e\"\nfrom = \"base\"\n");
  const std::vector<int> expected = {1, 2, 2, 3, 1};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(ladder.rungs[i].processes, expected[i]) << i;
  MachineFacts machine;
  EXPECT_EQ(unmet_needs(ladder.rungs[0], machine), "");
  EXPECT_EQ(unmet_needs(ladder.rungs[1], machine), "needs processes>=2 (here 1)");
  EXPECT_EQ(unmet_needs(ladder.rungs[3], machine), "needs processes>=3 (here 1)");
  machine.processes = 2;
  EXPECT_EQ(unmet_needs(ladder.rungs[2], machine), "");
  EXPECT_EQ(unmet_needs(ladder.rungs[3], machine), "needs processes>=3 (here 2)");
}

TEST(LadderRecipes, RungsOverrideTheCommandLineWhichOverridesTheLadder) {
  const TempDir dir;
  write_file(dir / "r.toml", "[data]\nsource = \"synth:\"\n[train]\nbatch = 1\nepochs = 3\n");
  Ladder ladder = parse(
      "set = [\"train.batch=2\", \"data.threads=2\", \"data.source=folder:{scratch}/a{scratch}\"]\n"
      "[[rung]]\nname = \"a\"\n"
      "[[rung]]\nname = \"b\"\nset = [\"train.batch=4\"]\n"
      "[[rung]]\nname = \"c\"\nset = [\"no.such=1\"]\nneeds = \"cuda\"\n");
  ladder.recipe = dir / "r.toml";
  const Texts overrides = {"train.batch=3", "data.threads=3"};
  const auto recipes = ladder_recipes(Env::posix(), ladder, overrides, "/s", MachineFacts());
  ASSERT_EQ(recipes.size(), 3u);
  EXPECT_EQ(recipes[0]->train.batch, 3);
  EXPECT_EQ(recipes[1]->train.batch, 4);
  EXPECT_EQ(recipes[1]->data.threads, 3);
  EXPECT_EQ(recipes[1]->train.epochs, 3);
  EXPECT_EQ(recipes[1]->data.source, "folder:/s/a/s");
  EXPECT_FALSE(recipes[2]) << "a rung that cannot run here is not parsed either";

  MachineFacts gpu;
  gpu.cuda = 1;
  const Error error = error_of([&] { ladder_recipes(Env::posix(), ladder, {}, "/s", gpu); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_NE(std::string(error.what()).find("rung \"c\""), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("no.such=1"), std::string::npos) << error.what();
}

// With everything that rungs may need, so that rungs skipped on this machine are checked too.
TEST(LadderRecipes, ShippedLaddersAreValid) {
  const MachineFacts machine{8, 64, 8, 2};
  int rungs = 0;
  for (const char* name :
       {"storage", "augment-offload", "frozen-encoder", "free-speed", "scale-out", "attention"}) {
    const Ladder ladder =
        load_ladder(Env::posix(), testing::source_path(std::string("ladders/") + name + ".toml"));
    for (const auto& recipe : ladder_recipes(Env::posix(), ladder, {}, "/scratch", machine))
      rungs += recipe.has_value();
    for (const auto& recipe : ladder_recipes(Env::posix(), ladder, {}, "/scratch", {0, 1, 1, 1}))
      if (recipe) {
        EXPECT_TRUE(recipe->data.source.starts_with("synth:") ||
                    recipe->data.source.find("/scratch/") != std::string::npos)
            << name;
      }
  }
  EXPECT_GT(rungs, 25);
}

TEST(Packs, AreWrittenWhereTheRungsRead) {
  const TempDir dir;
  const Ladder ladder = parse(
      "[[pack]]\nsource = \"synth:size=16,count=30\"\nout = \"folder:{scratch}/f\"\n"
      "[[pack]]\nsource = \"folder:{scratch}/f\"\nout = \"shard:{scratch}/s.shard\"\n"
      "[[rung]]\nname = \"a\"\n");
  size_t calls = 0;
  make_packs(Env::posix(), ladder, dir.path(), [&](size_t, size_t) { ++calls; });
  EXPECT_EQ(open_dataset(Env::posix(), "folder:" + (dir / "f"))->size(), 30u);
  EXPECT_EQ(open_dataset(Env::posix(), "shard:" + (dir / "s.shard"))->size(), 30u);
  EXPECT_GT(calls, 0u);
}

TEST(Sweep, IsTheGridWithTheLastListFastest) {
  const Ladder sweep =
      make_sweep("r.toml", Texts{"train.batch=32,64", "augment.mean=[0,0,0],[0.5,0.5,0.5]"});
  ASSERT_EQ(sweep.rungs.size(), 4u);
  EXPECT_EQ(sweep.recipe, "r.toml");
  EXPECT_EQ(sweep.rungs[0].name, "train.batch=32 augment.mean=[0,0,0]");
  EXPECT_EQ(sweep.rungs[1].set, (Texts{"train.batch=32", "augment.mean=[0.5,0.5,0.5]"}));
  EXPECT_EQ(sweep.rungs[2].set, (Texts{"train.batch=64", "augment.mean=[0,0,0]"}));
  EXPECT_EQ(sweep.rungs[3].previous, 2u);
}

TEST(Sweep, ListsOfTextsAreValues) {
  const Ladder sweep =
      make_sweep("r.toml", Texts{"debug.off=[],[\"fused\", \"set_to_none\"],tf32",
                                 "checkpoint.every=[\"1 epoch\", \"5 steps\"],10 minutes"});
  ASSERT_EQ(sweep.rungs.size(), 6u);
  EXPECT_EQ(sweep.rungs[2].set, (Texts{"debug.off=[\"fused\", \"set_to_none\"]",
                                       "checkpoint.every=[\"1 epoch\", \"5 steps\"]"}));
  EXPECT_EQ(sweep.rungs[5].set, (Texts{"debug.off=tf32", "checkpoint.every=10 minutes"}));
  for (const Rung& rung : sweep.rungs)
    EXPECT_NO_THROW(parse_recipe("[data]\nsource = \"synth:\"\n", "r.toml", rung.set));
}

TEST(Sweep, CommasInQuotesAndSignaturesOfUrls) {
  const Ladder sweep = make_sweep(
      "r.toml",
      Texts{"data.source='tar:a,b.tar',\"tar:c,'d'.tar\",tar:https://h/e.tar?sig=SECRET"});
  ASSERT_EQ(sweep.rungs.size(), 3u);
  EXPECT_EQ(sweep.rungs[0].set, (Texts{"data.source='tar:a,b.tar'"}));
  EXPECT_EQ(sweep.rungs[1].set, (Texts{"data.source=\"tar:c,'d'.tar\""}));
  EXPECT_EQ(sweep.rungs[2].set, (Texts{"data.source=tar:https://h/e.tar?sig=SECRET"}));
  EXPECT_EQ(sweep.rungs[2].name, "data.source=tar:https://h/e.tar") << "a signature may be secret";
  EXPECT_EQ(sweep.rungs[2].where, "point data.source=tar:https://h/e.tar");
}

TEST(Sweep, AnInvalidGridIsRefused) {
  const auto refused = [](const Texts& over) {
    return std::string(error_of([&] { make_sweep("r.toml", over); }).what());
  };
  EXPECT_NE(refused({}).find("nothing to sweep over"), std::string::npos);
  EXPECT_NE(refused({"train.batch"}).find("--over train.batch"), std::string::npos);
  EXPECT_NE(refused({"train.batch=1,,2"}).find("a value is missing"), std::string::npos);
  const std::string many = "seed=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16";
  EXPECT_NE(refused({many, many}).find("289 points"), std::string::npos);
}

}  // namespace
}  // namespace saturate
