// The entry point of libFuzzer; `make fuzz` builds and runs one program for each format.
#include <span>
#include <string_view>

#include "tests/fuzz/fuzz_image.h"
#include "tests/fuzz/fuzz_index.h"
#include "tests/fuzz/fuzz_parsers.h"
#include "tests/fuzz/fuzz_pickle.h"
#include "tests/fuzz/fuzz_source.h"
#include "tests/fuzz/fuzz_torch_modules.h"
#include "tests/fuzz/fuzz_unpack.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace saturate::testing;
  const std::string_view format = SATURATE_FUZZ_FORMAT;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (format == "image") {
    fuzz_image(bytes);
    fuzz_mask(bytes);
  } else if (format == "index")
    fuzz_index(bytes);
  else if (format == "unpack")
    fuzz_unpack(bytes);
  else if (format == "segments")
    fuzz_segments(bytes);
  else if (format == "pickle")
    fuzz_pickle(bytes);
  else if (format == "recipe")
    fuzz_recipe(bytes);
  else if (format == "safetensors")
    fuzz_safetensors(bytes);
  else if (format == "lmdb")
    fuzz_lmdb(bytes);
  else if (format == "ladder")
    fuzz_ladder(bytes);
  else if (format == "metrics")
    fuzz_metrics(bytes);
  else
    fuzz_source(std::string(format), bytes);
  return 0;
}
