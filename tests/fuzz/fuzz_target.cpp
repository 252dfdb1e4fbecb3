// The entry point of libFuzzer; `make fuzz` builds and runs one program for each format.
#include <span>

#include "tests/fuzz/fuzz_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  saturate::testing::fuzz_source(SATURATE_FUZZ_SCHEME, std::as_bytes(std::span(data, size)));
  return 0;
}
