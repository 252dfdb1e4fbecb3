#include "tests/fuzz/fuzz_index.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "base/checksum.h"
#include "data/index_file.h"
#include "image/fast_decoder.h"
#include "saturate/data/random.h"
#include "tests/fuzz/memory_env.h"

namespace saturate::testing {
namespace {

constexpr int kIndexSide = 24;
constexpr size_t kIndexHeader = 16, kIndexTrailer = 32, kIndexRecord = 32;
const char* const kIndexPath = "index";

SampleTransform crop_of(int x, int y, int width, int height) {
  SampleTransform transform;
  transform.crop = {x, y, width, height};
  return transform;
}

// In the middle, at both ends, and the whole.
const SampleTransform kIndexCrops[] = {crop_of(70, 40, 60, 50), crop_of(0, 0, 90, 30),
                                       crop_of(150, 100, 58, 44), crop_of(0, 0, 208, 144)};

struct Case {
  std::vector<std::byte> file;
  std::vector<std::vector<std::byte>> pixels;  // of each crop
};

std::vector<std::byte> decode(FastDecoder& decoder, const Case& given, size_t crop) {
  std::vector<std::byte> out(kIndexSide * kIndexSide * 3);
  if (!decoder.open(given.file, "input") ||
      !decoder.read("input", kIndexCrops[crop], kIndexSide, out.data()))
    throw std::logic_error("a sound JPEG is not decoded");
  return out;
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  FastDecoder decoder;
  for (uint64_t i = 0; i < 3; ++i) {
    RandomStream random(11, 0, i, RandomUse::kSynthetic);
    Image image;
    image.resize(208, 144);
    for (uint8_t& value : image.pixels) value = uint8_t(random.below(40 + 80 * uint32_t(i)));
    Case one{encode_jpeg(image, 80, i == 1), {}};
    for (size_t crop = 0; crop < std::size(kIndexCrops); ++crop)
      one.pixels.push_back(decode(decoder, one, crop));
    cases.push_back(std::move(one));
  }
  return cases;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = make_cases();
  return all;
}

uint32_t crc_in(const std::string& text, size_t begin, size_t size, uint32_t before = 0) {
  return checksum_of(std::as_bytes(std::span(text)).subspan(begin, size), before);
}

// Makes magic words, sizes and checksums agree, which would otherwise refuse nearly everything.
void repair(std::string& text) {
  static const std::string sound = index_of_fuzzed_jpegs();
  if (text.size() < kIndexHeader + kIndexTrailer) return;
  const size_t end = text.size() - kIndexTrailer;
  text.replace(0, kIndexHeader, sound, 0, kIndexHeader);
  text.replace(end + 20, 12, sound, sound.size() - 12, 12);
  uint64_t directory;
  std::memcpy(&directory, text.data() + end + 8, sizeof directory);
  if (directory > end) return;
  const uint64_t files = (end - directory) / kIndexRecord;
  for (uint64_t i = 0; i < files; ++i) {
    char* const record = text.data() + directory + i * kIndexRecord;
    uint64_t offset;
    uint32_t size;
    std::memcpy(&offset, record + 16, sizeof offset);
    std::memcpy(&size, record + 24, sizeof size);
    if (offset > text.size() || size > text.size() - offset) continue;
    const uint32_t crc = crc_in(text, offset, size, crc_in(text, directory + i * kIndexRecord, 16));
    std::memcpy(record + 28, &crc, sizeof crc);
  }
  std::memcpy(text.data() + end, &files, sizeof files);
  const uint32_t crc = crc_in(text, directory, end - directory);
  std::memcpy(text.data() + end + 16, &crc, sizeof crc);
}

// Four bytes a change: what to do, where, and with which byte.
std::string changed(std::span<const std::byte> changes) {
  static const std::string sound = index_of_fuzzed_jpegs();
  std::string text = sound;
  for (; changes.size() >= 4 && !text.empty(); changes = changes.subspan(4)) {
    const auto number = [&](size_t i) { return std::to_integer<size_t>(changes[i]); };
    const size_t at = (number(1) << 8 | number(2)) % text.size();
    const char value = char(number(3));
    switch (number(0) % 4) {
      case 0:
        text[at] = value;
        break;
      case 1:
        text.insert(at, 1, value);
        break;
      case 2:
        text.erase(at, number(3) % 8 + 1);
        break;
      default:
        text[at] = char(text[at] + value % 4);
    }
  }
  return text;
}

// Looks all files up, and decodes one crop of one of them, which `choice` selects: all of them
// would take twelve times as long. A forged index, whose checksums are right, may change pixels,
// but nothing else.
size_t use(const std::string& text, size_t choice, bool forged) {
  MemoryEnv env;
  env.files[kIndexPath] = text;
  IndexState state;
  std::string problem;
  const std::shared_ptr<const IndexFile> file = IndexFile::open(env, kIndexPath, state, problem);
  if (!file != !problem.empty()) throw std::logic_error("unexplained");
  if (!file) return 0;
  ScanIndex index(ScanIndex::kDefaultLimit, file);
  FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  size_t used = 0;
  std::vector<uint8_t> coded;
  for (const Case& one : cases()) used += file->find(scan_key(one.file), coded);
  const Case& one = cases()[choice % cases().size()];
  const size_t crop = choice / cases().size() % std::size(kIndexCrops);
  if (decode(decoder, one, crop) != one.pixels[crop] && !forged)
    throw std::logic_error("an index changes pixels");
  return used;
}

// An Env whose one written file is in memory.
class WritingEnv : public MemoryEnv {
 public:
  std::string written;
  std::unique_ptr<WritableFile> open_writable(const std::string&) override {
    return std::make_unique<File>(written);
  }
  std::vector<FileInfo> list(const std::string&) override { return {}; }
  void make_directories(const std::string&) override {}
  void rename(const std::string&, const std::string&) override {}
  void sync_directory(const std::string&) override {}

 private:
  class File : public WritableFile {
   public:
    explicit File(std::string& out) : out_(out) {}
    void append(std::span<const std::byte> bytes) override {
      out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    void sync() override {}
    void close() override {}

   private:
    std::string& out_;
  };
};

}  // namespace

std::string index_of_fuzzed_jpegs() {
  ScanIndex index;
  FastDecoder decoder(Decoder::kDefaultMaxPixels, fast_kernels(), &index);
  for (const Case& one : cases())
    if (decoder.find_points(one.file, "input") != FastDecoder::Points::kFound)
      throw std::logic_error("a JPEG without points");
  WritingEnv env;
  write_index(env, kIndexPath, index, nullptr, {});
  return env.written;
}

size_t fuzz_index(std::span<const std::byte> bytes) {
  const std::string_view given(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string text = given.starts_with("SATPOINT") ? std::string(given) : changed(bytes);
  // Changes take four bytes each; one byte more selects what is decoded.
  const size_t choice =
      bytes.empty() ? 0 : std::to_integer<size_t>(bytes.back()) ^ bytes.size() / 4;
  const size_t used = use(text, choice, false);
  repair(text);
  return used + use(text, choice, true);
}

}  // namespace saturate::testing
