#include "tests/fuzz/fuzz_source.h"

#include <algorithm>
#include <stdexcept>

#include "saturate/data/augment.h"
#include "saturate/data/dataset.h"
#include "tests/fuzz/memory_env.h"

namespace saturate::testing {
namespace {

// Every existing file has the same contents; their names are not known in advance.
class SameFileEnv : public MemoryEnv {
 public:
  explicit SameFileEnv(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::unique_ptr<ReadableFile> open_readable(const std::string&) override {
    return std::make_unique<MemoryFile>(bytes_);
  }

 private:
  std::span<const std::byte> bytes_;
};

// No checksum is checked, so that damaged tables and segments are decoded.
void read_some_rows(const Dataset& dataset, size_t index) {
  Sample sample;
  Decoder decoder(1 << 20);
  Image image;
  try {
    dataset.read_rows(index, {0, 8}, sample);
    if (sample.encoding != SampleEncoding::kSegmented) return;
    const Box part{0, 0, sample.width, std::min(sample.height, 8)};
    decoder.decode_segmented(sample.bytes, sample.width, sample.height, part, sample.name, image);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw std::logic_error(error.what());
  }
}

}  // namespace

size_t fuzz_source(const std::string& scheme, std::span<const std::byte> bytes) {
  SameFileEnv env(bytes);
  size_t read = 0;
  try {
    const auto dataset = open_dataset(env, scheme + ":input");
    Sample sample;
    Decoder decoder(1 << 20);
    Image image;
    for (size_t i = 0; i < dataset->size(); ++i) {
      read_some_rows(*dataset, i);
      try {
        dataset->read(i, sample);
        if (!dataset->tensors().empty() &&
            sample.bytes.size() != bytes_of(std::span(dataset->tensors())))
          throw std::logic_error("a sample of another size");
        if (dataset->classes().empty() && sample.label == 0) {
          ++read;
          continue;
        }
        if (sample.label < 0 || size_t(sample.label) >= dataset->classes().size())
          throw std::logic_error("label out of range");
        if (sample.encoding == SampleEncoding::kSegmented) decode_sample(decoder, sample, image);
        ++read;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kData) throw std::logic_error(error.what());
      }
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kRun) throw std::logic_error(error.what());
  }
  return read;
}

}  // namespace saturate::testing
