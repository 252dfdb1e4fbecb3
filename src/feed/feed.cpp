#include "saturate/feed.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

bool has_finish_kernel() {
#ifdef SATURATE_HAS_CUDA
  return true;
#else
  return false;
#endif
}

namespace {

at::ScalarType scalar_type(PixelType type) {
  return type == PixelType::kBfloat16 ? at::kBFloat16 : at::kFloat;
}

// On the device that holds the batch.
void finish_batch(const FinishBatch& batch, [[maybe_unused]] const at::Device& device) {
#ifdef SATURATE_HAS_CUDA
  if (device.is_cuda()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    return finish_batch_cuda(batch, guard.getStream(device).native_handle());
  }
#endif
  at::parallel_for(0, batch.count, 1, [&](int64_t begin, int64_t end) {
    const int64_t values = int64_t{batch.size} * batch.size * 3;
    FinishBatch part = batch;
    part.images += begin * values;
    part.spare += begin * values;
    part.out += begin * values;
    part.effects += begin;
    if (part.places != nullptr) part.places += begin;
    part.count = end - begin;
    finish_batch_cpu(part);
  });
}

}  // namespace

Feeder::Feeder(Loader& loader, const at::Device& device, bool channels_last, Ledger& ledger,
               const AugmentOptions& augment, at::Tensor resident)
    : loader_(loader),
      device_(device),
      channels_last_(channels_last),
      normalize_(make_normalize(augment)),
      pad_mode_(augment.pad_mode),
      output_(scalar_type(augment.output)),
      resident_(std::move(resident)),
      ledger_(ledger) {}

at::Tensor Feeder::moved(const Batch& batch) const {
  Ledger::Scope copy(ledger_, Phase::kCopy);
  const int64_t side = batch.size, area = side * side;
  // Where the loader fills NHWC, these strides let torch see it as channels_last NCHW.
  const std::array<int64_t, 4> strides =
      batch.planar ? std::array{3 * area, area, side, int64_t{1}}
                   : std::array{3 * area, int64_t{1}, side * 3, int64_t{3}};
  // A blocking copy: the pinned buffer goes back to the loader's threads right after.
  return at::from_blob(
             batch.pixels.get(), {int64_t(batch.count()), 3, side, side}, strides,
             [owner = batch.pixels](void*) mutable { owner.reset(); },
             at::TensorOptions(scalar_type(batch.type)))
      .to(device_);
}

// Copied on the CPU too, which is for tests: lists and places end with the batch.
at::Tensor Feeder::to_device(const void* bytes, int64_t size) const {
  return at::from_blob(const_cast<void*>(bytes), {size}, at::TensorOptions(at::kByte))
      .to(device_, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor Feeder::finished(const Batch& batch) const {
  const int64_t count = int64_t(batch.count()), side = batch.size;
  const std::vector<EffectList> none(batch.effects.empty() ? batch.count() : 0);
  const auto* lists = batch.effects.empty() ? none.data() : batch.effects.data();
  at::Tensor pixels, effects, places;
  {
    Ledger::Scope copy(ledger_, Phase::kCopy);
    effects = to_device(lists, count * int64_t(sizeof(EffectList)));
    if (resident_.defined())
      places = to_device(batch.places.data(), count * int64_t(sizeof(HeldPlace)));
    else
      pixels = to_device(batch.pixels.get(), count * side * side * 3);
  }
  Ledger::Scope augment(ledger_, Phase::kAugment);
  const auto bytes = at::TensorOptions(at::kByte).device(device_);
  if (resident_.defined()) pixels = at::empty({count * side * side * 3}, bytes);
  at::Tensor spare = at::empty_like(pixels);
  at::Tensor out = at::empty({count, side, side, 3}, bytes.dtype(at::kFloat));
  FinishBatch work{pixels.mutable_data_ptr<uint8_t>(),
                   reinterpret_cast<const EffectList*>(effects.const_data_ptr()),
                   spare.mutable_data_ptr<uint8_t>(),
                   count,
                   batch.size,
                   normalize_,
                   out.mutable_data_ptr<float>()};
  if (resident_.defined()) {
    work.held = resident_.const_data_ptr<uint8_t>();
    work.places = reinterpret_cast<const HeldPlace*>(places.const_data_ptr());
    work.pad_mode = pad_mode_;
  }
  finish_batch(work, device_);
  return out.to(output_).permute({0, 3, 1, 2});
}

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
  const at::Tensor images = batch.type == PixelType::kUint8 ? finished(batch) : moved(batch);
  Ledger::Scope copy(ledger_, Phase::kCopy);
  out.names = std::move(batch.names);
  out.whole = int64_t(batch.whole);
  out.labels = at::empty({int64_t(batch.count())}, at::TensorOptions(at::kLong));
  std::copy(batch.labels.begin(), batch.labels.end(), out.labels.mutable_data_ptr<int64_t>());
  out.labels = out.labels.to(device_);
  out.images = channels_last_ ? images : images.contiguous();
  mix_batch(batch.mix, out);
  return true;
}

}  // namespace saturate
