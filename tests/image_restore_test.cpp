// Joining a JPEG's segments restores the bytes of the original, by a note in its header.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "image/jpeg_markers.h"
#include "image/jpeg_restore.h"
#include "image/segmented_jpeg.h"
#include "tests/data_testing.h"
#include "tests/format_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate {
namespace {

using testing::encode_as;
using testing::JpegKind;
using testing::test_picture;
using testing::with_marker;
using FileBytes = std::vector<std::byte>;

const JpegKind kUsualKind = {"420", JCS_YCbCr, 2, 2};

struct StoredFile {
  FileBytes bytes;
  int width = 0, height = 0;
  bool exact = false;
};

StoredFile stored_file(const FileBytes& file, bool exact = true) {
  StoredFile stored;
  JpegSegmenter segmenter;
  EXPECT_TRUE(segmenter.cut(file, 4, stored.bytes, stored.width, stored.height, exact));
  stored.exact = segmenter.is_exact();
  return stored;
}

FileBytes restored_file(const StoredFile& stored) {
  FileBytes out;
  JpegSegmenter().join(stored.bytes, stored.width, stored.height, "x", out);
  return out;
}

Image picture_in(const FileBytes& file) {
  Image image;
  Decoder().decode(file, "x", image);
  return image;
}

void expect_restored(const FileBytes& file, const std::string& name) {
  const StoredFile stored = stored_file(file);
  EXPECT_TRUE(stored.exact) << name;
  EXPECT_TRUE(restored_file(stored) == file) << name;
}

void expect_only_pixels(const FileBytes& file, const std::string& name) {
  const StoredFile stored = stored_file(file);
  EXPECT_FALSE(stored.exact) << name;
  EXPECT_TRUE(stored.bytes == stored_file(file, false).bytes) << name;
  EXPECT_TRUE(picture_in(restored_file(stored)).pixels == picture_in(file).pixels) << name;
}

size_t note_bytes(const FileBytes& file) {
  return stored_file(file).bytes.size() - stored_file(file, false).bytes.size();
}

// All tables of a kind in one marker, as cameras write them.
FileBytes with_joined_tables(const FileBytes& file) {
  std::string quants, codes;
  walk_markers(file, [&](int code, size_t place, size_t end) {
    const std::string body = testing::to_text(marker_body(file, place, end));
    if (code == kQuantTables) quants += body;
    if (code == kHuffmanTables) codes += body;
  });
  FileBytes out = testing::without_segments(file, kHuffmanTables);
  out = testing::without_segments(out, kQuantTables);
  return with_marker(with_marker(out, kHuffmanTables, codes), kQuantTables, quants);
}

TEST(Restore, BaselineFilesOfLibjpegAreRestored) {
  const JpegKind kinds[] = {
      {"444"},
      {"422", JCS_YCbCr, 2, 1},
      kUsualKind,
      {"grey", JCS_GRAYSCALE},
      {"restart_rows", JCS_YCbCr, 2, 2, false, 1},
      {.name = "restarts", .across = 2, .down = 2, .restart_mcus = 3},
      {"own_tables_420", JCS_YCbCr, 2, 2, false, 0, false, true},
      {"own_tables_444", JCS_YCbCr, 1, 1, false, 0, false, true},
  };
  for (const JpegKind& kind : kinds)
    for (const auto& [width, height] : {std::pair{131, 97}, {134, 60}, {144, 48}, {265, 33}})
      expect_restored(encode_as(test_picture(width, height), kind),
                      std::string(kind.name) + " " + std::to_string(width));
}

TEST(Restore, MarkersAreStoredOnce) {
  FileBytes file = encode_as(test_picture(150, 70), kUsualKind);
  EXPECT_EQ(note_bytes(file), 30u);
  file = with_marker(file, kComment, "hello");
  file = with_marker(file, kComment, "hello");
  file =
      with_marker(file, kApp1 + 1, std::string("ICC_PROFILE\0\1\1", 14) + std::string(9000, 'i'));
  file = with_marker(file, kApp1, testing::exif(1));
  expect_restored(file, "markers");
  EXPECT_EQ(note_bytes(file), 34u);
}

TEST(Restore, TablesMayShareAMarkerOrBeMissing) {
  const FileBytes file = encode_as(test_picture(150, 70), kUsualKind);
  expect_restored(with_joined_tables(file), "joined");
  EXPECT_LT(note_bytes(with_joined_tables(file)), 50u);
  expect_restored(testing::without_segments(file, kHuffmanTables), "as in Motion JPEG");
}

TEST(Restore, BytesAfterTheScanAreRestored) {
  FileBytes file = encode_as(test_picture(150, 70), kUsualKind);
  FileBytes filled = file;
  filled.insert(filled.end() - 2, std::byte{0xff});
  expect_restored(filled, "a fill byte before the end");
  file.insert(file.end(), 300, std::byte{'x'});
  expect_restored(file, "a few bytes");
  file.insert(file.end(), 70'000, std::byte{'x'});
  expect_only_pixels(file, "many bytes");
}

TEST(Restore, OtherFilesKeepTheirPixels) {
  expect_only_pixels(encode_as(test_picture(150, 70), {"", JCS_YCbCr, 2, 2, true}), "progressive");
  expect_only_pixels(encode_as(test_picture(150, 70), {.name = "", .own_scans = true}), "scans");
  FileBytes filled = encode_as(test_picture(150, 70), kUsualKind);
  filled.insert(filled.begin() + 2, std::byte{0xff});
  expect_only_pixels(filled, "a fill byte in the header");
  // The blocks beyond the image are those of a larger one.
  FileBytes wide = encode_as(test_picture(112, 64), kUsualKind);
  JpegFrame frame;
  ASSERT_TRUE(read_jpeg_frame(wide, frame));
  wide[frame.size_at + 1] = std::byte{50};
  wide[frame.size_at + 3] = std::byte{100};
  expect_only_pixels(wide, "padding blocks");
}

bool has_pixels_of(const FileBytes& file, const FileBytes& other) {
  try {
    return picture_in(file).pixels == picture_in(other).pixels;
  } catch (const Error&) {
    return false;
  }
}

TEST(Restore, ZerosAfterTheLastBitsKeepTheirPixels) {
  int tried = 0;
  for (int width = 100; width < 120 && tried < 3; ++width) {
    const FileBytes file = encode_as(test_picture(width, 40), kUsualKind);
    FileBytes other = file;
    other[other.size() - 3] &= std::byte{0xfe};
    // Else the bit is not padding.
    if (other == file || !has_pixels_of(other, file)) continue;
    ++tried;
    expect_only_pixels(other, std::to_string(width));
  }
  EXPECT_EQ(tried, 3);
}

// As of a program that has copied it from a shard.
TEST(Restore, AStoredFileIsRestoredWithItsNote) {
  const StoredFile first = stored_file(encode_as(test_picture(150, 70), kUsualKind));
  SegmentedJpeg jpeg;
  jpeg.open(first.bytes, first.width, first.height, "x");
  const FileBytes inner(jpeg.file().begin(), jpeg.file().end());
  expect_restored(inner, "with a note");
  const Image picture = picture_in(restored_file(stored_file(inner, false)));
  EXPECT_EQ(picture.width, 192) << "its own note is for another file";
  EXPECT_TRUE(picture.pixels == picture_in(inner).pixels);
}

TEST(Restore, AFileWithoutANoteIsJoined) {
  const StoredFile old{read_file(Env::posix(), testing::format_golden("segmented.bin")), 150, 42};
  const Image image = picture_in(restored_file(old));
  EXPECT_EQ(testing::to_text(std::as_bytes(std::span(image.pixels))),
            testing::gunzip(testing::format_golden("segmented.rgb.gz")));
}

TEST(Restore, DamagedNotesKeepThePixels) {
  const FileBytes file = encode_as(test_picture(150, 70), kUsualKind);
  const StoredFile good = stored_file(file);
  const Image expected = picture_in(file);
  const size_t name = testing::to_text(good.bytes).find("saturate");
  ASSERT_NE(name, std::string::npos);
  for (size_t i = name; i < name + 26; ++i) {
    for (const int bits : {0x01, 0x40, 0x80, 0xff}) {
      StoredFile forged = good;
      forged.bytes[i] ^= std::byte(bits);
      const FileBytes out = restored_file(forged);
      EXPECT_TRUE(picture_in(out).pixels == expected.pixels) << i - name << " " << bits;
      EXPECT_FALSE(out == file) << i - name << " " << bits;
    }
  }
}

// The header of a file with a long comment, and a note of these operations.
FileBytes noted_header(const std::string& operations, bool last = true) {
  const FileBytes comment = testing::marker(kComment, std::string(60'000, 'c'));
  const FileBytes note = testing::marker(kApp15, std::string("saturate\0\1abcd", 14) + operations);
  FileBytes file = testing::bytes_of_text("\xff\xd8");
  for (const FileBytes& part :
       {last ? comment : note, last ? note : comment, testing::marker(kScan, "scan")})
    file.insert(file.end(), part.begin(), part.end());
  return file;
}

TEST(Restore, OperationsAreChecked) {
  const std::string end(1, '\0');
  const auto header_bytes = [](const FileBytes& file) {
    const auto note = read_restore_note(file, 100);
    return note ? note->header.size() : 0;
  };
  const FileBytes sound = noted_header("\x80\x02xy\xc0" + end + "rest");
  const auto note = read_restore_note(sound, 100);
  ASSERT_TRUE(note);
  EXPECT_EQ(note->header.size(), 2u + 60'004 + 2 + 60'000);
  EXPECT_EQ(testing::to_text(note->after), "rest");
  EXPECT_EQ(note->checksum, 0x64636261u);
  EXPECT_EQ(header_bytes(noted_header("\xbb" + end)), 2u + 33) << "a standard table";
  EXPECT_EQ(header_bytes(noted_header("\x81" + end)), 2u + 8) << "the scan's marker";
  EXPECT_EQ(header_bytes(noted_header("\x80")), 0u) << "no end";
  EXPECT_EQ(header_bytes(noted_header("\x05xyz")), 0u) << "bytes outside the note";
  EXPECT_EQ(header_bytes(noted_header("\x82" + end)), 0u) << "no such marker";
  EXPECT_EQ(header_bytes(noted_header("\xbf" + end)), 0u) << "no such part";
  EXPECT_EQ(header_bytes(noted_header(std::string(279, '\x80') + end)), 2u + 279 * 60'004);
  EXPECT_EQ(header_bytes(noted_header(std::string(280, '\x80') + end)), 0u) << "over 16 MiB";
  EXPECT_EQ(header_bytes(noted_header("\x80" + end, false)), 0u) << "not before the scan";
  EXPECT_EQ(header_bytes({}), 0u);
  FileBytes newer = sound;
  newer[2 + 60'004 + 4 + 9] = std::byte{2};
  EXPECT_EQ(header_bytes(newer), 0u);
}

TEST(Restore, PhotographsAreRestored) {
  const std::string folder = testing::shared_path("data/imagenet-400");
  if (!Env::posix().is_directory(folder)) GTEST_SKIP() << "no photographs at " << folder;
  const auto photographs = open_dataset(Env::posix(), "folder:" + folder);
  JpegSegmenter segmenter;
  Sample sample;
  StoredFile stored;
  int cut = 0, exact = 0;
  for (size_t i = 0; i < photographs->size(); i += 7) {
    photographs->read(i, sample);
    if (!segmenter.cut(sample.bytes, 4, stored.bytes, stored.width, stored.height, true)) continue;
    ++cut;
    if (!segmenter.is_exact()) continue;
    ++exact;
    ASSERT_TRUE(restored_file(stored) == sample.bytes) << sample.name;
  }
  EXPECT_GT(2 * exact, cut);  // all of them, when this was written
}

}  // namespace
}  // namespace saturate
