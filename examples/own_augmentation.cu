// Launches examples/own_augmentation.h's function on a GPU: one thread per value.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "own_augmentation.h"

namespace {

__global__ void vignette(VignetteBatch batch) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < batch.values()) batch.out[i] = vignette_value(batch, i);
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* on_gpu(const T* values, int64_t count) {
  T* there;
  check(cudaMalloc(&there, size_t(count) * sizeof(T)));
  if (values) check(cudaMemcpy(there, values, size_t(count) * sizeof(T), cudaMemcpyHostToDevice));
  return there;
}

}  // namespace

bool vignette_cuda(const VignetteBatch& batch) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return false;
  VignetteBatch there = batch;
  there.images = on_gpu(batch.images, batch.values());
  there.vignettes = on_gpu(batch.vignettes, batch.count);
  there.out = on_gpu<float>(nullptr, batch.values());
  const int threads = 256;
  vignette<<<unsigned((batch.values() + threads - 1) / threads), threads>>>(there);
  check(cudaGetLastError());
  check(cudaMemcpy(batch.out, there.out, size_t(batch.values()) * sizeof(float),
                   cudaMemcpyDeviceToHost));
  check(cudaFree(const_cast<uint8_t*>(there.images)));
  check(cudaFree(const_cast<Vignette*>(there.vignettes)));
  check(cudaFree(there.out));
  return true;
}
