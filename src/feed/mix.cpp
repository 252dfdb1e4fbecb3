// Mixes a batch with a rotated copy of itself.
#include <ATen/ops/cat.h>

#include "saturate/feed.h"

namespace saturate {
namespace {

// rolled[i] = tensor[(i - offset) mod N], in the tensor's own memory format.
at::Tensor rolled(const at::Tensor& tensor, int64_t offset) {
  const int64_t kept = tensor.size(0) - offset;
  return at::cat({tensor.narrow(0, kept, offset), tensor.narrow(0, 0, kept)});
}

}  // namespace

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
