#include "saturate/resident.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "data/read_sample.h"
#include "saturate/error.h"

namespace saturate {
namespace {

constexpr size_t kBatch = 256;

[[noreturn]] void fail_too_large(int64_t bytes, const std::string& found,
                                 const std::string& where) {
  fail(ErrorKind::kUsage,
       fmt::format("data.cache=device needs {:.1f} GB for the images{}", double(bytes) * 1e-9,
                   found),
       where, "Set data.cache=ram, or a smaller augment.size");
}

at::Tensor allocate(int64_t count, int64_t side, const at::Device& device,
                    const std::string& where) {
  const int64_t bytes = count * side * side * 3;
  if (device.is_cpu() && uint64_t(bytes) > available_memory())
    fail_too_large(
        bytes, fmt::format(", and {:.1f} GB are free", double(available_memory()) * 1e-9), where);
  try {
    return at::empty({count, side, side, 3}, at::TensorOptions(at::kByte).device(device));
  } catch (const c10::OutOfMemoryError&) {
    fail_too_large(bytes, ", more than the device has left", where);
  }
}

// How every sample is read once: in order, as in evaluation, as bytes.
LoaderOptions filling_options(LoaderOptions options) {
  options.batch = kBatch;
  options.shuffle.mode = ShuffleMode::kNone;
  options.drop_last = options.train = options.planar = options.places = false;
  options.type = PixelType::kUint8;
  options.finish = options.names = true;
  return options;
}

}  // namespace

ResidentDataset::ResidentDataset(const Dataset& source, const std::string& where,
                                 LoaderOptions options, const AugmentOptions& augment,
                                 const at::Device& device, const ProgressCallback& progress)
    : source_(source),
      images_(allocate(int64_t(source.size()), augment.size, device, where)),
      labels_(source.size(), kLeftOut),
      names_(source.size()) {
  Loader loader(source, filling_options(std::move(options)), augment);
  fill(loader, progress);
}

void ResidentDataset::fill(Loader& loader, const ProgressCallback& progress) {
  loader.start_epoch(0);
  for (Batch batch; loader.next(batch);) {
    // Rows that follow one another in the batch and in the dataset are copied at once: all of them,
    // but where samples are left out.
    const at::Tensor rows = at::from_blob(
        batch.pixels.get(), {int64_t(batch.count()), batch.size, batch.size, 3}, at::kByte);
    for (size_t first = 0, end = 0; first < batch.count(); first = end) {
      while (end < batch.count() && batch.indices[end] - batch.indices[first] == end - first) ++end;
      const auto count = int64_t(end - first);
      images_.narrow(0, batch.indices[first], count).copy_(rows.narrow(0, int64_t(first), count));
    }
    for (size_t i = 0; i < batch.count(); ++i) {
      labels_[batch.indices[i]] = batch.labels[i];
      names_[batch.indices[i]] = std::move(batch.names[i]);
    }
    if (progress) progress(size_t(batch.indices.back()) + 1, size());
  }
}

void ResidentDataset::read(size_t index, Sample& out) const {
  if (labels_[index] == kLeftOut) {
    read_sample(source_, index, out);
    Decoder decoder;
    Image image;
    decode_sample(decoder, out, image);
    fail(ErrorKind::kData, "it could not be read when the images were put on the device",
         out.name.empty() ? "sample " + std::to_string(index) : out.name, "Run it again");
  }
  out.bytes.clear();
  out.encoding = SampleEncoding::kRaw;
  out.width = int(images_.size(2));
  out.height = int(images_.size(1));
  out.channels = 3;
  out.label = labels_[index];
  out.name = names_[index];
}

}  // namespace saturate
