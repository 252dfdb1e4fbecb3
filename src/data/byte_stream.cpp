#include "data/byte_stream.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char* kFetchAgain = "It is truncated or damaged: fetch it again";
constexpr size_t kInputBytes = 1 << 18;
// A byte of deflate data expands to at most 1032 bytes (zlib's technical notes).
constexpr uint64_t kMaxRatio = 1032;

class PlainStream : public ByteStream {
 public:
  PlainStream(std::unique_ptr<ReadableFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  void read(std::span<std::byte> out) override {
    if (out.size() > most_left()) fail(ErrorKind::kData, "file is truncated", path_, kFetchAgain);
    file_->read_at(position_, out);
    position_ += out.size();
  }
  bool at_end() override { return most_left() == 0; }
  uint64_t most_left() const override { return file_->size() - position_; }

 private:
  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  uint64_t position_ = 0;
};

class GzipStream : public ByteStream {
 public:
  GzipStream(std::unique_ptr<ReadableFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)), input_(kInputBytes) {
    if (inflateInit2(&zlib_, 15 + 16) != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { inflateEnd(&zlib_); }

  void read(std::span<std::byte> out) override {
    while (!out.empty()) {
      const size_t got = inflate_some(out);
      if (got == 0) fail(ErrorKind::kData, "gzip data is truncated", path_, kFetchAgain);
      out = out.subspan(got);
    }
  }
  bool at_end() override {
    if (ahead_) return false;
    std::byte next;
    ahead_ = inflate_some(std::span(&next, 1)) == 1;
    return !ahead_;
  }
  uint64_t most_left() const override {
    return (file_->size() - position_ + zlib_.avail_in) * kMaxRatio + kMaxRatio;
  }

 private:
  // Decompresses into `out`; returns the number of bytes, 0 at the end of the last member.
  size_t inflate_some(std::span<std::byte> out) {
    zlib_.next_out = reinterpret_cast<Bytef*>(out.data());
    zlib_.avail_out = uInt(std::min<size_t>(out.size(), 1 << 30));
    const uInt room = zlib_.avail_out;
    while (zlib_.avail_out == room) {
      if (zlib_.avail_in == 0 && !refill()) {
        if (in_member_) fail(ErrorKind::kData, "gzip data is truncated", path_, kFetchAgain);
        return 0;
      }
      if (!in_member_) inflateReset(&zlib_);  // members follow one another
      in_member_ = true;
      const int result = inflate(&zlib_, Z_NO_FLUSH);
      if (result == Z_MEM_ERROR) throw std::bad_alloc();
      if (result == Z_STREAM_END)
        in_member_ = false;
      else if (result != Z_OK && result != Z_BUF_ERROR)
        fail(ErrorKind::kData, "gzip data is damaged", path_, kFetchAgain);
    }
    return room - zlib_.avail_out;
  }

  bool refill() {
    const uint64_t count = std::min<uint64_t>(kInputBytes, file_->size() - position_);
    if (count == 0) return false;
    file_->read_at(position_, std::span(input_).first(count));
    position_ += count;
    zlib_.next_in = reinterpret_cast<Bytef*>(input_.data());
    zlib_.avail_in = uInt(count);
    return true;
  }

  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  std::vector<std::byte> input_;
  z_stream zlib_{};
  uint64_t position_ = 0;  // in the compressed file
  bool in_member_ = true;  // inside a member
  bool ahead_ = false;     // at_end() has consumed one byte more
};

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(Env& env, const std::string& path) {
  auto file = env.open_readable(path);
  std::byte magic[2] = {};
  if (file->size() >= sizeof magic) file->read_at(0, magic);
  if (magic[0] == std::byte{0x1f} && magic[1] == std::byte{0x8b})
    return std::make_unique<GzipStream>(std::move(file), path);
  return std::make_unique<PlainStream>(std::move(file), path);
}

}  // namespace saturate
