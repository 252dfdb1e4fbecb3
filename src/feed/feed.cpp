#include "saturate/feed.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>

namespace saturate {

BufferAllocator batch_allocator(const at::Device& device) {
  if (device.is_cpu()) return {};
  return [](size_t bytes) {
    auto pinned = at::empty({int64_t(bytes)}, at::TensorOptions(at::kByte).pinned_memory(true));
    auto* data = static_cast<std::byte*>(pinned.data_ptr());
    return std::shared_ptr<std::byte>(data, [pinned](std::byte*) mutable { pinned.reset(); });
  };
}

Feeder::Feeder(Loader& loader, const at::Device& device, bool channels_last, Ledger& ledger)
    : loader_(loader), device_(device), channels_last_(channels_last), ledger_(ledger) {}

bool Feeder::next(DeviceBatch& out) {
  if (held_) {
    out = *held_;
    return true;
  }
  out = {};  // lets the loader have the last batch's memory while we wait for the next
  Batch batch;
  {
    Ledger::Scope wait(ledger_, Phase::kWait);
    if (!loader_.next(batch)) return false;
  }
  Ledger::Scope copy(ledger_, Phase::kCopy);
  const int64_t n = int64_t(batch.count()), side = batch.size;
  const int64_t area = side * side;
  // Where the loader fills NHWC, these strides let torch see it as channels_last NCHW.
  const std::array<int64_t, 4> strides =
      batch.planar ? std::array{3 * area, area, side, int64_t{1}}
                   : std::array{3 * area, int64_t{1}, side * 3, int64_t{3}};
  at::Tensor images = at::from_blob(
      batch.pixels.get(), {n, 3, side, side}, strides,
      [owner = batch.pixels](void*) mutable { owner.reset(); }, at::TensorOptions(at::kFloat));
  out.names = std::move(batch.names);
  out.labels = at::empty({n}, at::TensorOptions(at::kLong));
  std::copy(batch.labels.begin(), batch.labels.end(), out.labels.mutable_data_ptr<int64_t>());
  // A blocking copy: the pinned buffer goes back to the loader's threads right after.
  images = images.to(device_);
  out.labels = out.labels.to(device_);
  out.images = channels_last_ ? images : images.contiguous();
  mix_batch(batch.mix, out);
  return true;
}

}  // namespace saturate
