// Decodes packed JPEGs on the CPU, by the passes of the CUDA kernel.
#include <memory>

#include "image/unpack_passes.h"

namespace saturate {

void unpack_jpegs_cpu(const UnpackArguments& batch) {
  const auto state = std::make_unique<UnpackState>();
  for (int64_t i = 0; i < batch.count; ++i)
    unpack_image(LoneTeam(), batch, i, batch.scratch, *state);
}

}  // namespace saturate
