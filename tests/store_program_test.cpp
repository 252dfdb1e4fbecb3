// The loader as a process that is killed: tests/store_kill_test.py runs this "test", ends it at
// any moment and starts it again elsewhere in the epoch.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/checksum.h"
#include "data/export.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

// Covers the pixels, or all fields of tensors.
uint32_t checksum_of_sample(const Batch& batch, size_t i) {
  constexpr size_t kBytes = 8 * 8 * 3;
  if (!batch.columns) return checksum_of({batch.pixels.get() + i * kBytes, kBytes});
  uint32_t crc = 0;
  for (const BatchColumn& column : *batch.columns) {
    const size_t bytes = column.field.bytes();
    crc = checksum_of({batch.pixels.get() + column.offset + i * bytes, bytes}, crc);
  }
  return crc;
}

// SATURATE_LOADER: "URI CACHE THREADS RANK WORLD SHUFFLE FIRST EPOCHS". Prints a line for each
// batch from global batch FIRST on, counted over all epochs: "BATCH INDEX:LABEL:CRC ...".
TEST(StoreProgram, PrintsItsBatches) {
  const char* const given = std::getenv("SATURATE_LOADER");
  if (!given) GTEST_SKIP() << "tests/store_kill_test.py runs it";
  std::istringstream words(given);
  std::string uri, cache;
  LoaderOptions options;
  int shuffle = 0;
  size_t first = 0, epochs = 0;
  words >> uri >> cache >> options.threads >> options.shard.rank >> options.shard.world >>
      shuffle >> first >> epochs;
  ASSERT_TRUE(words) << given;
  DataOptions data;
  data.store.cache_dir = cache == "-" ? "" : cache;
  data.cache.gb = 1;
  const auto dataset = open_input(testing::env(), uri, data);
  options.batch = 12;
  options.prefetch = 3;
  options.seed = 9;
  options.shuffle = {ShuffleMode(shuffle), 4};
  options.type = PixelType::kUint8;
  if (!dataset->tensors().empty()) options.output = BatchOutput::kTensors;
  AugmentOptions augment;
  augment.size = 8;
  augment.crop = CropKind::kRandomResized;
  Loader loader(*dataset, options, augment);
  for (size_t epoch = first / loader.batches(); epoch < epochs; ++epoch) {
    const size_t begin = epoch == first / loader.batches() ? first % loader.batches() : 0;
    loader.start_epoch(uint32_t(epoch), begin);
    for (Batch batch; loader.next(batch);) {
      std::string line = "batch " + std::to_string(epoch * loader.batches() + batch.place);
      for (size_t i = 0; i < batch.count(); ++i) {
        line += " " + std::to_string(batch.samples[i].index) + ":" +
                std::to_string(batch.samples[i].label) + ":" +
                std::to_string(checksum_of_sample(batch, i));
      }
      std::puts(line.c_str());
      std::fflush(stdout);
    }
  }
}

// SATURATE_STORE_FILES: a folder for images/, a.shard, 0.tar and 1.tar, all of the same samples:
// images of some 200 KB, so that a request for the rows of a crop pays.
TEST(StoreProgram, WritesTheFiles) {
  const char* const folder = std::getenv("SATURATE_STORE_FILES");
  const char* const samples = std::getenv("SATURATE_STORE_SAMPLES");
  if (!folder || !samples) GTEST_SKIP() << "tests/store_kill_test.py runs it";
  const std::string root = folder, images = root + "/images";
  const auto drawn =
      open_dataset(testing::env(), std::string("synth:size=560,difficulty=1,count=") + samples);
  PackOptions options;
  options.threads = 2;
  options.quality = 92;
  options.out = "tar:" + root + "/all.tar";
  std::filesystem::create_directories(root);
  pack_dataset(testing::env(), *drawn, options);
  options.quality = 0;
  write_dataset(testing::env(), *open_dataset(testing::env(), "tar:" + root + "/all.tar"), images,
                options.threads);
  options.out = "shard:" + root + "/a.shard";
  pack_dataset(testing::env(), *open_dataset(testing::env(), "folder:" + images), options);
  for (const std::string part : {"train", "held"}) {
    options.out = "tar:" + root + (part == "held" ? "/1.tar" : "/0.tar");
    const std::string source = "split:" + part + ",1/3,folder:" + images;
    pack_dataset(testing::env(), *open_dataset(testing::env(), source), options);
  }
}

}  // namespace
}  // namespace saturate
