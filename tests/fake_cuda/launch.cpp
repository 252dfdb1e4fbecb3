// Kernels: torch's do nothing. Our own run their CPU versions, with one thread for each block.
#include <cstring>
#include <initializer_list>
#include <memory>
#include <unordered_map>

#include "image/finish_passes.h"
#include "image/unpack_passes.h"
#include "image/volume_passes.h"
#include "task/token_passes.h"
#include "tests/fake_cuda/streams.h"

namespace saturate::fake_cuda {
namespace {

// Each kernel, by its host function.
std::unordered_map<const void*, const char*>& kernels() {
  static auto& made = *new std::unordered_map<const void*, const char*>;
  return made;
}

bool is_named(const void* function, const char* name) {
  const std::lock_guard lock(guard());
  const auto found = kernels().find(function);
  return found != kernels().end() && std::strstr(found->second, name) != nullptr;
}

void note_touched(cudaStream_t stream, std::initializer_list<const void*> read,
                  std::initializer_list<const void*> written) {
  notify([&](Observer& observer) {
    const void* const key = key_of(stream);
    for (const void* memory : read)
      if (memory) observer.touches(key, memory, /*writes=*/false);
    for (const void* memory : written)
      if (memory) observer.touches(key, memory, /*writes=*/true);
  });
}

void count_twin() {
  const std::lock_guard lock(guard());
  add(Count::kTwins);
}

cudaError_t launch_volumes(void** arguments, cudaStream_t stream) {
  const VolumeArguments batch = *static_cast<const VolumeArguments*>(arguments[0]);
  const int parts = *static_cast<const int*>(arguments[1]);
  note_touched(stream, {batch.in, batch.effects}, {batch.out});
  return enqueue(stream, Count::kLaunches, [batch, parts] {
    count_twin();
    for (int64_t i = 0; i < batch.count * parts; ++i)
      transform_volume(LoneTeam(), batch, i / parts, int(i % parts), parts);
  });
}

cudaError_t launch_unpacking(void** arguments, cudaStream_t stream) {
  const UnpackArguments batch = *static_cast<const UnpackArguments*>(arguments[0]);
  note_touched(stream, {batch.memory, batch.places}, {batch.scratch, batch.out, batch.failed});
  return enqueue(stream, Count::kLaunches, [batch] {
    count_twin();
    const auto state = std::make_unique<UnpackState>();
    for (int64_t i = 0; i < batch.count; ++i)
      unpack_image(LoneTeam(), batch, i, batch.scratch, *state);
  });
}

cudaError_t launch_token_sums(void** arguments, cudaStream_t stream) {
  const TokenRows rows = *static_cast<const TokenRows*>(arguments[0]);
  const TokenSums to = *static_cast<const TokenSums*>(arguments[1]);
  note_touched(stream, {rows.logits, rows.labels}, {to.peaks, to.log_sums, to.losses, to.hits});
  return enqueue(stream, Count::kLaunches, [rows, to] {
    count_twin();
    TokenState state;
    for (int64_t i = 0; i < rows.count; ++i) sum_row(LoneTeam(), rows, i, to, state);
  });
}

cudaError_t launch_token_gradient(void** arguments, cudaStream_t stream) {
  const TokenRows rows = *static_cast<const TokenRows*>(arguments[0]);
  const TokenSums from = *static_cast<const TokenSums*>(arguments[1]);
  const float* const factors = *static_cast<const float* const*>(arguments[2]);
  void* const gradient = *static_cast<void* const*>(arguments[3]);
  note_touched(stream, {rows.logits, rows.labels, from.peaks, from.log_sums, factors}, {gradient});
  return enqueue(stream, Count::kLaunches, [rows, from, factors, gradient] {
    count_twin();
    for (int64_t i = 0; i < rows.count; ++i)
      row_gradient(LoneTeam(), rows, i, from, factors[i], gradient);
  });
}

cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  if (is_named(function, "unpack_images")) return launch_unpacking(arguments, stream);
  if (is_named(function, "sum_tokens")) return launch_token_sums(arguments, stream);
  if (is_named(function, "token_gradient")) return launch_token_gradient(arguments, stream);
  if (is_named(function, "transform_volumes")) return launch_volumes(arguments, stream);
  if (!is_named(function, "finish_images")) return enqueue(stream, Count::kLaunches);
  const FinishArguments batch = *static_cast<const FinishArguments*>(arguments[0]);
  const int parts = *static_cast<const int*>(arguments[1]);
  note_touched(
      stream,
      {batch.effects, batch.held, batch.places, batch.photos, batch.filters, batch.filter_values},
      {batch.images, batch.spare, batch.out, batch.rows});
  return enqueue(stream, Count::kLaunches, [batch, parts] {
    count_twin();
    LoneTeam team;
    const auto state = std::make_unique<FinishState>();
    for (int64_t i = 0; i < batch.count * parts; ++i)
      finish_image(team, batch, i / parts, int(i % parts), parts, *state);
  });
}

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local Configuration pushed;

}  // namespace
}  // namespace saturate::fake_cuda

using namespace saturate::fake_cuda;

extern "C" {

// Functions that nvcc-compiled code calls at its start, and around <<<>>>.
void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 0;
}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(guard());
  kernels()[function] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t,
                               cudaStream_t stream) {
  if (const cudaError_t planned = enter("cudaLaunchKernel")) return planned;
  return launch(kernel, arguments, stream);
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t,
                             cudaStream_t stream) {
  SATURATE_ENTER();
  return launch(function, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  if (const cudaError_t planned = enter("cudaLaunchKernel")) return planned;
  return launch(function, arguments, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* made, const void*) {
  *made = {};
  made->maxThreadsPerBlock = 1024;
  made->numRegs = 32;
  made->binaryVersion = made->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char bytes[1 << 20];
  *address = bytes;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() {
  return enter(__func__);
}
cudaError_t cudaProfilerStop() {
  return enter(__func__);
}
}
