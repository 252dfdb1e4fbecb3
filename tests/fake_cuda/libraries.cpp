// cuBLAS, as far as a training step calls it: products are launches that do nothing. cuDNN is
// switched off (switches.cpp).
#include <cstdint>
#include <cstdlib>
#include <map>

#include "tests/fake_cuda/streams.h"

namespace saturate::fake_cuda {
namespace {

// The state of each cuBLAS handle.
std::map<void*, cudaStream_t>& streams() {
  static auto& made = *new std::map<void*, cudaStream_t>;
  return made;
}

constexpr int kExecutionFailed = 13;  // of cublasStatus_t

int multiply(cudaStream_t stream) {
  if (const int planned = enter_library("cublasGemm")) return planned;
  return enqueue(stream, Count::kLaunches) == cudaSuccess ? 0 : kExecutionFailed;
}

int multiply_on(void* handle) {
  cudaStream_t stream = nullptr;
  {
    const std::lock_guard lock(guard());
    stream = streams()[handle];
  }
  return multiply(stream);
}

int describe(void** made) {
  *made = std::calloc(1, 64);
  return 0;
}

int forget(void* described) {
  std::free(described);
  return 0;
}

}  // namespace
}  // namespace saturate::fake_cuda

using namespace saturate::fake_cuda;

// Handles come first; the other arguments do not matter.
#define SATURATE_PRODUCT(name)  \
  int name(void* handle) {      \
    return multiply_on(handle); \
  }
#define SATURATE_SETTING(name) \
  int name() {                 \
    return 0;                  \
  }
#define SATURATE_DESCRIBED(kind)                 \
  int cublasLt##kind##Create(void** made) {      \
    return describe(made);                       \
  }                                              \
  int cublasLt##kind##Destroy(void* described) { \
    return forget(described);                    \
  }                                              \
  SATURATE_SETTING(cublasLt##kind##SetAttribute)

extern "C" {

int cublasCreate_v2(void** handle) {
  if (const int planned = enter_library(__func__)) return planned;
  return describe(handle);
}
int cublasDestroy_v2(void* handle) {
  return forget(handle);
}
int cublasSetStream_v2(void* handle, cudaStream_t stream) {
  const std::lock_guard lock(guard());
  streams()[handle] = stream;
  return 0;
}
int cublasGetMathMode(void*, int* mode) {
  return *mode = 0;
}
int cublasGetPointerMode_v2(void*, int* mode) {
  return *mode = 0;
}
SATURATE_SETTING(cublasSetMathMode)
SATURATE_SETTING(cublasSetPointerMode_v2)
SATURATE_SETTING(cublasSetWorkspace_v2)
SATURATE_PRODUCT(cublasSgemm_v2)
SATURATE_PRODUCT(cublasDgemm_v2)
SATURATE_PRODUCT(cublasSgemmEx)
SATURATE_PRODUCT(cublasGemmEx)
SATURATE_PRODUCT(cublasSgemmStridedBatched)
SATURATE_PRODUCT(cublasDgemmStridedBatched)
SATURATE_PRODUCT(cublasGemmStridedBatchedEx)
SATURATE_PRODUCT(cublasSgemv_v2)
SATURATE_PRODUCT(cublasDgemv_v2)

size_t cublasLtGetVersion() {
  return 130000;
}
SATURATE_DESCRIBED(MatmulDesc)
SATURATE_DESCRIBED(MatrixLayout)
SATURATE_DESCRIBED(MatmulPreference)
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int,
                                   void* found, int* count) {
  *static_cast<uint64_t*>(found) = 0;
  return 1 - (*count = 1);
}
int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                   const void*, void*, void*, void*, const void*, void*, size_t,
                   cudaStream_t stream) {
  return multiply(stream);
}
}
