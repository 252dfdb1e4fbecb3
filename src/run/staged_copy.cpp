#include "run/staged_copy.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "feed/device_stream.h"
#include "saturate/feed.h"
#include "trace/stream_clock.h"

namespace saturate {
namespace {

constexpr size_t kAlignment = 64;

// [O, I, H, W] in channels_last layout, [O, HW, I], to [O, I, HW]. Torch's copy_() takes ten times
// as long.
template <class T>
void transpose_channels(const at::Tensor& from, at::Tensor& to) {
  const int64_t inputs = from.size(1), area = from.size(2) * from.size(3);
  const T* const in = static_cast<const T*>(from.const_data_ptr());
  T* const out = static_cast<T*>(to.mutable_data_ptr());
  at::parallel_for(0, from.size(0), 1 + (1 << 15) / (inputs * area),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t o = begin; o < end; ++o) {
                       const T* const slice = in + o * inputs * area;
                       T* target = out + o * inputs * area;
                       for (int64_t i = 0; i < inputs; ++i)
                         for (int64_t k = 0; k < area; ++k) *target++ = slice[k * inputs + i];
                     }
                   });
}

void copy_as_stored(const at::Tensor& from, at::Tensor& to) {
  const bool transposed = from.is_cpu() && from.dim() == 4 && from.numel() > 0 &&
                          !from.is_contiguous() &&
                          from.is_contiguous(at::MemoryFormat::ChannelsLast);
  if (transposed && from.element_size() == 4)
    transpose_channels<uint32_t>(from, to);
  else if (transposed && from.element_size() == 2)
    transpose_channels<uint16_t>(from, to);
  else
    to.copy_(from);
}

bool is_like(const at::Tensor& target, const at::Tensor& source) {
  return target.defined() && target.sizes() == source.sizes() && target.dtype() == source.dtype();
}

}  // namespace

StagedCopy::StagedCopy(const at::Device& device, std::unique_ptr<Stream> stream,
                       BufferAllocator allocate)
    : device_(device), stream_(std::move(stream)), allocate_(std::move(allocate)) {}

at::Tensor StagedCopy::take(const at::Tensor& like) {
  const size_t bytes = (like.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
  const auto view = [&](std::byte* begin, std::shared_ptr<std::byte> owner) {
    return at::from_blob(
        begin, like.sizes(), [owner = std::move(owner)](void*) mutable { owner.reset(); },
        at::TensorOptions(like.scalar_type()));
  };
  if (bytes > kSlab) {
    auto own = allocate_(bytes);
    return view(own.get(), own);
  }
  if (!slab_ || used_ + bytes > kSlab) {
    slab_ = allocate_(kSlab);
    used_ = 0;
  }
  return view(slab_.get() + std::exchange(used_, used_ + bytes), slab_);
}

void StagedCopy::copy(const at::Tensor& source, at::Tensor& target) {
  if (!is_like(target, source)) target = take(source);
  stream_->submit([source, target]() mutable {
    const c10::NoGradGuard no_grad;
    target.copy_(source.contiguous(), /*non_blocking=*/true);
  });
}

std::shared_ptr<StagedCopy> make_staged_copy(const at::Device& device) {
  if (device.is_cpu()) return nullptr;
  return std::make_shared<StagedCopy>(device, make_current_stream(kStepStream, device, nullptr),
                                      batch_allocator(device));
}

void copy_tensors(const std::vector<NamedTensor>& from, std::vector<NamedTensor>& to,
                  StagedCopy* staged) {
  const c10::NoGradGuard no_grad;
  to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const at::Tensor source = from[i].tensor.detach();
    at::Tensor& target = to[i].tensor;
    to[i].name = from[i].name;
    if (staged && staged->takes(source)) {
      staged->copy(source, target);
      continue;
    }
    if (!is_like(target, source))
      target = at::empty(source.sizes(), source.options().device(at::kCPU));
    copy_as_stored(source, target);
  }
}

}  // namespace saturate
