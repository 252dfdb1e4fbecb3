// Sources of JPEGs in segments, which a loader can pack.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "data/export.h"
#include "image/segmented_jpeg.h"
#include "tests/data_testing.h"
#include "tests/image_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate::testing {

constexpr size_t kJpegsInSegments = 20;  // of the samples below, the first

// A shard of JPEGs in segments, 4:4:4 at even indices, and of three images that are never packed.
inline std::shared_ptr<const Dataset> mixed_shard(const TempDir& dir) {
  for (size_t i = 0; i < kJpegsInSegments; ++i) {
    const JpegKind kind{"", JCS_YCbCr, 1 + int(i % 2), 1 + int(i % 4 / 3)};
    write_file(dir / ("set/a/" + std::to_string(10 + i) + ".jpg"),
               to_text(encode_as(test_picture(300 - 7 * int(i), 150 - 3 * int(i)), kind, 60)));
  }
  for (const char* name : {"exif_6.jpg", "grey_8.png", "rgb.png"})
    write_file(dir / (std::string("set/b/") + name), to_text(golden_input(name)));
  PackOptions options;
  options.out = "shard:" + (dir / "mixed.shard");
  const PackReport report =
      pack_dataset(env(), *open_dataset(env(), "folder:" + (dir / "set")), options);
  EXPECT_EQ(report.segmented, kJpegsInSegments);
  return open_dataset(env(), options.out);
}

// Another source, whose samples are changed when they are read.
class ChangedDataset : public Dataset {
 public:
  using Change = std::function<void(size_t index, Sample& sample)>;
  ChangedDataset(std::shared_ptr<const Dataset> source, Change change, bool masks = false)
      : source_(std::move(source)), change_(std::move(change)), masks_(masks) {}
  size_t size() const override { return source_->size(); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  bool has_masks() const override { return masks_; }
  void read(size_t index, Sample& out) const override {
    source_->read(index, out);
    change_(index, out);
  }

 private:
  const std::shared_ptr<const Dataset> source_;
  const Change change_;
  const bool masks_;
};

// Replaces all Huffman codes of a 4:4:4 JPEG in segments; its table and markers stay sound, so that
// only a decoder finds the damage.
inline void damage_codes(Sample& sample) {
  const std::vector<std::byte> bytes = sample.bytes;
  SegmentedJpeg jpeg;
  jpeg.open(bytes, sample.width, sample.height, sample.name);
  RandomStream random(1, 0, 0, RandomUse::kSynthetic);
  for (int row = 0; row < (sample.height + 7) / 8; ++row)
    for (int column = 0; column < jpeg.segments_across(); ++column) {
      const auto codes = std::as_bytes(jpeg.segment(row, column));
      std::byte* const at = sample.bytes.data() + (codes.data() - bytes.data());
      for (size_t i = 0; i < codes.size(); ++i) at[i] = std::byte(random.next_u32() & 0x7f);
    }
}

// `source`, one sample of which is damaged.
inline ChangedDataset with_damage(std::shared_ptr<const Dataset> source, size_t damaged) {
  return {std::move(source), [damaged](size_t index, Sample& sample) {
            if (index == damaged) damage_codes(sample);
          }};
}

inline LoaderOptions packing_options(bool packs) {
  LoaderOptions options;
  options.batch = 5;
  options.threads = 3;
  options.decode = DecodeMode::kFast;
  options.output = BatchOutput::kUnfinished;
  options.packs = packs;
  options.seed = 5;
  return options;
}

// Samples of an epoch that the loader packs.
inline size_t packed_samples(const Dataset& data, const AugmentOptions& augment,
                             uint32_t epoch = 0) {
  Loader loader(data, packing_options(true), augment);
  loader.start_epoch(epoch);
  size_t count = 0;
  for (Batch batch; loader.next(batch);)
    for (const BatchSample& sample : batch.samples) count += sample.is_packed();
  return count;
}

}  // namespace saturate::testing
