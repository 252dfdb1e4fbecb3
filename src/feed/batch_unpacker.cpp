#include "feed/batch_unpacker.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

// `failed` is on the host.
void require_decoded(const std::vector<uint32_t>& samples, const at::Tensor& failed) {
  const auto* const flags = failed.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < samples.size(); ++i)
    if (flags[i] != 0)
      fail(ErrorKind::kData, "its packed JPEG is damaged, and could not be decoded",
           "sample " + std::to_string(samples[i]),
           "Set data.decode_device=cpu, which names the file and the cause; `saturate data verify` "
           "lists all broken files");
}

}  // namespace

at::Tensor BatchUnpacker::unpack(const Batch& batch, const at::Tensor& slots,
                                 const at::Tensor& packed) {
  check(/*wait=*/false);
  const int64_t count = slots.size(0);
  const at::Device device = slots.device();
  const int64_t scratch_bytes =
      device.is_cpu() ? 0 : unpack_teams(count) * int64_t(unpack_scratch_bytes(batch.size));
  at::Tensor pixels = at::empty_like(slots);
  const at::Tensor failed = at::empty({count}, slots.options());
  const at::Tensor scratch = at::empty({scratch_bytes}, slots.options());
  unpack_jpegs({.slots = static_cast<const std::byte*>(slots.const_data_ptr()),
                .packed = packed.const_data_ptr<uint8_t>(),
                .count = count,
                .size = batch.size,
                .scratch = scratch.mutable_data_ptr<uint8_t>(),
                .out = pixels.mutable_data_ptr<uint8_t>(),
                .failed = failed.mutable_data_ptr<uint8_t>()},
               device);
  if (device.is_cpu()) {
    require_decoded(indices_of(batch), failed);
    return pixels;
  }
  Flags flags{indices_of(batch), host_bytes(count), c10::Event(device.type())};
  flags.failed.copy_(failed, /*non_blocking=*/true);
  flags.copied.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  waiting_.push_back(std::move(flags));
  return pixels;
}

void BatchUnpacker::check(bool wait) {
  while (!waiting_.empty()) {
    if (!waiting_.front().copied.query()) {
      if (!wait) return;
      waiting_.front().copied.synchronize();
    }
    const Flags flags = std::move(waiting_.front());
    waiting_.pop_front();
    require_decoded(flags.samples, flags.failed);
  }
}

}  // namespace saturate
