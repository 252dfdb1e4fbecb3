// Device memory and pinned memory, in pages that are unmapped once freed, and copies.
#include "tests/fake_cuda/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tests/fake_cuda/streams.h"

namespace saturate::fake_cuda {
namespace {

constexpr int kHost = -1;  // pinned

struct Block {
  size_t bytes;
  int device;
  bool own;  // created here, not by the program
};

std::map<uintptr_t, Block>& blocks() {
  static auto& made = *new std::map<uintptr_t, Block>;
  return made;
}

int64_t live_of(int device) {
  int64_t live = 0;
  for (const auto& [address, block] : blocks())
    if (block.device == device) live += int64_t(block.bytes);
  return live;
}

// Null if it is in none.
const Block* block_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  auto next = blocks().upper_bound(address);
  if (next == blocks().begin()) return nullptr;
  const auto& [begin, block] = *--next;
  return address < begin + block.bytes ? &block : nullptr;
}

bool is_device(const Block* block) {
  return block && block->device != kHost;
}

void* map_pages(size_t bytes) {
  void* const data = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

cudaError_t allocate(void** data, size_t bytes, int device) {
  const std::lock_guard lock(guard());
  *data = nullptr;
  if (device != kHost && live_of(device) + int64_t(bytes) > device_bytes())
    return failed(cudaErrorMemoryAllocation);
  *data = map_pages(bytes);
  if (!*data) return failed(cudaErrorMemoryAllocation);
  blocks()[reinterpret_cast<uintptr_t>(*data)] = {bytes, device, true};
  add(device == kHost ? Count::kPinnedAllocations : Count::kDeviceAllocations);
  if (device == kHost) return cudaSuccess;
  add(Count::kLiveBytes, int64_t(bytes));
  raise_peak();
  return cudaSuccess;
}

cudaError_t release(void* data) {
  if (!data) return cudaSuccess;
  const std::lock_guard lock(guard());
  const auto found = blocks().find(reinterpret_cast<uintptr_t>(data));
  if (found == blocks().end()) return failed(cudaErrorInvalidValue);
  const Block block = found->second;
  blocks().erase(found);
  if (block.device != kHost) add(Count::kLiveBytes, -int64_t(block.bytes));
  if (block.own) munmap(data, std::max<size_t>(block.bytes, 1));
  return cudaSuccess;
}

struct Ends {
  bool from_device, to_device, pinned;
  Count kind() const {
    if (from_device && to_device) return Count::kDeviceCopies;
    return pinned ? Count::kPinnedCopies : Count::kPageableCopies;
  }
};

Ends ends_of(const void* to, const void* from) {
  const std::lock_guard lock(guard());
  const Block *target = block_of(to), *source = block_of(from);
  const Block* const host = is_device(target) ? source : target;
  const Ends ends{is_device(source), is_device(target), host && !is_device(host)};
  if (ends.kind() == Count::kPageableCopies) {
    note_site("a copy of pageable memory");
    // The host has the data when the call returns.
    if (!ends.to_device) add(Count::kWaits);
  }
  return ends;
}

// Counts and reports a copy that is about to be enqueued.
Count begin_copy(const void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const Ends ends = ends_of(to, from);
  notify([&](Observer& observer) {
    const void* const key = key_of(stream);
    if (ends.from_device) observer.touches(key, from, /*writes=*/false);
    if (!ends.from_device && ends.pinned) observer.reads_pinned(key, from, bytes);
    if (ends.to_device) observer.touches(key, to, /*writes=*/true);
    if (ends.kind() == Count::kPageableCopies)
      ends.to_device ? observer.copies_pageable(key) : observer.host_drains(key);
  });
  return ends.kind();
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, begin_copy(to, from, bytes, stream),
                 [=] { std::memmove(to, from, bytes); });
}

cudaError_t set(void* data, int value, size_t bytes, cudaStream_t stream) {
  notify([&](Observer& observer) { observer.touches(key_of(stream), data, /*writes=*/true); });
  return enqueue(stream, Count::kFills, [=] { std::memset(data, value, bytes); });
}

}  // namespace

int64_t device_bytes() {
  return setting("SATURATE_FAKE_CUDA_MEMORY", int64_t{8} << 30);
}

}  // namespace saturate::fake_cuda

using namespace saturate::fake_cuda;

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  SATURATE_ENTER(Manner::kUnsafe);
  int device = 0;
  cudaGetDevice(&device);
  return allocate(data, bytes, device);
}
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t) {
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFree(void* data) {
  SATURATE_ENTER(Manner::kUnsafe);
  return release(data);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t) {
  return cudaFree(data);
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  SATURATE_ENTER(Manner::kUnsafe);
  return allocate(data, bytes, kHost);
}
cudaError_t cudaFreeHost(void* data) {
  SATURATE_ENTER(Manner::kUnsafe);
  return release(data);
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  SATURATE_ENTER(Manner::kUnsafe);
  const std::lock_guard lock(guard());
  blocks()[reinterpret_cast<uintptr_t>(data)] = {bytes, kHost, false};
  add(Count::kPinnedAllocations);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  SATURATE_ENTER(Manner::kUnsafe);
  return release(data);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  SATURATE_ENTER();
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard lock(guard());
  *total = size_t(device_bytes());
  *free = size_t(device_bytes() - live_of(device));
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  SATURATE_ENTER();
  const std::lock_guard lock(guard());
  const Block* const block = block_of(data);
  *attributes = {};
  attributes->type = is_device(block) ? cudaMemoryTypeDevice
                     : block          ? cudaMemoryTypeHost
                                      : cudaMemoryTypeUnregistered;
  attributes->device = is_device(block) ? block->device : 0;
  attributes->devicePointer = block ? const_cast<void*>(data) : nullptr;
  attributes->hostPointer = is_device(block) ? nullptr : const_cast<void*>(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  SATURATE_ENTER(Manner::kWaits);
  const cudaError_t copied = copy(to, from, bytes, nullptr);
  notify([](Observer& observer) { observer.host_drains(key_of(nullptr)); });
  return copied;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  SATURATE_ENTER();
  return copy(to, from, bytes, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  SATURATE_ENTER();
  return enqueue(stream, begin_copy(to, from, width, stream), [=] {
    for (size_t row = 0; row < height; ++row)
      std::memmove(static_cast<char*>(to) + row * to_pitch,
                   static_cast<const char*>(from) + row * from_pitch, width);
  });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  SATURATE_ENTER();
  return copy(to, from, bytes, stream);
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return enter(__func__, Manner::kWaits);
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  SATURATE_ENTER();
  return set(data, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  SATURATE_ENTER();
  return set(data, value, bytes, stream);
}

// Memory of another process, and the driver's pools: not supported here.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return failed(cudaErrorNotSupported);
}
}
