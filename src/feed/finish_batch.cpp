#include "feed/finish_batch.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

namespace saturate {
namespace {

#ifdef SATURATE_HAS_CUDA
void* current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}
#endif

}  // namespace

bool has_finish_kernel() {
#ifdef SATURATE_HAS_CUDA
  return true;
#else
  return false;
#endif
}

void unpack_jpegs(const UnpackArguments& batch, [[maybe_unused]] const c10::Device& device) {
#ifdef SATURATE_HAS_CUDA
  if (device.is_cuda()) {
    const c10::DeviceGuard guard(device);
    return unpack_jpegs_cuda(batch, current_stream(device));
  }
#endif
  at::parallel_for(0, batch.count, 1, [&](int64_t begin, int64_t end) {
    const auto bytes = int64_t(pixel_bytes(batch.size) * bytes_of(batch.format.type));
    std::vector<uint8_t> scratch(unpack_scratch_bytes(batch.size));
    UnpackArguments part = batch;
    part.places += begin;
    part.count = end - begin;
    part.scratch = scratch.data();
    part.out += begin * bytes;
    part.failed += begin;
    unpack_jpegs_cpu(part);
  });
}

void finish_batch(const FinishArguments& batch, [[maybe_unused]] const c10::Device& device) {
#ifdef SATURATE_HAS_CUDA
  if (device.is_cuda()) {
    const c10::DeviceGuard guard(device);
    return finish_batch_cuda(batch, current_stream(device));
  }
#endif
  at::parallel_for(0, batch.count, 1, [&](int64_t begin, int64_t end) {
    const int64_t values = int64_t{batch.size.area()} * 3;
    FinishArguments part = batch;
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

void transform_volumes(const VolumeArguments& batch, [[maybe_unused]] const c10::Device& device) {
#ifdef SATURATE_HAS_CUDA
  if (device.is_cuda()) {
    const c10::DeviceGuard guard(device);
    return transform_volumes_cuda(batch, current_stream(device));
  }
#endif
  const auto place = [&](int64_t values) { return values * int64_t(bytes_of(batch.form.type)); };
  at::parallel_for(0, batch.count, 1, [&](int64_t begin, int64_t end) {
    VolumeScratch scratch;
    for (int64_t i = begin; i < end; ++i)
      apply_volume(batch.form, batch.effects[i],
                   static_cast<const std::byte*>(batch.in) + place(i * batch.form.values_in()),
                   scratch,
                   static_cast<std::byte*>(batch.out) + place(i * batch.form.values_out()));
  });
}

}  // namespace saturate
