#include "feed/batch_stages.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "data/batch_room.h"
#include "feed/batch_unpacker.h"
#include "feed/finish_batch.h"
#include "feed/tensor_batch.h"
#include "image/packed_jpeg.h"

namespace saturate {
namespace {

void warn_of_plain_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    print_warning(
        "the system has no more pinned memory: batches are copied from plain memory, which is "
        "slower. Lower data.prefetch or train.batch, or raise the limit (ulimit -l)");
  });
}

// rolled[i] = tensor[(i - offset) mod N], in the tensor's own memory format.
at::Tensor rolled(const at::Tensor& tensor, int64_t offset) {
  const int64_t kept = tensor.size(0) - offset;
  return at::cat({tensor.narrow(0, kept, offset), tensor.narrow(0, 0, kept)});
}

}  // namespace

at::Tensor host_bytes(int64_t bytes) {
  try {
    return at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  } catch (const c10::Error& error) {
    // This call may also report the failure of an earlier kernel, which is no lack of memory.
    const std::string_view text = error.what_without_backtrace();
    const auto names = [&](std::string_view reason) { return text.find(reason) != text.npos; };
    if (!names("out of memory") && !names("not supported") && !names("OS call failed")) throw;
    warn_of_plain_memory();
    return at::empty({bytes}, at::TensorOptions(at::kByte));
  }
}

at::ScalarType scalar_type(PixelType type) {
  if (type == PixelType::kUint8) return at::kByte;
  if (type == PixelType::kFloat16) return at::kHalf;
  return type == PixelType::kBfloat16 ? at::kBFloat16 : at::kFloat;
}

BatchStages::BatchStages(const at::Device& device, bool channels_last,
                         const AugmentOptions& augment, HeldImages held)
    : device_(device),
      channels_last_(channels_last),
      size_(augment.size),
      normalize_(make_normalize(augment)),
      pad_mode_(augment.pad_mode),
      output_(augment.output),
      blurs_(augment.blur > 0),
      held_(std::move(held)) {}

at::Tensor BatchStages::floats(const Batch& batch, bool async) const {
  const int64_t height = batch.size.height, width = batch.size.width, area = height * width;
  // For the loader's NHWC memory, these strides make it a channels_last NCHW tensor.
  const std::array<int64_t, 4> strides =
      batch.output == BatchOutput::kPlanar
          ? std::array{3 * area, area, width, int64_t{1}}
          : std::array{3 * area, int64_t{1}, width * 3, int64_t{3}};
  // Without `async` a blocking copy: the pinned buffer returns to the loader's threads right after.
  return at::from_blob(
             batch.pixels.get(), {int64_t(batch.count()), 3, height, width}, strides,
             [owner = batch.pixels](void*) mutable { owner.reset(); },
             at::TensorOptions(scalar_type(batch.type)))
      .to(device_, /*non_blocking=*/async);
}

at::Tensor BatchStages::raw_bytes(const std::shared_ptr<std::byte>& memory, at::IntArrayRef shape,
                                  bool async) const {
  return at::from_blob(memory.get(), shape, at::TensorOptions(at::kByte))
      .to(device_, /*non_blocking=*/async, /*copy=*/true);
}

// One part of each sample, then the next part, as bytes; an asynchronous copy is through pinned
// memory, which torch keeps until it is done.
template <class... Parts>
at::Tensor BatchStages::gathered(const Batch& batch, bool async,
                                 Parts BatchSample::*... parts) const {
  const auto bytes = int64_t(batch.count() * (sizeof(Parts) + ...));
  const at::Tensor host =
      async && device_.is_cuda() ? host_bytes(bytes) : at::empty({bytes}, at::kByte);
  auto* to = static_cast<std::byte*>(host.mutable_data_ptr());
  const auto put = [&](auto part) {
    for (const BatchSample& sample : batch.samples) {
      std::memcpy(to, &(sample.*part), sizeof(sample.*part));
      to += sizeof(sample.*part);
    }
  };
  (put(parts), ...);
  return host.to(device_, /*non_blocking=*/async);
}

// The places of packed samples come with the effects, without a separate copy, or alone if there
// are none. The memory for their bytes has the same size in almost all batches, so that torch uses
// it again.
void BatchStages::copy_packed(const Batch& batch, DeviceBatch& out, bool async) const {
  static_assert(sizeof(EffectList) % alignof(PackedPlace) == 0);
  const int64_t count = int64_t(batch.count()), effects = count * int64_t(sizeof(EffectList));
  const bool finishes = batch.decoding_finishes;
  at::Tensor places;
  if (finishes) {
    places = gathered(batch, async, &BatchSample::stored);
  } else {
    const at::Tensor both = gathered(batch, async, &BatchSample::effects, &BatchSample::stored);
    out.effects = both.narrow(0, 0, effects);
    places = both.narrow(0, effects, both.numel() - effects);
  }
  const int64_t used = bytes_in_use(batch);
  // Skipped samples may have left room to others.
  const int64_t room = std::max(used, count * int64_t(whole_units(pixel_bytes(batch.size))));
  const at::Tensor memory = at::empty({room}, at::TensorOptions(at::kByte).device(device_));
  memory.narrow(0, 0, used)
      .copy_(at::from_blob(batch.pixels.get(), {used}, at::TensorOptions(at::kByte)),
             /*non_blocking=*/async);
  const PixelFormat format = finishes ? PixelFormat{output_, normalize_} : PixelFormat{};
  out.pixels =
      unpack_batch(batch, memory, places, format, finishes && !channels_last_, out.unpacked);
  if (finishes && channels_last_) out.pixels = out.pixels.permute({0, 3, 1, 2});
}

void BatchStages::copy(Batch& batch, DeviceBatch& out, bool async) const {
  const int64_t count = int64_t(batch.count());
  const int64_t height = batch.size.height, width = batch.size.width;
  out.global_batch = int64_t(batch.global_batch);
  out.place = int64_t(batch.place);
  if (count > 0 && !batch.samples[0].name.empty())
    for (BatchSample& sample : batch.samples) out.names.push_back(std::move(sample.name));
  if (batch.columns) {
    take_columns(batch, device_, async, out);
    if (has_class_labels(batch))
      out.labels = gathered(batch, async, &BatchSample::label).view(at::kLong);
    return;
  }
  out.labels = batch.masks ? raw_bytes(batch.masks, {count, height, width}, async)
                           : gathered(batch, async, &BatchSample::label).view(at::kLong);
  if (batch.type != PixelType::kUint8) {
    out.pixels = floats(batch, async);
    return;
  }
  if (batch.packs && count > 0) return copy_packed(batch, out, async);
  out.effects = gathered(batch, async, &BatchSample::effects);
  if (held_.any())
    out.places = gathered(batch, async, &BatchSample::place);
  else
    out.pixels = raw_bytes(batch.pixels, {count, height, width, 3}, async);
}

void BatchStages::set_held(const DeviceBatch& batch, FinishArguments& task) const {
  task.places = reinterpret_cast<const HeldPlace*>(batch.places.const_data_ptr());
  task.pad_mode = pad_mode_;
  if (held_.images.defined()) {
    task.held = held_.images.const_data_ptr<uint8_t>();
    return;
  }
  task.photos = reinterpret_cast<const HeldPhoto*>(held_.photos.const_data_ptr());
  task.filters = reinterpret_cast<const HeldFilter*>(held_.filters.const_data_ptr());
  const int64_t filters = held_.filters.numel() / int64_t(sizeof(HeldFilter));
  task.down = size_.is_square() ? 0 : filters / 2;
  task.filter_values = held_.filter_values.const_data_ptr<int16_t>();
}

at::Tensor BatchStages::finished(const DeviceBatch& batch) const {
  const int64_t count = batch.count();
  const ImageSize size =
      held_.any() ? size_ : ImageSize(int(batch.pixels.size(1)), int(batch.pixels.size(2)));
  const std::array<int64_t, 4> shape = {count, size.height, size.width, 3};
  const auto bytes = at::TensorOptions(at::kByte).device(device_);
  const at::Tensor pixels = held_.any() ? at::empty(shape, bytes) : batch.pixels;
  const at::Tensor spare = at::empty_like(pixels);
  const at::Tensor out = at::empty(shape, bytes.dtype(scalar_type(output_)));
  const bool needs_rows = blurs_ && output_ != PixelType::kFloat32;
  const at::Tensor rows =
      needs_rows ? at::empty(out.sizes(), bytes.dtype(at::kFloat)) : at::Tensor();
  FinishArguments task{pixels.mutable_data_ptr<uint8_t>(),
                       reinterpret_cast<const EffectList*>(batch.effects.const_data_ptr()),
                       spare.mutable_data_ptr<uint8_t>(),
                       count,
                       size,
                       normalize_,
                       out.mutable_data_ptr()};
  task.type = output_;
  if (needs_rows) task.rows = rows.mutable_data_ptr<float>();
  if (held_.any()) set_held(batch, task);
  finish_batch(task, device_);
  return out.permute({0, 3, 1, 2});
}

void BatchStages::finish(DeviceBatch& batch) const {
  if (!batch.is_unfinished()) return;
  if (batch.columns) return finish_columns(batch);
  const at::Tensor images = batch.effects.defined() ? finished(batch) : batch.pixels;
  batch.images = channels_last_ ? images : images.contiguous();
  batch.pixels = batch.effects = batch.places = at::Tensor();
  if (batch.labels.scalar_type() != at::kByte) return;
  const at::Tensor ignored = batch.labels.eq(int64_t{kIgnoredClass});
  batch.labels = batch.labels.to(at::kLong).masked_fill_(ignored, kIgnoredLabel);
}

// Mixes the batch with a rotated copy of itself.
void mix_batch(const Mix& mix, DeviceBatch& batch) {
  if (mix.kind == MixKind::kNone) return;
  const auto offset = int64_t(mix.offset);
  if (mix.kind == MixKind::kMixUp) {
    batch.images.lerp_(rolled(batch.images, offset), 1 - mix.lambda);
  } else {
    at::Tensor box =
        batch.images.narrow(2, mix.box.y, mix.box.height).narrow(3, mix.box.x, mix.box.width);
    box.copy_(rolled(box, offset));
  }
  batch.mixed_labels = rolled(batch.labels, offset);
  batch.lambda = mix.lambda;
  if (mix.lambda >= 0.5) return;
  std::swap(batch.labels, batch.mixed_labels);
  batch.lambda = 1 - mix.lambda;
}

}  // namespace saturate
