#include "step/precision.h"

#include <ATen/Context.h>

namespace saturate {

void allow_tf32(bool allowed) {
  at::globalContext().setAllowTF32CuBLAS(allowed);
  at::globalContext().setAllowTF32CuDNN(allowed);
}

}  // namespace saturate
