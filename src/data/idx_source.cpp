// idx:IMAGES[,LABELS] or idx:FOLDER[,split=train|test]: the format of MNIST and its family (EMNIST,
// Fashion-MNIST, KMNIST), http://yann.lecun.com/exdb/mnist/: a magic number that tells type and
// rank, the sizes as big-endian uint32, the values. Files may be compressed with gzip. Everything
// is kept in memory: the largest of the family has 0.6 GB.
#include <zlib.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/files.h"
#include "data/path_list.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// A file read sequentially, decompressed if it is gzip. Not for concurrent use.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out`, or fails with kData if the data ends before or is damaged.
  virtual void read(std::span<std::byte> out) = 0;
  // Whether all has been read; for a gzip file its checksum must match.
  virtual bool at_end() = 0;
  // Upper bound of the remaining bytes, to check a header's claims before allocating memory.
  virtual uint64_t most_left() const = 0;
};

constexpr const char* kFetchStream = "It is truncated or damaged: fetch it again";
constexpr size_t kInputBytes = 1 << 18;
// A byte of deflate data expands to at most 1032 bytes (zlib's technical notes).
constexpr uint64_t kMaxRatio = 1032;

class PlainStream : public ByteStream {
 public:
  PlainStream(std::unique_ptr<ReadableFile> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  void read(std::span<std::byte> out) override {
    if (out.size() > most_left()) fail(ErrorKind::kData, "file is truncated", path_, kFetchStream);
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
      if (got == 0) fail(ErrorKind::kData, "gzip data is truncated", path_, kFetchStream);
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
        if (in_member_) fail(ErrorKind::kData, "gzip data is truncated", path_, kFetchStream);
        return 0;
      }
      if (!in_member_) inflateReset(&zlib_);  // members follow one another
      in_member_ = true;
      const int result = inflate(&zlib_, Z_NO_FLUSH);
      if (result == Z_MEM_ERROR) throw std::bad_alloc();
      if (result == Z_STREAM_END)
        in_member_ = false;
      else if (result != Z_OK && result != Z_BUF_ERROR)
        fail(ErrorKind::kData, "gzip data is damaged", path_, kFetchStream);
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

std::unique_ptr<ByteStream> open_byte_stream(Env& env, const std::string& path) {
  auto file = env.open_readable(path);
  std::byte magic[2] = {};
  if (file->size() >= sizeof magic) file->read_at(0, magic);
  if (magic[0] == std::byte{0x1f} && magic[1] == std::byte{0x8b})
    return std::make_unique<GzipStream>(std::move(file), path);
  return std::make_unique<PlainStream>(std::move(file), path);
}

constexpr uint8_t kUnsignedByte = 0x08;
constexpr const char* kFormats = "Give the MNIST family's image and label files, plain or .gz";

struct IdxFile {
  std::vector<uint32_t> sizes;
  std::vector<std::byte> values;
};

void check_magic(std::span<const std::byte, 4> magic, size_t rank, const std::string& path) {
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0} || magic[3] == std::byte{0})
    fail(ErrorKind::kData, "not an IDX file: wrong magic number", path, kFormats);
  if (magic[2] != std::byte{kUnsignedByte})
    fail(ErrorKind::kData, "IDX file holds values that are not unsigned bytes", path, kFormats);
  if (size_t(magic[3]) != rank)
    fail(ErrorKind::kData,
         "IDX file has " + std::to_string(int(magic[3])) + " dimensions where " +
             std::to_string(rank) + " belong",
         path, "Give the images first, then the labels");
}

IdxFile read_idx(Env& env, const std::string& path, size_t rank) {
  const auto stream = open_byte_stream(env, path);
  std::byte magic[4];
  stream->read(magic);
  check_magic(magic, rank, path);
  IdxFile idx;
  uint64_t total = 1;
  std::string claimed;
  for (size_t i = 0; i < rank; ++i) {
    std::byte digits[4];
    stream->read(digits);
    uint32_t size = 0;
    for (std::byte b : digits) size = size << 8 | uint32_t(b);
    idx.sizes.push_back(size);
    claimed += (i == 0 ? "" : " x ") + std::to_string(size);
    if (__builtin_mul_overflow(total, size, &total)) total = UINT64_MAX;
  }
  if (total == 0) fail(ErrorKind::kData, "IDX file claims " + claimed + " values", path, kFormats);
  if (total > stream->most_left())
    fail(ErrorKind::kData, "IDX file is truncated: it claims " + claimed + " values", path,
         "Fetch it again");
  require_memory(total, path, "its values take");
  idx.values.resize(total);
  stream->read(idx.values);
  if (!stream->at_end())
    fail(ErrorKind::kData, "IDX file continues after the " + claimed + " values it claims", path,
         "Fetch it again");
  return idx;
}

class IdxSource : public IndexedSource {
 public:
  IdxSource(Env& env, std::string images, const std::string& labels)
      : path_(std::move(images)),
        images_(read_idx(env, path_, 3)),
        labels_(read_idx(env, labels, 1).values) {
    if (images_.sizes[0] != labels_.size())
      fail(ErrorKind::kData,
           std::to_string(images_.sizes[0]) + " images, and " + std::to_string(labels_.size()) +
               " labels",
           path_ + " and " + labels, "Give files that belong together, as idx:IMAGES,LABELS");
    if (uint64_t{images_.sizes[1]} * images_.sizes[2] > uint64_t(Decoder::kDefaultMaxPixels))
      fail(ErrorKind::kData, "IDX file claims images of too many pixels", path_, kFormats);
    classes_ = number_classes(size_t(*std::max_element(labels_.begin(), labels_.end())) + 1);
  }

  size_t size() const override { return labels_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }

  int64_t label(size_t index) const override { return int64_t(labels_[index]); }

  void read(size_t index, Sample& out) const override {
    out.name = path_ + ":" + std::to_string(index);
    out.label = int64_t(labels_[index]);
    out.encoding = SampleEncoding::kRaw;
    out.height = int(images_.sizes[1]);
    out.width = int(images_.sizes[2]);
    out.channels = 1;
    const size_t bytes = size_t(out.height) * size_t(out.width);
    const auto from = images_.values.begin() + ptrdiff_t(index * bytes);
    out.bytes.assign(from, from + ptrdiff_t(bytes));
  }

 private:
  std::string path_;
  IdxFile images_;  // [count, height, width]
  std::vector<std::byte> labels_;
  std::vector<std::string> classes_;
};

// "train-images-idx3-ubyte.gz" goes with "train-labels-idx1-ubyte", compressed or not.
std::string find_labels(Env& env, const std::string& images) {
  const size_t base = images.rfind('/') + 1;
  std::string name = images.substr(base);
  const auto swap = [&](const std::string& from, const std::string& to) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
    return at != std::string::npos;
  };
  if (swap("images", "labels")) {
    swap("idx3", "idx1");
    const std::string same = images.substr(0, base) + name;
    const std::string other =
        same.ends_with(".gz") ? same.substr(0, same.size() - 3) : same + ".gz";
    for (const std::string& path : {same, other})
      if (env.exists(path)) return path;
  }
  fail(ErrorKind::kData, "no label file found next to the images", images,
       "Name it: idx:IMAGES,LABELS");
}

// The one image file of a split in a folder; of a file plain and compressed, the plain one.
std::string find_images(Env& env, const std::string& folder, const std::string& split) {
  std::vector<std::string> found;
  for (const FileInfo& info : env.list(folder)) {
    const std::string& name = info.name;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const bool test = has("t10k") || has("test");
    if (info.is_directory || !has("images") || !has("idx3") || test != (split == "test")) continue;
    if (!found.empty() && name == found.back() + ".gz") continue;
    found.push_back(name);
  }
  if (found.size() == 1) return folder + "/" + found.front();
  fail(ErrorKind::kData,
       found.empty() ? "folder holds no image file of split " + split
                     : "folder holds several image files: " + found[0] + ", " + found[1],
       folder, "Name the file: idx:IMAGES");
}

}  // namespace

std::unique_ptr<Dataset> open_idx(Env& env, const std::string& rest) {
  std::string list = rest;
  const std::string split = take_word(list, "split", "train", "test");
  std::vector<std::string> paths = expand_paths(env, list, "idx");
  if (paths.size() > 2)
    fail(ErrorKind::kUsage, "idx: takes one image file and one label file", "idx:" + rest,
         "Write idx:IMAGES,LABELS");
  if (env.is_directory(paths[0]))
    paths[0] = find_images(env, paths[0], split.empty() ? "train" : split);
  else if (!split.empty())
    fail(ErrorKind::kUsage, "split is given, and the path is not a folder", "idx:" + rest,
         "Remove split, or name the folder");
  const std::string labels = paths.size() == 2 ? paths[1] : find_labels(env, paths[0]);
  return std::make_unique<IdxSource>(env, std::move(paths[0]), labels);
}

}  // namespace saturate
