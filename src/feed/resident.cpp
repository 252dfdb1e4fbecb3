#include "feed/resident.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/thread_pool.h"
#include "data/in_order.h"
#include "data/read_sample.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kBatch = 256;                     // images decoded at once,
constexpr int64_t kBatchBytes = int64_t{1} << 28;  // of whole ones, about as many as fill this

bool holds_whole(const LoaderOptions& options, const AugmentOptions& augment) {
  return options.train && augment.crop == CropKind::kRandomResized;
}

[[noreturn]] void fail_too_large(int64_t bytes, const std::string& found, const std::string& where,
                                 const char* smaller) {
  fail(ErrorKind::kUsage,
       fmt::format("data.cache=device needs {:.1f} GB for the images{}", double(bytes) * 1e-9,
                   found),
       where, fmt::format("Set data.cache=ram, or {}", smaller));
}

constexpr const char* kSmaller = "a smaller augment.size";

// The tensor that make() puts on the device; `done`: how many images `bytes` covers, for messages.
template <class Make>
at::Tensor within_memory(int64_t bytes, const std::string& done, const std::string& where,
                         const Make& make) {
  try {
    return make();
  } catch (const c10::OutOfMemoryError&) {
    fail_too_large(bytes, done + ", held whole: more than the device has left", where,
                   "another augment.crop, whose images take augment.size alone");
  }
}

template <class T>
at::Tensor on_device(const std::vector<T>& values, at::ScalarType type, const at::Device& device) {
  const auto count = int64_t(values.size() * sizeof(T) / at::elementSize(type));
  return at::from_blob(const_cast<T*>(values.data()), {count}, at::TensorOptions(type))
      .to(device, /*non_blocking=*/false, /*copy=*/true);
}

// Concatenates the samples' pixels.
at::Tensor joined(const std::vector<DecodedSample>& samples, const at::Device& device) {
  size_t count = 0;
  for (const DecodedSample& sample : samples) count += sample.image.pixels.size();
  if (device.is_cpu() && count > available_memory())
    TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory for ", count, " bytes");
  std::vector<uint8_t> bytes;
  bytes.reserve(count);
  for (const DecodedSample& sample : samples)
    bytes.insert(bytes.end(), sample.image.pixels.begin(), sample.image.pixels.end());
  return on_device(bytes, at::kByte, device);
}

DecodedSample decode_whole(const Dataset& source, size_t index) {
  if (const DecodedSample* kept = decoded_sample(source, index)) return *kept;
  DecodedSample made;
  Sample sample;
  read_sample(source, index, sample);
  Decoder decoder;
  decode_sample(decoder, sample, made.image);
  made.label = sample.label;
  made.name = std::move(sample.name);
  return made;
}

// Samples [first, end), without pixels if on_error skips one.
std::vector<DecodedSample> decode_range(const Dataset& source, size_t first, size_t end,
                                        InOrder& ahead, const LoaderOptions& options) {
  std::vector<DecodedSample> made(end - first);
  parallel_for(made.size(), options.threads, [&](size_t i) {
    try {
      ahead.before(first + i);
      made[i] = decode_whole(source, first + i);
    } catch (const Error& error) {
      if (options.on_error == OnError::kFail || error.kind() != ErrorKind::kData) throw;
    }
  });
  return made;
}

// Options for reading every sample once: in order, as in evaluation, as bytes.
LoaderOptions filling_options(LoaderOptions options) {
  options.batch = kBatch;
  options.shuffle.mode = ShuffleMode::kNone;
  options.drop_last = options.train = false;
  options.output = BatchOutput::kInterleaved;
  options.type = PixelType::kUint8;
  options.names = true;
  return options;
}

}  // namespace

at::Tensor allocate_images(int64_t count, const ImageSize& size, const at::Device& device,
                           const std::string& where) {
  const int64_t bytes = count * size.height * size.width * 3;
  if (device.is_cpu() && uint64_t(bytes) > available_memory())
    fail_too_large(bytes,
                   fmt::format(", and {:.1f} GB are free", double(available_memory()) * 1e-9),
                   where, kSmaller);
  try {
    return at::empty({count, size.height, size.width, 3},
                     at::TensorOptions(at::kByte).device(device));
  } catch (const c10::OutOfMemoryError&) {
    fail_too_large(bytes, ", more than the device has left", where, kSmaller);
  }
}

ResidentImages::ResidentImages(const Dataset& source, const std::string& where,
                               LoaderOptions options, const AugmentOptions& augment,
                               const at::Device& device, const ProgressCallback& progress)
    : samples_(source.size()) {
  if (holds_whole(options, augment)) {
    fill_whole(source, options, augment, device, where, progress);
    return;
  }
  held_.images = allocate_images(int64_t(source.size()), augment.size, device, where);
  Loader loader(source, filling_options(std::move(options)), augment);
  fill(loader, progress);
}

void ResidentImages::fill(Loader& loader, const ProgressCallback& progress) {
  loader.start_epoch(0);
  for (Batch batch; loader.next(batch);) {
    // Runs of rows that are consecutive in both batch and dataset are copied at once: the whole
    // batch, unless samples were skipped.
    const at::Tensor rows =
        at::from_blob(batch.pixels.get(),
                      {int64_t(batch.count()), batch.size.height, batch.size.width, 3}, at::kByte);
    for (size_t first = 0, end = 0; first < batch.count(); first = end) {
      const uint32_t place = batch.samples[first].index;
      while (end < batch.count() && batch.samples[end].index - place == end - first) ++end;
      const auto count = int64_t(end - first);
      held_.images.narrow(0, place, count).copy_(rows.narrow(0, int64_t(first), count));
    }
    for (BatchSample& sample : batch.samples)
      samples_[sample.index] = {batch.size.width, batch.size.height, sample.label,
                                std::move(sample.name)};
    if (progress) progress(size_t(batch.samples.back().index) + 1, samples_.size());
  }
}

void ResidentImages::fill_whole(const Dataset& source, const LoaderOptions& options,
                                const AugmentOptions& augment, const at::Device& device,
                                const std::string& where, const ProgressCallback& progress) {
  const size_t size = samples_.size();
  std::vector<HeldPhoto> photos(size);
  InOrder ahead(source);
  int64_t bytes = 0;
  int longest = 1;
  for (size_t first = 0, end = 0; first < size; first = end) {
    // As many as those before let expect to fit.
    const int64_t mean = first > 0 ? bytes / int64_t(first) : kBatchBytes / 16;
    const int64_t fitting = kBatchBytes / std::max<int64_t>(1, mean);
    end = std::min(first + size_t(std::clamp<int64_t>(fitting, 1, kBatch)), size);
    std::vector<DecodedSample> decoded = decode_range(source, first, end, ahead, options);
    for (const DecodedSample& sample : decoded) bytes += int64_t(sample.image.pixels.size());
    held_.pixels.push_back(within_memory(bytes, fmt::format(" {} of {}", end, size), where,
                                         [&] { return joined(decoded, device); }));
    const uint8_t* pixels = held_.pixels.back().const_data_ptr<uint8_t>();
    for (size_t i = first; i < end; ++i) {
      DecodedSample& sample = decoded[i - first];
      const Image& image = sample.image;
      if (image.pixels.empty()) continue;  // skipped
      photos[i] = {pixels, image.width, image.height};
      pixels += image.pixels.size();
      if (std::max(image.width, image.height) > kLongestHeld)
        fail(ErrorKind::kUsage,
             fmt::format("has more than {} pixels a side, too many to be held whole", kLongestHeld),
             sample.name, "Set data.cache=ram");
      longest = std::max({longest, image.width, image.height});
      samples_[i] = {image.width, image.height, sample.label, std::move(sample.name)};
    }
    if (progress) progress(end, size);
  }
  const ResizeFilters filters = resize_filters(longest, augment.size);
  bytes += int64_t(filters.values.size() * sizeof(int16_t));
  within_memory(bytes, "", where, [&] {
    held_.filters = on_device(filters.by_length, at::kByte, device);
    held_.filter_values = on_device(filters.values, at::kShort, device);
    return held_.photos = on_device(photos, at::kByte, device);
  });
}

}  // namespace saturate
