#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "data/atomic_file.h"
#include "data/bytes.h"
#include "data/sample_writer.h"
#include "data/tar_format.h"
#include "image/codec.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

class TarWriter : public SampleWriter {
 public:
  TarWriter(Env& env, const std::string& path, const std::vector<std::string>& classes)
      : file_(env, path), classes_(classes) {
    check_folder_names(classes);
  }

  void append(const Sample& sample) override {
    file_.append(make_tar_header(member_name(classes_, number_++, sample), sample.bytes.size()));
    file_.append(sample.bytes);
    file_.align(kTarBlock);
  }

  void finish() override {
    file_.append(std::vector<std::byte>(2 * kTarBlock));  // the end marker
    file_.commit();
  }

 private:
  AtomicFile file_;
  const std::vector<std::string>& classes_;
  size_t number_ = 0;
};

}  // namespace

void check_folder_names(const std::vector<std::string>& classes) {
  for (const std::string& name : classes)
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      fail(ErrorKind::kData, "class name cannot be a folder's name", name, "Rename the class");
}

std::string member_name(const std::vector<std::string>& classes, size_t number,
                        const Sample& sample) {
  const char* const ending = ending_of(image_format_of(sample.bytes).value_or(ImageFormat::kJpeg));
  return fmt::format("{}/{:08}{}", classes[size_t(sample.label)], number, ending);
}

void join_segments(Sample& sample) {
  if (sample.encoding != SampleEncoding::kSegmented) return;
  std::vector<std::byte> file;
  JpegSegmenter().join(sample.bytes, sample.width, sample.height, sample.name, file);
  sample.bytes = std::move(file);
  sample.encoding = SampleEncoding::kEncoded;
}

void make_file(Sample& sample) {
  join_segments(sample);
  if (sample.encoding != SampleEncoding::kRaw) return;
  sample.bytes = encode_png(reinterpret_cast<const uint8_t*>(sample.bytes.data()), sample.width,
                            sample.height, sample.channels);
  sample.encoding = SampleEncoding::kEncoded;
}

std::unique_ptr<SampleWriter> write_tar(Env& env, const std::string& path,
                                        const std::vector<std::string>& classes) {
  return std::make_unique<TarWriter>(env, path, classes);
}

}  // namespace saturate
