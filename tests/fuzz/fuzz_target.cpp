// The entry point of libFuzzer: cmake -DSATURATE_FUZZ=ON with clang (Debian: libclang-rt-16-dev),
// then
//   build/fuzz_tar tests/goldens/tar
#include <span>

#include "tests/fuzz/fuzz_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  saturate::testing::fuzz_source(SATURATE_FUZZ_SCHEME, std::as_bytes(std::span(data, size)));
  return 0;
}
