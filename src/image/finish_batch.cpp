#include "saturate/pixel.h"

namespace saturate {

void finish_batch_cpu(const uint8_t* in, const uint8_t* flip, int64_t count, int size,
                      const Normalize& normalize, float* out) {
  const ptrdiff_t row = ptrdiff_t{size} * 3;
  for (int64_t image = 0; image < count; ++image) {
    for (int y = 0; y < size; ++y, in += row) {
      for (int x = 0; x < size; ++x, out += 3)
        finish_pixel(in, size, x, flip[image] != 0, normalize, out);
    }
  }
}

}  // namespace saturate
