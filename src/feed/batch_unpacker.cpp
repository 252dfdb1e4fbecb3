#include "feed/batch_unpacker.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "feed/batch_stages.h"
#include "feed/finish_batch.h"
#include "image/packed_jpeg.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

std::vector<uint32_t> indices_of(const Batch& batch) {
  std::vector<uint32_t> indices;
  for (const BatchSample& sample : batch.samples) indices.push_back(sample.index);
  return indices;
}

// `failed` is on the host. Without a loader samples have no names.
void require_decoded(const std::vector<uint32_t>& samples, const at::Tensor& failed,
                     const Loader* loader) {
  const auto* const flags = failed.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < samples.size(); ++i)
    if (flags[i] != 0)
      fail(ErrorKind::kData, "the JPEG, or its entry in data.index, is damaged",
           loader ? loader->reject_sample(samples[i]) : "sample " + std::to_string(samples[i]),
           "Run again, which decodes it on the CPU if the entry was wrong, or set "
           "data.decode_device=cpu, which tells the cause; `saturate data verify` lists all broken "
           "files");
}

}  // namespace

UnpackCheck::UnpackCheck(std::vector<uint32_t> samples, const at::Tensor& failed)
    : samples_(std::move(samples)),
      failed_(host_bytes(failed.numel())),
      copied_(failed.device().type()) {
  failed_.copy_(failed, /*non_blocking=*/true);
  copied_.record(c10::impl::VirtualGuardImpl(failed.device().type()).getStream(failed.device()));
}

bool UnpackCheck::passes(bool wait, const Loader& loader) const {
  if (!copied_.query()) {
    if (!wait) return false;
    copied_.synchronize();
  }
  require_decoded(samples_, failed_, &loader);
  return true;
}

int64_t bytes_in_use(const Batch& batch) {
  const size_t pixels = pixel_bytes(batch.size);
  size_t end = 0;
  for (const BatchSample& sample : batch.samples)
    end = std::max(end, sample.stored.at * PackedPlace::kUnit +
                            (sample.is_packed() ? sample.stored.bytes : pixels));
  return int64_t(end);
}

at::Tensor unpack_batch(const Batch& batch, const at::Tensor& memory, const at::Tensor& places,
                        const PixelFormat& format, bool planar,
                        std::shared_ptr<UnpackCheck>& check) {
  const auto count = int64_t(batch.count());
  const at::Device device = memory.device();
  const int64_t scratch_bytes =
      device.is_cpu() ? 0 : unpack_teams(count) * int64_t(unpack_scratch_bytes(batch.size));
  const int64_t height = batch.size.height, width = batch.size.width;
  using Shape = std::array<int64_t, 4>;
  const Shape shape = planar ? Shape{count, 3, height, width} : Shape{count, height, width, 3};
  at::Tensor pixels = at::empty(shape, memory.options().dtype(scalar_type(format.type)));
  const at::Tensor failed = at::empty({count}, memory.options());
  const at::Tensor scratch = at::empty({scratch_bytes}, memory.options());
  unpack_jpegs({.memory = static_cast<const std::byte*>(memory.const_data_ptr()),
                .places = static_cast<const PackedPlace*>(places.const_data_ptr()),
                .count = count,
                .size = batch.size,
                .scratch = scratch.mutable_data_ptr<uint8_t>(),
                .out = static_cast<uint8_t*>(pixels.mutable_data_ptr()),
                .failed = failed.mutable_data_ptr<uint8_t>(),
                .format = format,
                .planar = planar},
               device);
  if (device.is_cpu())
    require_decoded(indices_of(batch), failed, nullptr);
  else
    check = std::make_shared<UnpackCheck>(indices_of(batch), failed);
  return pixels;
}

}  // namespace saturate
