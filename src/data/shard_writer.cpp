#include <limits>

#include "data/atomic_file.h"
#include "data/bytes.h"
#include "data/sample_writer.h"
#include "data/shard_format.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// Pads `block` to `size` with zeros, the last four bytes being the checksum of the others.
void seal(std::vector<std::byte>& block, size_t size) {
  block.resize(size - sizeof(uint32_t));
  put_number(block, checksum_of(block));
}

class ShardWriter : public SampleWriter {
 public:
  ShardWriter(Env& env, const std::string& path, const std::vector<std::string>& classes)
      : file_(env, path), classes_(classes) {
    std::vector<std::byte> header;
    put_text(header, kShardMagic);
    put_number(header, kShardVersion);
    seal(header, kShardHeaderBytes);
    file_.append(header);
    file_.align(kShardPage);
  }

  void append(const Sample& sample) override {
    if (sample.bytes.size() > std::numeric_limits<uint32_t>::max())
      fail(ErrorKind::kData, "sample is larger than 4 GiB", sample.name, "Give --max-side");
    const PayloadKind kind = kind_of(sample);
    const bool sized = kind != PayloadKind::kEncoded;
    file_.align(kShardAlignment);
    names_ += sample.name;
    ShardRecord record{};
    record.offset = file_.size();
    record.size = uint32_t(sample.bytes.size());
    record.crc = checksum_of(sample.bytes);
    record.label = uint32_t(sample.label);
    record.kind = uint16_t(kind);
    record.channels = kind == PayloadKind::kRaw ? uint16_t(sample.channels) : uint16_t{0};
    record.width = sized ? uint32_t(sample.width) : 0;
    record.height = sized ? uint32_t(sample.height) : 0;
    record.name_end = names_.size();
    records_.push_back(record);
    file_.append(sample.bytes);
  }

  void finish() override {
    file_.align(kShardPage);
    const uint64_t index_offset = file_.size();
    std::vector<std::byte> index;
    put_bytes(index, std::as_bytes(std::span(records_)));
    put_classes(index, classes_);
    put_text(index, names_);
    file_.append(index);

    std::vector<std::byte> trailer;
    put_text(trailer, kShardTrailerMagic);
    put_number(trailer, file_.size() + kShardTrailerBytes);
    put_number(trailer, index_offset);
    put_number(trailer, uint64_t{index.size()});
    put_number(trailer, uint64_t{records_.size()});
    put_number(trailer, uint32_t(classes_.size()));
    put_number(trailer, checksum_of(index));
    seal(trailer, kShardTrailerBytes);
    file_.append(trailer);
    file_.commit();
  }

 private:
  AtomicFile file_;
  const std::vector<std::string>& classes_;
  std::vector<ShardRecord> records_;
  std::string names_;
};

}  // namespace

std::unique_ptr<SampleWriter> write_shard(Env& env, const std::string& path,
                                          const std::vector<std::string>& classes) {
  return std::make_unique<ShardWriter>(env, path, classes);
}

}  // namespace saturate
