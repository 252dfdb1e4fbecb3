// Helpers of the tests of base and data.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "data/atomic_file.h"
#include "data/sample_reader.h"
#include "saturate/data/dataset.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/image.h"
#include "saturate/data/loader.h"
#include "saturate/data/random.h"

namespace saturate::testing {

inline Env& env() {
  return Env::posix();
}

// The name that process `pid` of this machine would give to the file until it is complete.
inline std::string temporary_of(const std::string& path, pid_t pid) {
  const std::string name = TemporaryName(env(), path, /*replaces=*/true).get(), mark = ".tmp-";
  const size_t at = name.rfind(mark) + mark.size();
  return name.substr(0, at) + std::to_string(pid) + name.substr(name.find('-', at));
}

// A temporary folder for one test, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "saturate-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("cannot create a temporary folder");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// FNV-1a, 64 bits.
inline uint64_t hash_bytes(std::span<const std::byte> bytes,
                           uint64_t hash = 0xcbf29ce484222325ull) {
  for (std::byte b : bytes) hash = (hash ^ uint64_t(b)) * 0x100000001b3ull;
  return hash;
}

// The saturate::Error that `body` throws; fails the test if it throws none.
inline Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no saturate::Error was thrown";
  return Error(ErrorKind::kUsage, "none", "", "", std::source_location::current());
}

// A different image for each index.
inline Image noise_image(int width, int height, uint64_t index) {
  RandomStream random(7, 0, index, RandomUse::kSynthetic);
  Image image;
  image.resize(width, height);
  for (uint8_t& value : image.pixels) value = uint8_t(random.next_u32());
  return image;
}

inline std::string noise_jpeg(int width, int height, uint64_t index) {
  return to_text(encode_jpeg(noise_image(width, height, index), 90, true));
}

// Two classes of small JPEGs of varying sizes: class i % 2, file names in index order per class.
inline void write_folder_dataset(const std::string& root, int count) {
  for (int i = 0; i < count; ++i) {
    std::string name = std::to_string(i);
    name.insert(0, 5 - name.size(), '0');
    write_file(root + (i % 2 ? "/odd/" : "/even/") + name + ".jpg",
               noise_jpeg(12 + i % 9, 10 + i % 7, uint64_t(i)));
  }
}

// One member of each sample, as &BatchSample::label.
template <class T>
std::vector<T> all_of(const Batch& batch, T BatchSample::*part) {
  std::vector<T> all;
  for (const BatchSample& sample : batch.samples) all.push_back(sample.*part);
  return all;
}

// Samples in memory.
class MemoryDataset : public Dataset {
 public:
  explicit MemoryDataset(std::vector<std::string> files,
                         std::vector<std::string> classes = {"a", "b", "c"})
      : files_(std::move(files)), classes_(std::move(classes)) {}
  size_t size() const override { return files_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(size_t index, Sample& out) const override {
    const auto bytes = std::as_bytes(std::span(files_[index]));
    out.name = "memory:" + std::to_string(index);
    out.label = int64_t(index % classes_.size());
    out.bytes.assign(bytes.begin(), bytes.end());
  }

 private:
  std::vector<std::string> files_;
  std::vector<std::string> classes_;
};

// The image of a sample as a loader gives it, in bytes.
inline std::vector<uint8_t> read_pixels(const Dataset& data, DecodeMode decode, uint32_t index,
                                        const AugmentOptions& augment) {
  LoaderOptions options;
  options.type = PixelType::kUint8;
  options.decode = decode;
  SampleReader reader(data, options, augment);
  std::vector<uint8_t> pixels(size_t(augment.size.area()) * 3);
  BatchSample sample{index};
  reader.read(0, sample, reinterpret_cast<std::byte*>(pixels.data()));
  return pixels;
}

}  // namespace saturate::testing
