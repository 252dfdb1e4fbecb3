#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>

#include "data/export.h"
#include "data/inspect.h"
#include "saturate/data/loader.h"
#include "tests/fault_env.h"
#include "tests/format_testing.h"

namespace saturate {
namespace {

using testing::env;
using testing::error_of;
using testing::noise_image;
using testing::read_text;
using testing::TempDir;
using testing::write_file;

PackReport pack(Env& through, const Dataset& dataset, const std::string& out,
                PackOptions options = {}) {
  options.out = out;
  if (options.threads == 1) options.threads = 3;
  return pack_dataset(through, dataset, options);
}

Image decoded(const Dataset& dataset, size_t index) {
  Decoder decoder;
  Sample sample;
  Image image;
  dataset.read(index, sample);
  decode_sample(decoder, sample, image);
  return image;
}

class Pack : public ::testing::Test {
 protected:
  Pack() {
    testing::write_folder_dataset(dir / "set", 40);
    folder = open_dataset(env(), "folder:" + (dir / "set"));
  }
  TempDir dir;
  std::unique_ptr<Dataset> folder;
};

TEST_F(Pack, EveryFormatHasTheSamplesAndBytesDoNotDependOnThreads) {
  for (const char* format : {"shard", "tar", "lmdb"}) {
    const std::string scheme = std::string(format) + ":";
    std::string first;
    for (int threads : {1, 2, 6}) {
      const std::string out = dir / ("out-" + std::to_string(threads) + "." + format);
      PackOptions options;
      options.out = scheme + out;
      options.threads = threads;
      options.quality = 70;
      const PackReport report = pack_dataset(env(), *folder, options);
      EXPECT_EQ(report.samples, 40u);
      EXPECT_EQ(report.copied, 0u);
      const std::string bytes = read_text(scheme == "lmdb:" ? out + "/data.mdb" : out);
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first) << scheme << threads;
    }
    pack(env(), *folder, scheme + (dir / format));
    testing::expect_equal(*folder, *open_dataset(env(), scheme + (dir / format)));
  }
}

TEST_F(Pack, RawSamplesAreTheDecodedPixels) {
  for (const char* format : {"shard", "lmdb"}) {
    const std::string uri = std::string(format) + ":" + (dir / format);
    PackOptions options;
    options.raw_fraction = 0.25;
    const PackReport report = pack(env(), *folder, uri, options);
    EXPECT_EQ(report.raw, 10u);
    EXPECT_EQ(report.copied, 30u);
    const auto packed = open_dataset(env(), uri);
    for (size_t i = 0; i < folder->size(); ++i) {
      const Image a = decoded(*folder, i), b = decoded(*packed, i);
      EXPECT_EQ(a.width, b.width);
      EXPECT_EQ(a.pixels, b.pixels);
    }
    const DatasetReport seen = inspect_dataset(*packed, InspectDepth::kPixels, 2);
    EXPECT_EQ(seen.raw, 10u);
    EXPECT_EQ(seen.jpeg, 30u);
    EXPECT_TRUE(seen.broken.empty());
  }
  PackOptions options;
  options.raw_fraction = 0.5;
  EXPECT_EQ(error_of([&] { pack(env(), *folder, "tar:" + (dir / "x.tar"), options); }).kind(),
            ErrorKind::kUsage);
}

// The loader returns the same batches from pixels as from the files that were decoded.
TEST_F(Pack, TheLoaderReadsPixelsLikeFiles) {
  PackOptions options;
  options.raw_fraction = 1;
  pack(env(), *folder, "shard:" + (dir / "raw.shard"), options);
  const auto raw = open_dataset(env(), "shard:" + (dir / "raw.shard"));
  LoaderOptions load;
  load.batch = 16;
  load.threads = 3;
  load.seed = 5;
  AugmentOptions augment;
  augment.size = 12;
  augment.crop = CropKind::kRandomResized;
  Loader a(*folder, load, augment), b(*raw, load, augment);
  a.start_epoch(1);
  b.start_epoch(1);
  Batch x, y;
  while (a.next(x)) {
    ASSERT_TRUE(b.next(y));
    EXPECT_EQ(testing::all_of(x, &BatchSample::label), testing::all_of(y, &BatchSample::label));
    const size_t bytes = x.count() * 12 * 12 * 3 * sizeof(float);
    EXPECT_EQ(std::memcmp(x.pixels.get(), y.pixels.get(), bytes), 0);
  }
  EXPECT_FALSE(b.next(y));
}

TEST_F(Pack, MaxSideShrinksLargerImagesAndCopiesOthers) {
  write_file(dir / "mixed/c/a.jpg", testing::noise_jpeg(64, 48, 1));
  write_file(dir / "mixed/c/b.jpg", testing::noise_jpeg(31, 90, 2));
  write_file(dir / "mixed/c/c.jpg", testing::noise_jpeg(32, 32, 3));
  write_file(dir / "mixed/c/d.jpg", testing::noise_jpeg(400, 2, 4));
  const auto mixed = open_dataset(env(), "folder:" + (dir / "mixed"));
  PackOptions options;
  options.max_side = 32;
  const PackReport report = pack(env(), *mixed, "shard:" + (dir / "mixed.shard"), options);
  EXPECT_EQ(report.copied, 1u);
  const auto packed = open_dataset(env(), "shard:" + (dir / "mixed.shard"));
  const std::pair<int, int> sizes[] = {{32, 24}, {11, 32}, {32, 32}, {32, 1}};
  for (size_t i = 0; i < 4; ++i) {
    const Image image = decoded(*packed, i);
    EXPECT_EQ(image.width, sizes[i].first);
    EXPECT_EQ(image.height, sizes[i].second);
  }
  // Pixels that are shrunk and not encoded equal the resizer's.
  options.raw_fraction = 1;
  pack(env(), *mixed, "shard:" + (dir / "raw.shard"), options);
  const Image whole = decoded(*mixed, 0);
  Image expected;
  expected.resize(32, 24);
  Resizer().resize(whole, {0, 0, 64, 48}, 32, 24, expected.pixels.data());
  EXPECT_EQ(decoded(*open_dataset(env(), "shard:" + (dir / "raw.shard")), 0).pixels,
            expected.pixels);
}

TEST_F(Pack, PixelsInATarAreLosslessPng) {
  class Only : public Dataset {  // the oracle's samples 2 (colour) and 5 (grey)
   public:
    size_t size() const override { return 2; }
    const std::vector<std::string>& classes() const override { return oracle_.classes(); }
    void read(size_t i, Sample& out) const override { oracle_.read(i * 3 + 2, out); }

   private:
    testing::OracleDataset oracle_;
  } const pixels;
  pack(env(), pixels, "tar:" + (dir / "pixels.tar"));
  write_dataset(env(), pixels, dir / "pixels", 2);
  const auto packed = open_dataset(env(), "tar:" + (dir / "pixels.tar"));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(decoded(*packed, i).pixels, decoded(pixels, i).pixels);
  Decoder decoder;
  for (const char* name : {"dog/00000000.png", "dog/00000001.png"}) {
    const auto bytes = read_file(env(), dir / (std::string("pixels/") + name));
    EXPECT_EQ(decoder.probe(bytes, name).components, name[11] == '0' ? 3 : 1);
  }
}

TEST_F(Pack, NamesKeepThePathFromTheClassFolderOn) {
  class Named : public Dataset {
   public:
    explicit Named(std::vector<std::string> names) : names_(std::move(names)) {}
    size_t size() const override { return names_.size(); }
    const std::vector<std::string>& classes() const override { return classes_; }
    void read(size_t i, Sample& out) const override {
      out.name = names_[i];
      out.label = 0;
      out.bytes = {};
    }

   private:
    std::vector<std::string> names_, classes_{"cat"};
  } const named({"/data/cat/sub/1.jpg", "/cat/x/cat/2.jpg", "a.tar:cat/3.jpg", "cat/4.jpg",
                 "/bobcat/5.jpg", "synth:train:6", "/d/shard.tar:key.jpg"});
  pack(env(), named, "shard:" + (dir / "n.shard"));
  const auto packed = open_dataset(env(), "shard:" + (dir / "n.shard"));
  const char* expected[] = {"cat/sub/1.jpg", "cat/2.jpg", "cat/3.jpg", "cat/4.jpg",
                            "5.jpg",         "6",         "key.jpg"};
  Sample sample;
  for (size_t i = 0; i < named.size(); ++i) {
    packed->read(i, sample);
    EXPECT_EQ(sample.name, dir / "n.shard:" + expected[i]);
  }
  pack(env(), *packed, "shard:" + (dir / "again.shard"));
  EXPECT_EQ(read_text(dir / "again.shard"), read_text(dir / "n.shard"));
}

TEST_F(Pack, BrokenSamplesStopPackingOrAreSkipped) {
  write_file(dir / "set/even/00003.jpg", "no picture");
  const auto broken = open_dataset(env(), "folder:" + (dir / "set"));
  PackOptions options;
  options.quality = 80;
  const Error error =
      error_of([&] { pack(env(), *broken, "shard:" + (dir / "x.shard"), options); });
  EXPECT_EQ(error.kind(), ErrorKind::kData);
  EXPECT_NE(error.where().find("00003.jpg"), std::string::npos);
  EXPECT_FALSE(env().exists(dir / "x.shard"));
  options.on_error = OnError::kSkip;
  const PackReport report = pack(env(), *broken, "shard:" + (dir / "x.shard"), options);
  EXPECT_EQ(report.samples, 40u);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_NE(report.skipped[0].name.find("00003.jpg"), std::string::npos);
  EXPECT_EQ(open_dataset(env(), "shard:" + (dir / "x.shard"))->size(), 40u);
  options.quality = 0;  // unchanged files
  const PackReport copied = pack(env(), *broken, "tar:" + (dir / "x.tar"), options);
  EXPECT_EQ(copied.copied, 40u);
  EXPECT_EQ(copied.skipped.size(), 1u);
}

// A few bytes that claim 60,000 x 60,000 pixels are reported, without allocating memory for them.
TEST_F(Pack, DecompressionBombsAreRefused) {
  std::string jpeg = testing::noise_jpeg(16, 16, 1);
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  const char side[] = {char(60'000 >> 8), char(60'000 & 0xff)};
  for (size_t at : {frame + 5, frame + 7}) jpeg.replace(at, 2, side, 2);
  const auto png_bytes = encode_png(noise_image(16, 16, 1).pixels.data(), 16, 16, 3);
  std::string png = testing::to_text(png_bytes);
  for (size_t at : {18, 22}) png.replace(at, 2, side, 2);
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(png.data()) + 12, 17);
  for (size_t i = 0; i < 4; ++i) png[29 + i] = char(crc >> (24 - 8 * i));

  const testing::MemoryDataset bombs({jpeg, png, testing::noise_jpeg(8, 8, 1)});
  for (const char* format : {"shard:", "lmdb:", "tar:"}) {
    const std::string uri = format + (dir / (std::string("bombs-") + format[0]));
    pack(env(), bombs, uri);
    const DatasetReport report =
        inspect_dataset(*open_dataset(env(), uri), InspectDepth::kPixels, 2);
    ASSERT_EQ(report.broken.size(), 2u);
    for (const auto& broken : report.broken)
      EXPECT_NE(broken.reason.find("60000 x 60000"), std::string::npos) << broken.reason;
  }
  PackOptions options;
  options.max_side = 8;
  options.on_error = OnError::kSkip;
  EXPECT_EQ(pack(env(), bombs, "shard:" + (dir / "b.shard"), options).skipped.size(), 2u);
}

// Names in a file cannot refer to a place outside the output folder.
TEST_F(Pack, ClassNamesThatAreNotFolderNamesAreRefused) {
  class Evil : public testing::MemoryDataset {
   public:
    explicit Evil(const std::string& name)
        : MemoryDataset({testing::noise_jpeg(8, 8, 1)}), names_{name} {}
    const std::vector<std::string>& classes() const override { return names_; }

   private:
    std::vector<std::string> names_;
  };
  for (const std::string& name : {std::string(".."), std::string("../../evil"), std::string("/abs"),
                                  std::string(), std::string("a\0b", 3)}) {
    const Evil evil(name);
    pack(env(), evil, "shard:" + (dir / "evil.shard"));  // formats without folders accept them
    const auto shard = open_dataset(env(), "shard:" + (dir / "evil.shard"));
    EXPECT_EQ(shard->classes().front(), name);
    EXPECT_EQ(error_of([&] { write_dataset(env(), *shard, dir / "new", 1); }).kind(),
              ErrorKind::kData);
    EXPECT_EQ(error_of([&] { pack(env(), *shard, "tar:" + (dir / "new.tar")); }).kind(),
              ErrorKind::kData);
    std::filesystem::remove(dir / "evil.shard");
  }
  EXPECT_FALSE(env().exists(dir / "new"));
  EXPECT_FALSE(env().exists(dir / "new.tar"));
}

TEST_F(Pack, ExistingOutputAndUnknownOptionsAreRefused) {
  write_file(dir / "taken", "x");
  write_file(dir / "taken.d/data.mdb", "x");
  for (const std::string& out :
       {"shard:" + (dir / "taken"), "tar:" + (dir / "taken"), "lmdb:" + (dir / "taken.d"),
        std::string("folder:x"), std::string("x.shard"), std::string("shard:"),
        std::string("shrad:x")})
    EXPECT_EQ(error_of([&] { pack(env(), *folder, out); }).kind(), ErrorKind::kUsage) << out;
  EXPECT_EQ(read_text(dir / "taken"), "x");
}

// Whichever operation fails, no file is left: neither under the final name nor a temporary one.
TEST_F(Pack, AFailureOfAnyOperationLeavesNoFile) {
  for (const char* format : {"shard", "tar", "lmdb"}) {
    for (FileOp op : {FileOp::kCreate, FileOp::kWrite, FileOp::kSync, FileOp::kClose,
                      FileOp::kRename, FileOp::kMakeDirectories}) {
      const std::string folder_path = dir / (std::string("out-") + format);
      FaultEnv faults(env());
      faults.inject({.match = {op, ""}, .error = ENOSPC, .written = 700});
      const std::string out =
          std::string(format) + ":" + folder_path + (std::string(format) == "lmdb" ? "" : "/file");
      try {
        pack(faults, *folder, out);
        EXPECT_STREQ(format, "lmdb") << int(op);  // it writes without an Env
        std::filesystem::remove_all(folder_path);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRun);
        if (env().exists(folder_path)) {
          EXPECT_TRUE(env().list(folder_path).empty()) << format << int(op);
        }
      }
    }
  }
}

// A killed pack leaves a temporary file. It is not part of a folder of shards, and the next run
// removes it; the file of a running process is not removed.
TEST_F(Pack, AKilledPackCanBeRepeated) {
  class Endless : public Dataset {
   public:
    explicit Endless(const Dataset& inner) : inner_(inner) {}
    size_t size() const override { return 1'000'000'000; }
    const std::vector<std::string>& classes() const override { return inner_.classes(); }
    void read(size_t i, Sample& out) const override { inner_.read(i % inner_.size(), out); }

   private:
    const Dataset& inner_;
  } const endless(*folder);
  for (const char* format : {"shard", "tar", "lmdb"}) {
    const std::string parent = dir / (std::string(format) + "s");
    const bool lmdb = std::string(format) == "lmdb";
    const std::string uri = std::string(format) + ":" + parent + (lmdb ? "" : "/a.shard");
    const pid_t child = fork();
    if (child == 0) {
      try {
        PackOptions options;
        options.out = uri;
        pack_dataset(env(), endless, options);
      } catch (...) {
      }
      _exit(1);
    }
    const auto left_over = [&] {
      if (!env().exists(parent)) return uintmax_t{0};
      for (const FileInfo& info : env().list(parent))
        if (info.name.find(".tmp-") != std::string::npos)
          return uintmax_t(std::filesystem::file_size(parent + "/" + info.name));
      return uintmax_t{0};
    };
    while (left_over() < 500'000) {
      ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it was not killed";
      env().sleep_ns(1'000'000);
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_EQ(env().list(parent).size(), 1u);
    EXPECT_EQ(error_of([&] { open_dataset(env(), uri); }).kind(), ErrorKind::kData);

    const std::string alive =
        testing::temporary_of(parent + (lmdb ? "/data.mdb" : "/a.shard"), getppid());
    write_file(alive, "x");
    pack(env(), *folder, uri);
    testing::expect_equal(*folder, *open_dataset(env(), uri));
    EXPECT_TRUE(env().exists(alive));
    std::filesystem::remove(alive);
    std::filesystem::remove(parent + "/lock.mdb");  // the reader's
    EXPECT_EQ(env().list(parent).size(), 1u);
  }
}

}  // namespace
}  // namespace saturate
