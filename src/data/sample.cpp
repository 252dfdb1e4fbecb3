// From a dataset to a sample, and from that to its pixels: the only place that distinguishes
// encoded from raw samples.
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/printable.h"
#include "data/read_sample.h"
#include "data/read_undamaged.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/dataset.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

void check_raw(const Sample& sample) {
  if (sample.encoding == SampleEncoding::kTensors)
    fail(ErrorKind::kData, "the sample is of tensors, and an image is needed", sample.name,
         "Give a source of images");
  const bool sized =
      sample.width > 0 && sample.height > 0 && (sample.channels == 1 || sample.channels == 3) &&
      sample.bytes.size() == size_t(sample.width) * size_t(sample.height) * size_t(sample.channels);
  if (!sized)
    fail(ErrorKind::kData,
         "raw image of " + std::to_string(sample.width) + " x " + std::to_string(sample.height) +
             " x " + std::to_string(sample.channels) + " has " +
             std::to_string(sample.bytes.size()) + " bytes",
         sample.name, "Create the data set again");
}

}  // namespace

size_t TensorField::bytes() const {
  size_t bytes = bytes_of(type);
  for (const int64_t size : shape) bytes *= size_t(size);
  return bytes;
}

size_t bytes_of(std::span<const TensorField> fields) {
  size_t bytes = 0;
  for (const TensorField& field : fields) bytes += field.bytes();
  return bytes;
}

const std::vector<TensorField>& Dataset::tensors() const {
  static const std::vector<TensorField> none;
  return none;
}

uint64_t Dataset::bytes(size_t index) const {
  Sample sample;
  read(index, sample);
  return sample.bytes.size();
}

void decode_sample(Decoder& decoder, const Sample& sample, Image& out) {
  if (sample.encoding == SampleEncoding::kEncoded)
    return decoder.decode(sample.bytes, sample.name, out);
  if (sample.encoding == SampleEncoding::kSegmented) {
    const Box whole{0, 0, sample.width, sample.height};
    decoder.decode_segmented(sample.bytes, sample.width, sample.height, whole, sample.name, out);
    return;
  }
  check_raw(sample);
  out.resize(sample.width, sample.height);
  const auto* from = reinterpret_cast<const uint8_t*>(sample.bytes.data());
  if (sample.channels == 3) {
    std::copy_n(from, out.pixels.size(), out.pixels.begin());
    return;
  }
  for (uint8_t* to = out.pixels.data(); to != out.pixels.data() + out.pixels.size(); to += 3)
    to[0] = to[1] = to[2] = *from++;
}

void set_raw(const Image& image, Sample& sample) {
  const auto pixels = std::as_bytes(std::span(image.pixels));
  sample.bytes.assign(pixels.begin(), pixels.end());
  sample.encoding = SampleEncoding::kRaw;
  sample.width = image.width;
  sample.height = image.height;
  sample.channels = 3;
}

ImageInfo probe_sample(Decoder& decoder, const Sample& sample) {
  if (sample.encoding == SampleEncoding::kEncoded) return decoder.probe(sample.bytes, sample.name);
  if (sample.encoding == SampleEncoding::kSegmented) {
    SegmentedJpeg jpeg;
    jpeg.open(sample.bytes, sample.width, sample.height, sample.name);
    return {ImageFormat::kJpeg, sample.width, sample.height, jpeg.components()};
  }
  check_raw(sample);
  return {ImageFormat::kRaw, sample.width, sample.height, sample.channels};
}

namespace {

void copy_raw_mask(const StoredMask& mask, int width, int height, const std::string& image,
                   ClassMap& out) {
  if (mask.width != width || mask.height != height ||
      mask.bytes.size() != size_t(width) * size_t(height))
    fail(ErrorKind::kData,
         "the mask is of " + std::to_string(mask.width) + " x " + std::to_string(mask.height) +
             " pixels, and its image " + image + " of " + std::to_string(width) + " x " +
             std::to_string(height),
         mask.name, "Create the mask again from this image");
  out.width = width;
  out.height = height;
  const auto* from = reinterpret_cast<const uint8_t*>(mask.bytes.data());
  out.classes.assign(from, from + mask.bytes.size());
}

}  // namespace

void decode_mask(const Sample& sample, int width, int height, size_t classes, ClassMap& out) {
  const StoredMask& mask = sample.mask;
  if (mask.is_raw)
    copy_raw_mask(mask, width, height, sample.name, out);
  else
    decode_mask_png(mask.bytes, mask.name, width, height, sample.name, out);
  for (size_t i = 0; i < out.classes.size(); ++i) {
    const size_t number = out.classes[i];
    if (number < classes || number == kIgnoredClass) continue;
    fail(ErrorKind::kData,
         "the mask has class " + std::to_string(number) + " at x " +
             std::to_string(i % size_t(width)) + ", y " + std::to_string(i / size_t(width)) +
             ", and there are classes 0 to " + std::to_string(classes - 1) +
             ", and 255 for ignored pixels",
         mask.name, "Correct the mask, or name more classes");
  }
}

namespace {

std::string sample_place(size_t index, const std::string& name) {
  const std::string place = "sample " + std::to_string(index);
  return name.empty() || name == place ? place : place + ", " + name;
}

[[noreturn]] void fail_read(const std::string& text, size_t index, const std::string& name) {
  fail(ErrorKind::kData, text.empty() ? "the dataset cannot read it" : text,
       sample_place(index, name), "Fix it, or skip such samples with data.on_error=skip");
}

template <class Read>
auto naming_sample(size_t index, const std::string& name, const Read& read) {
  try {
    return read();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail_read(first_line(error.what()), index, name);
  } catch (...) {
    fail_read("the dataset threw something other than a std::exception", index, name);
  }
}

void require_label(const Dataset& dataset, size_t index, const std::string& name, int64_t label) {
  const auto classes = int64_t(dataset.classes().size());
  if (dataset.has_masks() || classes == 0 || (label >= 0 && label < classes)) return;
  fail(ErrorKind::kData,
       "its label is " + std::to_string(label) + ", and there are " + std::to_string(classes) +
           " classes, numbered from 0",
       sample_place(index, name), "Give each sample the position of its class in classes()");
}

void require_fields(const Dataset& dataset, size_t index, const Sample& sample) {
  const std::vector<TensorField>& fields = dataset.tensors();
  const bool is_tensors = sample.encoding == SampleEncoding::kTensors;
  if (is_tensors != fields.empty() &&
      (!is_tensors || sample.bytes.size() == bytes_of(std::span(fields))))
    return;
  fail(ErrorKind::kData,
       fields.empty()
           ? "the sample is of tensors, and the dataset describes none"
           : "the sample does not have the " + std::to_string(bytes_of(std::span(fields))) +
                 " bytes of tensors that the dataset describes",
       sample_place(index, sample.name),
       "Return the values of all fields of tensors(), as SampleEncoding::kTensors");
}

}  // namespace

void read_sample(const Dataset& dataset, size_t index, Sample& out) {
  read_undamaged(dataset, index, 1, [&] { read_sample_once(dataset, index, out); });
}

void read_sample_once(const Dataset& dataset, size_t index, Sample& out, ImageRows rows) {
  out.name.clear();
  naming_sample(index, out.name, [&] {
    rows.is_all() ? dataset.read(index, out) : dataset.read_rows(index, rows, out);
  });
  if (out.name.empty()) out.name = sample_place(index, "");
  const int64_t label = std::exchange(out.label, -1);  // an invalid label must not be used
  require_label(dataset, index, out.name, label);
  require_fields(dataset, index, out);
  out.label = label;
}

const DecodedSample* decoded_sample(const Dataset& dataset, size_t index) {
  const DecodedSample* const found =
      naming_sample(index, "", [&] { return dataset.decoded(index); });
  if (found) require_label(dataset, index, found->name, found->label);
  return found;
}

}  // namespace saturate
