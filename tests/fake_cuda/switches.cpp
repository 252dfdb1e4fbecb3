// Preloaded with the fake, after torch: changes to torch for devices whose kernels do nothing.
// Convolutions use torch's own code, since cuDNN has no device. Checks of weights (isfinite, isnan,
// all, any) run on the CPU, which shares the device's memory here; and small blocks of memory are
// zeroed at their allocation, so that a loss that no kernel computed is a number.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/all.h>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"

namespace {

constexpr size_t kSmallBytes = size_t{1} << 20;  // torch's own measure of it

struct WithoutCudnn {
  WithoutCudnn() {
    at::globalContext().setUserEnabledCuDNN(false);
    at::globalContext().setSDPUseCuDNN(false);  // attention has a separate switch
  }
} without_cudnn;

void zero_new_memory() {
  using c10::CachingDeviceAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (entry.action_ == TraceEntry::ALLOC && entry.size_ <= kSmallBytes)
      std::memset(reinterpret_cast<void*>(entry.addr_), 0, entry.size_);
  });
}

// Device memory as a CPU tensor that does not own it.
at::Tensor here(const at::Tensor& there) {
  return at::from_blob(there.data_ptr(), there.sizes(), there.strides(),
                       there.options().device(at::kCPU));
}

void launch(const at::Tensor& on, std::function<void()> kernel) {
  const auto stream = c10::cuda::getCurrentCUDAStream(on.get_device());
  saturate::fake_cuda::control()->launch(stream.stream(), std::move(kernel));
}

// Every run makes such a check before its first step; there is no allocator before CUDA is
// initialised.
at::Tensor answered(const at::Tensor& given, at::IntArrayRef sizes,
                    at::Tensor (*answer)(const at::Tensor&)) {
  static std::once_flag once;
  std::call_once(once, zero_new_memory);
  const at::Tensor made = at::empty(sizes, given.options().dtype(at::kBool));
  launch(made, [from = here(given), to = here(made), answer] { to.copy_(answer(from)); });
  return made;
}

template <at::Tensor (*Operator)(const at::Tensor&)>
at::Tensor of_each(const at::Tensor& given) {
  return answered(given, given.sizes(), Operator);
}
template <at::Tensor (*Operator)(const at::Tensor&)>
at::Tensor of_all(const at::Tensor& given) {
  return answered(given, {}, Operator);
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  if (tensor.numel() == 0) return tensor;
  launch(tensor, [to = here(tensor), value] { to.fill_(value); });
  return tensor;
}

// Kernels that do nothing computed the matrix to decompose: the identity replaces it.
std::tuple<at::Tensor, at::Tensor> eigh(const at::Tensor& given, std::string_view, bool) {
  const at::Tensor vectors = at::zeros(given.sizes(), given.options());
  vectors.diagonal(0, -2, -1).fill_(1);
  return {at::ones(given.sizes().slice(0, size_t(given.dim()) - 1), given.options()), vectors};
}

class Quiet : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Not TORCH_LIBRARY_IMPL, which would warn about overriding.
struct OnHost {
  OnHost() {
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    library.impl("isfinite", of_each<at::isfinite>);
    library.impl("isnan", of_each<at::isnan>);
    library.impl("all", of_all<at::all>);
    library.impl("any", of_all<at::any>);
    library.impl("fill_.Scalar", fill);
    library.impl("_linalg_eigh", eigh);
  }
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
} on_host_kernels;

}  // namespace
