#include "feed/batch_stages.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace saturate {
namespace {

at::ScalarType scalar_type(PixelType type) {
  if (type == PixelType::kFloat16) return at::kHalf;
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
    part.out = static_cast<std::byte*>(batch.out) + begin * values * int64_t(bytes_of(batch.type));
    if (part.rows != nullptr) part.rows += begin * values;
    part.effects += begin;
    if (part.places != nullptr) part.places += begin;
    part.count = end - begin;
    finish_batch_cpu(part);
  });
}

}  // namespace

BatchStages::BatchStages(const at::Device& device, bool channels_last,
                         const AugmentOptions& augment, HeldImages held)
    : device_(device),
      channels_last_(channels_last),
      normalize_(make_normalize(augment)),
      pad_mode_(augment.pad_mode),
      output_(augment.output),
      blurs_(augment.blur > 0),
      held_(std::move(held)) {}

at::Tensor BatchStages::moved(const Batch& batch, bool async) const {
  const int64_t side = batch.size, area = side * side;
  // For the loader's NHWC memory, these strides make it a channels_last NCHW tensor.
  const std::array<int64_t, 4> strides =
      batch.planar ? std::array{3 * area, area, side, int64_t{1}}
                   : std::array{3 * area, int64_t{1}, side * 3, int64_t{3}};
  // Without `async` a blocking copy: the pinned buffer returns to the loader's threads right after.
  return at::from_blob(
             batch.pixels.get(), {int64_t(batch.count()), 3, side, side}, strides,
             [owner = batch.pixels](void*) mutable { owner.reset(); },
             at::TensorOptions(scalar_type(batch.type)))
      .to(device_, /*non_blocking=*/async);
}

// Copied on the CPU too, for tests: lists and places are freed with the batch.
at::Tensor BatchStages::to_device(const void* bytes, int64_t size, bool async) const {
  if (!async)
    return at::from_blob(const_cast<void*>(bytes), {size}, at::TensorOptions(at::kByte))
        .to(device_, /*non_blocking=*/false, /*copy=*/true);
  // Through pinned memory, which torch keeps until an asynchronous copy is done.
  const auto options = at::TensorOptions(at::kByte).pinned_memory(device_.is_cuda());
  const at::Tensor host = at::empty({size}, options);
  std::memcpy(host.mutable_data_ptr(), bytes, size_t(size));
  return host.to(device_, /*non_blocking=*/true);
}

// [N] int64, or masks unchanged, [N, S, S] uint8.
at::Tensor BatchStages::labels(const Batch& batch, bool async) const {
  const auto count = int64_t(batch.count());
  if (batch.masks)
    return to_device(batch.masks.get(), count * batch.size * batch.size, async)
        .view({count, batch.size, batch.size});
  return to_device(batch.labels.data(), count * int64_t(sizeof(int64_t)), async).view(at::kLong);
}

void BatchStages::copy(BatchWork& work, bool async) const {
  const Batch& batch = work.batch;
  const int64_t count = int64_t(batch.count()), side = batch.size;
  work.out.labels = labels(batch, async);
  if (!work.is_unfinished()) {
    work.pixels = moved(batch, async);
    return;
  }
  const std::vector<EffectList> none(batch.effects.empty() ? batch.count() : 0);
  const auto* lists = batch.effects.empty() ? none.data() : batch.effects.data();
  work.effects = to_device(lists, count * int64_t(sizeof(EffectList)), async);
  if (held_.any())
    work.places = to_device(batch.places.data(), count * int64_t(sizeof(HeldPlace)), async);
  else
    work.pixels =
        at::from_blob(batch.pixels.get(), {count * side * side * 3}, at::TensorOptions(at::kByte))
            .to(device_, /*non_blocking=*/async, /*copy=*/true);
}

void BatchStages::set_held(const UnfinishedBatch& batch, FinishBatch& task) const {
  task.places = reinterpret_cast<const HeldPlace*>(batch.places.const_data_ptr());
  task.pad_mode = pad_mode_;
  if (held_.images.defined()) {
    task.held = held_.images.const_data_ptr<uint8_t>();
    return;
  }
  task.photos = reinterpret_cast<const HeldPhoto*>(held_.photos.const_data_ptr());
  task.filters = reinterpret_cast<const HeldFilter*>(held_.filters.const_data_ptr());
  task.filter_values = held_.filter_values.const_data_ptr<int16_t>();
}

at::Tensor BatchStages::finished(const UnfinishedBatch& batch, int64_t count) const {
  const int64_t side = batch.side;
  const auto bytes = at::TensorOptions(at::kByte).device(device_);
  const at::Tensor pixels =
      held_.any() ? at::empty({count * side * side * 3}, bytes) : batch.pixels;
  const at::Tensor spare = at::empty_like(pixels);
  const at::Tensor out = at::empty({count, side, side, 3}, bytes.dtype(scalar_type(output_)));
  const bool needs_rows = blurs_ && output_ != PixelType::kFloat32;
  const at::Tensor rows =
      needs_rows ? at::empty(out.sizes(), bytes.dtype(at::kFloat)) : at::Tensor();
  FinishBatch task{pixels.mutable_data_ptr<uint8_t>(),
                   reinterpret_cast<const EffectList*>(batch.effects.const_data_ptr()),
                   spare.mutable_data_ptr<uint8_t>(),
                   count,
                   batch.side,
                   normalize_,
                   out.mutable_data_ptr()};
  task.type = output_;
  if (needs_rows) task.rows = rows.mutable_data_ptr<float>();
  if (held_.any()) set_held(batch, task);
  finish_batch(task, device_);
  return out.permute({0, 3, 1, 2});
}

void BatchStages::leave(BatchWork& work) const {
  DeviceBatch& out = work.out;
  out.names = std::move(work.batch.names);
  out.whole = int64_t(work.batch.whole);
  out.place = int64_t(work.batch.place);
  out.unfinished =
      UnfinishedBatch{work.pixels,     work.effects,         work.places,
                      work.batch.size, work.is_unfinished(), work.batch.masks != nullptr};
}

void BatchStages::complete(DeviceBatch& batch) const {
  const UnfinishedBatch from = std::move(*batch.unfinished);
  batch.unfinished.reset();
  const at::Tensor images = from.is_bytes ? finished(from, batch.count()) : from.pixels;
  batch.images = channels_last_ ? images : images.contiguous();
  if (!from.has_masks) return;
  const at::Tensor ignored = batch.labels.eq(int64_t{kIgnoredClass});
  batch.labels = batch.labels.to(at::kLong).masked_fill_(ignored, kIgnoredLabel);
}

void BatchStages::finish(BatchWork& work) const {
  leave(work);
  complete(work.out);
  mix_batch(work.batch.mix, work.out);
}

}  // namespace saturate
