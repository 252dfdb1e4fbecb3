// data.index: points of JPEG scans that are kept in a file between runs.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/export.h"
#include "tests/fault_env.h"
#include "tests/fuzz/fuzz_index.h"
#include "tests/index_testing.h"

namespace saturate {
namespace {

using testing::add_to;
using testing::encode_as;
using testing::epochs_of;
using testing::index_into;
using testing::index_options;
using testing::indexed_files;
using testing::indexed_photo;
using testing::kPhotos;
using testing::open_index;
using testing::read_text;
using testing::TempDir;
using testing::test_picture;
using testing::to_text;
using testing::write_file;
using testing::write_photos;

TEST(Index, IsWrittenAtTheEndAndUsedByTheNextRun) {
  const TempDir dir;
  write_photos(dir / "set");
  const std::string source = "folder:" + (dir / "set"), path = dir / "cache/x.points";
  const auto expected = epochs_of(source, "off", 3);
  EXPECT_EQ(epochs_of(source, path, 3), expected);
  EXPECT_EQ(indexed_files(path), size_t(kPhotos));
  {
    const auto data = open_input(Env::posix(), source, index_options(path));
    EXPECT_EQ(epochs_of(*data, 3), expected);
    // Nearly all points were known, so that little was added to those of the file.
    IndexState state;
    EXPECT_LT(data->source_index()->points()->added(), open_index(path, state)->bytes() / 2);
  }
  EXPECT_EQ(epochs_of(source, path, 3), expected);
}

// A process that is killed later loses nothing of the first epoch.
TEST(Index, IsWrittenWhenTheNextEpochBegins) {
  const TempDir dir;
  write_photos(dir / "set");
  const std::string path = dir / "x.points";
  const auto data = open_input(Env::posix(), "folder:" + (dir / "set"), index_options(path));
  epochs_of(*data, 1);
  EXPECT_EQ(indexed_files(path), 0u) << "the end of an epoch waited for it";
  epochs_of(*data, 1);
  EXPECT_EQ(indexed_files(path), size_t(kPhotos));
}

TEST(Index, OffKeepsNothing) {
  const TempDir dir;
  write_photos(dir / "set");
  const auto data = open_input(Env::posix(), "folder:" + (dir / "set"), index_options("off"));
  epochs_of(*data, 2);
  EXPECT_EQ(data->source_index()->points(), nullptr);
}

TEST(Index, IsMadeBeforehand) {
  const TempDir dir;
  write_photos(dir / "set");
  write_file(dir / "set/a/small.jpg", testing::noise_jpeg(40, 40, 1));
  write_file(dir / "set/a/progressive.jpg",
             to_text(encode_as(test_picture(300, 200), {"", JCS_YCbCr, 2, 2, true})));
  write_file(dir / "set/a/restarts.jpg",
             to_text(encode_as(test_picture(300, 200), {"", JCS_YCbCr, 2, 2, false, 1})));
  write_file(dir / "set/b/pixels.png",
             to_text(encode_png(test_picture(200, 200).pixels.data(), 200, 200, 3)));
  write_file(dir / "set/b/broken.jpg", indexed_photo(1).substr(0, 120));
  write_file(dir / "set/b/cut.jpg", indexed_photo(2).substr(0, 3000));
  const std::string source = "folder:" + (dir / "set"), path = dir / "x.points";
  const auto report = index_into(path, source);
  EXPECT_EQ(report.samples, size_t(kPhotos) + 6);
  EXPECT_EQ(report.found, size_t(kPhotos));
  EXPECT_EQ(report.known, 0u);
  EXPECT_EQ(report.without, 5u);  // the one without an end is left to libjpeg
  ASSERT_EQ(report.broken.size(), 1u);
  EXPECT_EQ(report.broken[0].name, dir / "set/b/broken.jpg");
  const auto again = index_into(path, source);
  EXPECT_EQ(again.found, 0u);
  EXPECT_EQ(again.known, size_t(kPhotos));
  std::filesystem::remove(dir / "set/b/broken.jpg");
  std::filesystem::remove(dir / "set/b/cut.jpg");
  const auto expected = epochs_of(source, "off", 2);
  const auto data = open_input(Env::posix(), source, index_options(path));
  EXPECT_EQ(epochs_of(*data, 2), expected);
  EXPECT_EQ(data->source_index()->points()->added(), 0u) << "all points were known";
}

TEST(Index, OfAChangedFileIsNotUsed) {
  const TempDir dir;
  write_photos(dir / "set");
  const std::string source = "folder:" + (dir / "set"), path = dir / "x.points";
  index_into(path, source);
  // The same size and name, other contents.
  std::string other = indexed_photo(3);
  other[other.size() / 2] = char(other[other.size() / 2] ^ 4);
  write_file(dir / "set/b/3.jpg", other);
  write_file(dir / "set/a/4.jpg", indexed_photo(5));
  EXPECT_EQ(epochs_of(source, path, 2), epochs_of(source, "off", 2));
  EXPECT_GE(index_into(path, source).known, size_t(kPhotos) - 1);
}

TEST(Index, IsSharedByArchivesOfTheSameFiles) {
  const TempDir dir;
  write_photos(dir / "set");
  const std::string path = dir / "x.points";
  index_into(path, "folder:" + (dir / "set"));
  Env& env = Env::posix();
  for (const char* out : {"tar:", "lmdb:", "shard:"}) {
    PackOptions options;
    options.out = out + (dir / "packed-") + std::string(out, strlen(out) - 1);
    options.segment = 0;
    pack_dataset(env, *open_dataset(env, "folder:" + (dir / "set")), options);
    EXPECT_EQ(index_into(path, options.out).known, size_t(kPhotos)) << out;
    EXPECT_EQ(epochs_of(options.out, path, 2), epochs_of(options.out, "off", 2)) << out;
  }
}

TEST(Index, HandsMemoryOverToAFile) {
  const TempDir dir;
  write_photos(dir / "set");
  const std::string path = dir / "x.points";
  index_into(path, dir / "set");
  IndexState state;
  const std::shared_ptr<const IndexFile> file = open_index(path, state);
  ASSERT_TRUE(file);
  const auto bytes = read_file(Env::posix(), dir / "set/a/0.jpg");
  ScanPoints points, again;
  ScanIndex other;
  ScanIndex(ScanIndex::kDefaultLimit, file).find(scan_key(bytes), points);
  ASSERT_FALSE(points.point.empty());
  other.keep(scan_key(bytes), points);
  EXPECT_GT(other.bytes(), 0u);
  other.hand_over(file);
  EXPECT_EQ(other.bytes(), 0u);
  other.find(scan_key(bytes), again);
  EXPECT_EQ(again.point, points.point);
}

TEST(Index, KeepsWhatItHadToSaveOnTheWay) {
  const TempDir dir;
  write_photos(dir / "set");
  SourceIndex whole(Env::posix(), "", SourceIndex::Kind::kGiven);
  add_to(whole, dir / "set");
  SourceIndex index(Env::posix(), dir / "x.points", SourceIndex::Kind::kGiven,
                    whole.points()->bytes() * 3 / 2);
  EXPECT_EQ(add_to(index, dir / "set").found, size_t(kPhotos));
  EXPECT_EQ(index.points()->bytes(), 0);
  EXPECT_EQ(index.save(true).files, size_t(kPhotos));
}

TEST(Index, BorrowedHasThePointsOfAnotherAndKeepsNone) {
  const TempDir dir;
  write_photos(dir / "set");
  SourceIndex own(Env::posix(), "", SourceIndex::Kind::kInCache);
  const auto borrowed = borrowed_index(Env::posix(), own);
  EXPECT_EQ(add_to(*borrowed, dir / "set").found, size_t(kPhotos));
  EXPECT_EQ(add_to(own, dir / "set").found, size_t(kPhotos)) << "none were kept";
  EXPECT_EQ(add_to(*borrowed, dir / "set").known, size_t(kPhotos));
}

// Two processes that end at about the same time.
TEST(Index, KeepsWhatOthersHaveAdded) {
  const TempDir dir;
  write_photos(dir / "one");
  for (int i = 0; i < 4; ++i)
    write_file(dir / "two/c/" + std::to_string(i) + ".jpg", indexed_photo(20 + i));
  const std::string path = dir / "x.points";
  {
    SourceIndex first(Env::posix(), path, SourceIndex::Kind::kGiven);
    SourceIndex second(Env::posix(), path, SourceIndex::Kind::kGiven);
    add_to(first, dir / "one");
    add_to(second, dir / "two");
  }
  EXPECT_EQ(indexed_files(path), size_t(kPhotos) + 4);
  // One that a source no longer has is removed on request.
  std::filesystem::remove(dir / "one/a/0.jpg");
  SourceIndex index(Env::posix(), path, SourceIndex::Kind::kGiven);
  add_to(index, dir / "one");
  EXPECT_EQ(index.save(true).files, size_t(kPhotos) - 1);
}

TEST(Index, CannotBeWrittenIsAWarning) {
  const TempDir dir;
  write_photos(dir / "set");
  const std::string source = "folder:" + (dir / "set"), path = dir / "x.points";
  const auto expected = epochs_of(source, "off", 2);
  for (const FileOp op : {FileOp::kCreate, FileOp::kWrite, FileOp::kSync, FileOp::kRename,
                          FileOp::kMakeDirectories}) {
    FaultEnv env(Env::posix());
    env.inject({.match = {op, path}});
    env.inject({.match = {op, dir.path()}});
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(epochs_of(*open_input(env, source, index_options(path)), 2), expected);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("cannot be written"), std::string::npos) << int(op) << said;
    EXPECT_EQ(indexed_files(path), 0u);
  }
}

TEST(Index, ThatCannotBeReadAtPresentIsKept) {
  const TempDir dir;
  write_photos(dir / "set");
  const std::string source = "folder:" + (dir / "set"), path = dir / "x.points";
  const auto expected = epochs_of(source, path, 2);
  const std::string sound = read_text(path);
  for (const FileOp op : {FileOp::kExamine, FileOp::kOpen}) {
    FaultEnv env(Env::posix());
    env.inject({.match = {op, path}, .error = ESTALE});
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(epochs_of(*open_input(env, source, index_options(path)), 2), expected);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("cannot be written"), std::string::npos) << said;
    EXPECT_EQ(said.find("will be replaced"), std::string::npos) << said;
    EXPECT_EQ(read_text(path), sound) << int(op);
  }
}

TEST(Index, NeverReplacesAnotherFile) {
  const TempDir dir;
  write_photos(dir / "set");
  write_file(dir / "thesis.txt", "years of work");
  const Error error = testing::error_of([&] {
    open_input(Env::posix(), "folder:" + (dir / "set"), index_options(dir / "thesis.txt"));
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_NE(std::string(error.what()).find("not an index"), std::string::npos) << error.what();
  EXPECT_THROW(open_input(Env::posix(), "folder:" + (dir / "set"), index_options(dir / "set")),
               Error);
  EXPECT_EQ(read_text(dir / "thesis.txt"), "years of work");
}

TEST(Index, TruncatedAnywhereIsNotUsedAndReplaced) {
  const std::string whole = testing::index_of_fuzzed_jpegs();
  const TempDir dir;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string text = whole.substr(0, size);
    write_file(dir / "y.points", text);
    IndexState state;
    EXPECT_FALSE(open_index(dir / "y.points", state)) << size;
    EXPECT_EQ(state, IndexState::kDamaged) << size;
    if (size % 37 != 8) continue;
    EXPECT_NO_THROW(testing::fuzz_index(std::as_bytes(std::span(text)))) << size;
  }
  write_photos(dir / "set");
  const std::string source = "folder:" + (dir / "set"), path = dir / "x.points";
  const auto expected = epochs_of(source, path, 2);
  const std::string sound = read_text(path);
  for (const size_t size : {size_t{0}, size_t{5}, size_t{20}, sound.size() / 2, sound.size() - 1}) {
    write_file(path, sound.substr(0, size));
    IndexState state;
    EXPECT_FALSE(open_index(path, state)) << size;
    EXPECT_EQ(state, IndexState::kDamaged) << size;
    EXPECT_EQ(epochs_of(source, path, 2), expected);
    EXPECT_EQ(indexed_files(path), size_t(kPhotos)) << size;
  }
}

// As a bug would write it, with right checksums: only decoding can notice.
TEST(Index, PointsOfAnotherFileAreNoticedWhenTheyAreUsed) {
  const std::vector<std::string> files = {
      to_text(encode_as(testing::test_picture(400, 300), {"", JCS_YCbCr, 2, 2}, 80)),
      to_text(encode_as(testing::test_picture(400, 300), {"", JCS_YCbCr, 2, 2}, 81))};
  ScanIndex found, exchanged;
  FastDecoder plain, finder(Decoder::kDefaultMaxPixels, fast_kernels(), &found),
      user(Decoder::kDefaultMaxPixels, fast_kernels(), &exchanged);
  ScanPoints points;
  for (int i = 0; i < 2; ++i) {
    const auto bytes = std::as_bytes(std::span(files[size_t(i)]));
    ASSERT_EQ(finder.find_points(bytes, "x"), FastDecoder::Points::kFound);
    found.find(scan_key(bytes), points);
    exchanged.keep(scan_key(std::as_bytes(std::span(files[size_t(1 - i)]))), points);
  }
  const size_t before = exchanged.bytes();
  RandomStream random(3, 0, 0, RandomUse::kSynthetic);
  for (int trial = 0; trial < 40; ++trial) {
    const auto bytes = std::as_bytes(std::span(files[size_t(trial % 2)]));
    SampleTransform transform;
    transform.crop = {int(random.below(200)), int(random.below(150)), 60 + int(random.below(140)),
                      60 + int(random.below(90))};
    std::vector<std::byte> expected(64 * 64 * 3), pixels(64 * 64 * 3);
    ASSERT_TRUE(plain.open(bytes, "x"));
    ASSERT_TRUE(plain.read("x", transform, 64, expected.data()));
    ASSERT_TRUE(user.open(bytes, "x"));
    ASSERT_TRUE(user.read("x", transform, 64, pixels.data()));
    EXPECT_EQ(pixels, expected) << trial;
    if (trial != 1) continue;  // those in the smaller file end beyond it, and are not used at all
    EXPECT_LT(exchanged.bytes(), before) << "the entry was not removed";
  }
}

}  // namespace
}  // namespace saturate
