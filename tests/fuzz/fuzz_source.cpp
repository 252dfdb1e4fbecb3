#include "tests/fuzz/fuzz_source.h"

#include <cstring>
#include <stdexcept>

#include "saturate/dataset.h"
#include "saturate/env.h"
#include "saturate/error.h"

namespace saturate::testing {
namespace {

class MemoryFile : public ReadableFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  void read_at(uint64_t offset, std::span<std::byte> out) const override {
    // A real file fails here with an Error; a parser that checks never gets so far.
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
      throw std::logic_error("read past the end");
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

[[noreturn]] void refuse() {
  throw std::logic_error("a source only opens files");
}

class MemoryEnv : public Env {
 public:
  explicit MemoryEnv(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::unique_ptr<ReadableFile> open_readable(const std::string&) override {
    return std::make_unique<MemoryFile>(bytes_);
  }
  bool exists(const std::string&) override { return false; }
  bool is_directory(const std::string&) override { return false; }
  std::unique_ptr<WritableFile> open_writable(const std::string&) override { refuse(); }
  std::unique_ptr<WritableFile> open_appendable(const std::string&) override { refuse(); }
  std::vector<FileInfo> list(const std::string&) override { refuse(); }
  void make_directories(const std::string&) override { refuse(); }
  void rename(const std::string&, const std::string&) override { refuse(); }
  void remove(const std::string&) override { refuse(); }
  void sync_directory(const std::string&) override { refuse(); }
  std::unique_ptr<FileLock> lock(const std::string&) override { refuse(); }
  int64_t now_ns() override { refuse(); }
  void sleep_ns(int64_t) override { refuse(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

size_t fuzz_source(const std::string& scheme, std::span<const std::byte> bytes) {
  MemoryEnv env(bytes);
  size_t read = 0;
  try {
    const auto dataset = open_dataset(env, scheme + ":input");
    Sample sample;
    Decoder decoder(1 << 20);
    Image image;
    for (size_t i = 0; i < dataset->size(); ++i) {
      try {
        dataset->read(i, sample);
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
