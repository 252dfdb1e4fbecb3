// Folders of photographs and their index files, for tests of data.index.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "data/index_file.h"
#include "data/source_index.h"
#include "image/fast_decoder.h"
#include "saturate/data/input.h"
#include "tests/data_testing.h"
#include "tests/jpeg_encoding.h"

namespace saturate::testing {

constexpr int kPhotos = 8;
constexpr size_t kIndexedSide = 40;

inline std::string indexed_photo(int i) {
  return to_text(encode_as(test_picture(260 + 30 * i, 400 - 20 * (i % 8)),
                           {.name = "", .across = 1 + i % 2, .down = 1 + i / 2 % 2}));
}

inline void write_photos(const std::string& folder) {
  for (int i = 0; i < kPhotos; ++i)
    write_file(folder + (i % 2 ? "/b/" : "/a/") + std::to_string(i) + ".jpg", indexed_photo(i));
}

inline DataOptions index_options(const std::string& index) {
  DataOptions options;
  options.decode = DecodeMode::kFast;
  options.threads = 2;
  if (index == "off")
    options.index.mode = IndexMode::kOff;
  else if (index != "auto")
    options.index = {IndexMode::kFile, index};
  return options;
}

inline std::vector<uint64_t> epochs_of(const Dataset& data, uint32_t epochs) {
  LoaderOptions options;
  options.batch = 3;
  options.threads = 2;
  options.type = PixelType::kUint8;
  options.decode = DecodeMode::kFast;
  AugmentOptions augment;
  augment.size = int(kIndexedSide);
  augment.crop = CropKind::kRandomResized;
  Loader loader(data, options, augment);
  std::vector<uint64_t> hashes;
  for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
    loader.start_epoch(epoch);
    for (Batch batch; loader.next(batch);)
      hashes.push_back(
          hash_bytes({batch.pixels.get(), batch.count() * kIndexedSide * kIndexedSide * 3}));
  }
  return hashes;
}

inline std::vector<uint64_t> epochs_of(const std::string& source, const std::string& index,
                                       uint32_t epochs) {
  return epochs_of(*open_input(Env::posix(), source, index_options(index)), epochs);
}

inline std::unique_ptr<IndexFile> open_index(const std::string& path, IndexState& state) {
  std::string problem;
  return IndexFile::open(Env::posix(), path, state, problem);
}

inline size_t indexed_files(const std::string& path) {
  IndexState state;
  const auto file = open_index(path, state);
  return file ? file->size() : 0;
}

inline IndexReport add_to(SourceIndex& index, const std::string& source) {
  return index_dataset(*open_dataset(Env::posix(), source), index, 2, ProgressCallback());
}

inline IndexReport index_into(const std::string& path, const std::string& source) {
  SourceIndex index(Env::posix(), path, SourceIndex::Kind::kGiven);
  const auto report = add_to(index, source);
  index.save(false);
  return report;
}

}  // namespace saturate::testing
