// saturate data pack and verify, and training on their output.
#include <gtest/gtest.h>

#include "tests/app_testing.h"

namespace saturate::testing {
namespace {

const char* kSynth = "synth:size=16,count=30,classes=3";

TEST(DataCommand, PackWritesEveryFormatAndInspectReadsIt) {
  const TempDir dir;
  for (const char* out : {"shard:set.shard", "lmdb:set.lmdb", "tar:set.tar"}) {
    const std::string scheme(out, strchr(out, ':') - out + 1);
    const std::string uri = scheme + (dir / std::string(strchr(out, ':') + 1));
    const CommandResult packed =
        run_saturate(std::string("data pack ") + kSynth + " --threads 2 --out " + uri);
    ASSERT_EQ(packed.exit_code, 0) << packed.err;
    EXPECT_NE(packed.out.find("data.source=" + uri), std::string::npos) << packed.out;
    ASSERT_EQ(run_saturate("data inspect " + uri + " --json " + (dir / "r.json")).exit_code, 0);
    const auto json = nlohmann::json::parse(read_text(dir / "r.json"));
    EXPECT_EQ(json["samples"], 30);
    EXPECT_EQ(json["jpeg"], 30);
    EXPECT_EQ(json["raw"], 0);
    EXPECT_EQ(json["classes"].size(), 3u);
    expect_error(run_saturate(std::string("data pack ") + kSynth + " --out " + uri), 2,
                 {"exists already", "--out"});
  }
  ASSERT_EQ(
      run_saturate("data pack tar:" + (dir / "set.tar") + " --max-side 8 --raw-fraction 0.5 " +
                   "--out shard:" + (dir / "small.shard"))
          .exit_code,
      0);
  const CommandResult seen = run_saturate("data inspect shard:" + (dir / "small.shard"));
  EXPECT_NE(seen.out.find("15 JPEG, 0 PNG, 15 raw"), std::string::npos) << seen.out;
  EXPECT_NE(seen.out.find("width    8 to 8"), std::string::npos) << seen.out;
}

TEST(DataCommand, TensorsAreInspectedAndVerified) {
  const TempDir dir;
  write_file(dir / "a.csv", "size,town,price\n1,a,10\n3,b,30\n2,a,\n");
  const std::string uri = "csv:" + (dir / "a.csv");
  const CommandResult seen = run_saturate("data inspect " + uri + " --json " + (dir / "r.json"));
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_NE(seen.out.find("samples  3, "), std::string::npos) << seen.out;
  EXPECT_NE(seen.out.find("field    x: float32 [3], -1.22474 to 1.22474"), std::string::npos)
      << seen.out;
  EXPECT_NE(seen.out.find("field    y: float32 [], the target, 10 to 30, mean 20"),
            std::string::npos)
      << seen.out;
  const auto json = nlohmann::json::parse(read_text(dir / "r.json"));
  ASSERT_EQ(json["fields"].size(), 2u);
  EXPECT_EQ(json["fields"][1]["target"], true);
  EXPECT_EQ(json["broken"].size(), 1u);
  const CommandResult verified = run_saturate("data verify " + uri);
  EXPECT_EQ(verified.exit_code, 3);
  EXPECT_NE(verified.out.find("1 of 3 samples are broken"), std::string::npos) << verified.out;
  const std::string pack = "data pack " + uri + " --out shard:" + (dir / "a.shard");
  expect_error(run_saturate(pack), 3, {"row 2"});
  EXPECT_EQ(run_saturate(pack + " --skip-broken").exit_code, 0);
  expect_error(run_saturate("data pack " + uri + " --out tar:" + (dir / "a.tar")), 2, {"tensors"});
}

TEST(DataCommand, InspectCountsTheLabelsOfVoxels) {
  const TempDir dir;
  const CommandResult seen =
      run_saturate("data inspect synth-volume:count=3,size=16 --json " + (dir / "r.json"));
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_NE(seen.out.find("0.00% of the voxels are ignored"), std::string::npos) << seen.out;
  const auto json = nlohmann::json::parse(read_text(dir / "r.json"));
  EXPECT_EQ(json["classes"]["background"], 3);
  EXPECT_GT(json["classes"]["ball"].get<int>() + json["classes"]["box"].get<int>(), 2)
      << "samples in which the class appears";
  int voxels = 0;
  for (const auto& count : json["class_voxels"]) voxels += count.get<int>();
  EXPECT_EQ(voxels, 3 * 16 * 16 * 16);
  EXPECT_EQ(json["ignored_voxels"], 0);
}

TEST(DataCommand, InspectExaminesTenThousandImagesUnlessToldAll) {
  const TempDir dir;
  const std::string synth = "synth:size=8,classes=3,count=";
  for (const std::string& source : {synth + "12000", "split:train,1/4," + synth + "16000"})
    for (const auto& [more, looked_at] : {std::pair{"", 10'000}, {" --all", 12'000}}) {
      SCOPED_TRACE(source + more);
      const CommandResult result =
          run_saturate("data inspect " + source + " --json " + (dir / "r.json") + more);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.out.find("--all") != std::string::npos, looked_at < 12'000) << result.out;
      const auto json = nlohmann::json::parse(read_text(dir / "r.json"));
      EXPECT_EQ(json["samples"], 12'000);
      EXPECT_EQ(json["looked_at"], looked_at);
      EXPECT_EQ(json["jpeg"], looked_at);
      ASSERT_EQ(json["classes"].size(), 3u);
      for (const auto& count : json["classes"]) EXPECT_NEAR(int(count), 4000, 1);
    }
}

TEST(DataCommand, InspectDistinguishesClassNamesThatAreNotUtf8) {
  const TempDir dir;
  for (const char* name : {"gr\xf6n/1", "gr\xf6n/2", "gr\xfcn/1"})
    write_file(dir / "set/" + name + ".jpg", noise_jpeg(8, 8, 1));
  ASSERT_EQ(run_saturate("data inspect folder:" + (dir / "set") + " --json " + (dir / "r.json"))
                .exit_code,
            0);
  const nlohmann::json expected = {{"gr\\xf6n", 2}, {"gr\\xfcn", 1}};
  EXPECT_EQ(nlohmann::json::parse(read_text(dir / "r.json"))["classes"], expected);
}

TEST(DataCommand, PackRefusesBadOptions) {
  const TempDir dir;
  const std::string pack = std::string("data pack ") + kSynth + " --out ";
  expect_error(run_saturate(pack + "folder:x"), 2, {"folder"});
  expect_error(run_saturate(pack + (dir / "x.tar")), 2, {"--out", "shard:FILE"});
  expect_error(run_saturate(pack + "tar:" + (dir / "x.tar") + " --raw-fraction 1"), 2,
               {"--raw-fraction", "shard:FILE"});
  expect_error(run_saturate(pack + "shard:" + (dir / "x") + " --quality 0"), 2, {"--quality"});
  expect_error(run_saturate("data pack nothing:x --out tar:y"), 2, {"nothing"});
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(DataCommand, VerifyListsBrokenImages) {
  const TempDir dir;
  write_folder_dataset(dir / "set", 12);
  const CommandResult sound =
      run_saturate("data verify folder:" + (dir / "set") + " --json " + (dir / "v.json"));
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_NE(sound.out.find("0 of 12 images are broken"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(read_text(dir / "v.json"))["broken"].empty());

  const std::string whole = noise_jpeg(40, 40, 9);
  write_file(dir / "set/odd/cut.jpg", whole.substr(0, whole.size() / 2));
  write_file(dir / "set/even/text.jpg", "no picture");
  ASSERT_EQ(run_saturate("data pack folder:" + (dir / "set") + " --out shard:" + (dir / "s.shard"))
                .exit_code,
            0);  // copying does not decode
  std::string shard = read_text(dir / "s.shard");
  shard[4096 + 100] ^= 1;  // in the first image
  write_file(dir / "s.shard", shard);
  const CommandResult broken =
      run_saturate("data verify shard:" + (dir / "s.shard") + " --json " + (dir / "v.json"));
  EXPECT_EQ(broken.exit_code, 3);
  for (const char* part : {"odd/cut.jpg: JPEG data is truncated", "even/text.jpg: not a JPEG",
                           "even/00000.jpg: sample is damaged", "3 of 14 images are broken"})
    EXPECT_NE(broken.out.find(part), std::string::npos) << part << " in " << broken.out;
  const auto json = nlohmann::json::parse(read_text(dir / "v.json"));
  EXPECT_EQ(json["samples"], 14);
  ASSERT_EQ(json["broken"].size(), 3u);
  EXPECT_EQ(json["broken"][0]["index"], 0);

  write_file(dir / "cut.shard", shard.substr(0, shard.size() / 2));
  expect_error(run_saturate("data verify shard:" + (dir / "cut.shard")), 3,
               {"truncated", dir / "cut.shard", "saturate data pack"});
}

TEST(DataCommand, ImagesOutsideClassFoldersAreAWarning) {
  const TempDir dir;
  write_folder_dataset(dir / "set", 20);
  write_folder_dataset(dir / "val", 10);
  for (const char* name : {"set/stray.jpg", "set/second.jpg", "val/other.jpg"})
    write_file(dir / name, noise_jpeg(16, 16, 1));
  const std::string source = "folder:" + (dir / "set"), held_out = "folder:" + (dir / "val");
  const std::string recipe = write_small_recipe(dir, source, held_out);
  const std::string two =
      "saturate: warning: 2 images beside the class folders are not read, such "
      "as " +
      (dir / "set/second.jpg") + "\n";
  const std::string one = "saturate: warning: an image beside the class folders is not read: " +
                          (dir / "val/other.jpg");
  const auto expect_told = [](const CommandResult& result, const std::string& text) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const size_t at = result.err.find(text);
    EXPECT_NE(at, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find(text, at + 1), std::string::npos) << "twice: " << result.err;
  };
  expect_told(run_saturate("data inspect " + source), two);
  expect_told(run_saturate("data verify " + source), two);
  expect_told(run_saturate("data pack " + source + " --out tar:" + (dir / "set.tar")), two);
  const CommandResult trained = run_saturate("train " + recipe + " --out " + (dir / "run"));
  expect_told(trained, two);
  expect_told(trained, one);
  expect_told(run_saturate("eval " + (dir / "run") + " --data " + held_out), one);
  const CommandResult same = run_saturate("train " + recipe + " --set data.eval_source=" + source +
                                          " --out " + (dir / "same"));
  expect_told(same, two);
}

// A class, an image and a broken file whose names would change a terminal's colour.
TEST(DataCommand, ControlCharactersInNamesAreEscapedOnTheTerminal) {
  const TempDir dir;
  const std::string red = "\x1b[31mred";
  for (const std::string& folder : {red, std::string("plain")})
    for (const std::string& file : {std::string("a.jpg"), red + ".jpg"})
      write_file(dir / ("set/" + folder + "/" + file), noise_jpeg(16, 16, 1));
  write_file(dir / ("set/" + red + "/" + red + ".jpg"), "no image");
  const std::string source = "folder:" + (dir / "set");
  const std::string recipe = write_small_recipe(dir, source, source);
  const std::string skip = " --set data.on_error=skip --set train.batch=2 ";
  const std::vector<std::pair<std::string, int>> commands = {
      {"data inspect " + source, 0},
      {"data verify " + source, 3},
      {"data pack " + source + " --skip-broken --quality 90 --out shard:" + (dir / "set.shard"), 0},
      {"train " + recipe + skip + "--out " + (dir / "run"), 0},
      {"eval " + (dir / "run") + " --data " + source, 0},
      {"train " + recipe + " --set train.batch=2 --out " + (dir / "failed"), 3}};
  for (const auto& [command, exit_code] : commands) {
    const CommandResult result = run_saturate(command);
    EXPECT_EQ(result.exit_code, exit_code) << command << "\n" << result.err;
    const std::string said = result.out + result.err;
    EXPECT_EQ(said.find('\x1b'), std::string::npos) << command << "\n" << said;
    EXPECT_NE(said.find("\\x1b[31mred"), std::string::npos) << command << "\n" << said;
  }
}

// The same pixels in the same order: the same losses, to the last bit.
TEST(DataCommand, TrainingOnAPackedSetGivesTheSameLosses) {
  const TempDir dir;
  const auto losses_on = [&](const std::string& source) {
    const std::string run = dir / std::to_string(std::hash<std::string>()(source));
    const CommandResult result = run_saturate("train " + write_small_recipe(dir, source) +
                                              " --set train.epochs=1 --out " + run);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return losses(run, "step");
  };
  const auto expected = losses_on(kSmallSynth);
  ASSERT_FALSE(expected.empty());
  const std::string pack = std::string("data pack ") + kSmallSynth + " --out ";
  for (const std::string& options :
       {"shard:" + (dir / "a.shard"), "shard:" + (dir / "b.shard") + " --raw-fraction 0.5",
        "lmdb:" + (dir / "c"), "tar:" + (dir / "d.tar")}) {
    ASSERT_EQ(run_saturate(pack + options).exit_code, 0);
    EXPECT_EQ(losses_on(options.substr(0, options.find(' '))), expected) << options;
  }
}

TEST(DataCommand, IndexesJpegsWhereTrainingFindsThem) {
  const TempDir dir;
  for (int i = 0; i < 6; ++i)
    write_file(dir / "set/a/" + std::to_string(i) + ".jpg", noise_jpeg(200 + i, 180, uint64_t(i)));
  write_file(dir / "set/a/broken.jpg", noise_jpeg(200, 180, 9).substr(0, 100));
  const std::string cache = "XDG_CACHE_HOME='" + (dir / "cache") + "'";
  const std::string command = "data index " + (dir / "set") + " --json " + (dir / "r.json");
  for (const int found : {6, 0}) {
    const CommandResult result = run_saturate(command, cache);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.out.find("data.decode=fast"), std::string::npos) << result.out;
    EXPECT_NE(result.err.find("broken.jpg"), std::string::npos) << result.err;
    const auto json = nlohmann::json::parse(read_text(dir / "r.json"));
    EXPECT_EQ(json["found"], found);
    EXPECT_EQ(json["known"], 6 - found);
    EXPECT_EQ(json["broken"].size(), 1u);
    EXPECT_TRUE(std::filesystem::exists(std::string(json["index"]))) << json;
    EXPECT_TRUE(std::string(json["index"]).starts_with(dir / "cache/")) << json;
  }
  const CommandResult given = run_saturate(command + " --out " + (dir / "x.points"));
  EXPECT_NE(given.out.find("data.index=" + (dir / "x.points")), std::string::npos) << given.out;
  write_file(dir / "other.txt", "text");
  expect_error(run_saturate(command + " --out " + (dir / "other.txt")), 2, {"not an index"});
  EXPECT_EQ(read_text(dir / "other.txt"), "text");
  expect_error(run_saturate(command + " --out s3://bucket/x"), 2,
               {"s3://bucket/x", "not an object"});
  expect_error(run_saturate(command, "env -u HOME -u XDG_CACHE_HOME"), 2, {"--out"});
}

TEST(DataCommand, AnInterruptedSynthLeavesNothing) {
  const TempDir logs;
  for (const std::string name : {"folder", "masks", "set.tar"}) {
    const TempDir dir;
    const std::string spec =
        std::string("size=16,count=10000000") + (name == "masks" ? ",masks=true" : "");
    const pid_t child = start_saturate({"data", "synth", spec, "--out", dir / name}, logs / name);
    EXPECT_TRUE(wait_until([&] { return !std::filesystem::is_empty(dir.path()); })) << name;
    EXPECT_FALSE(std::filesystem::exists(dir / name)) << "it is not complete";
    kill(child, SIGINT);
    EXPECT_EQ(exit_code_of(child), 130) << read_text(logs / name);
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << name;
    EXPECT_NE(read_text(logs / name).find("removing unfinished output"), std::string::npos);
  }
}

TEST(DataCommand, AnInterruptedPackLeavesNothing) {
  const TempDir logs;
  for (const std::string format : {"shard", "tar", "lmdb"}) {
    const TempDir dir;
    const pid_t child = start_saturate({"data", "pack", "synth:size=16,count=10000000", "--out",
                                        format + ":" + (dir / ("set." + format))},
                                       logs / format);
    EXPECT_TRUE(wait_until([&] { return !std::filesystem::is_empty(dir.path()); })) << format;
    kill(child, SIGTERM);
    EXPECT_EQ(exit_code_of(child), 143) << read_text(logs / format);
    for (const auto& left : std::filesystem::recursive_directory_iterator(dir.path()))
      EXPECT_TRUE(left.is_directory()) << left.path();
    EXPECT_NE(read_text(logs / format).find("removing unfinished output"), std::string::npos);
  }
}

}  // namespace
}  // namespace saturate::testing
