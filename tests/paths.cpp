#include "tests/paths.h"

#include <cstdlib>

namespace saturate::testing {
namespace {

// The command would set it itself and start anew, which hundreds of tests would wait for.
[[maybe_unused]] const int kNoNewStart = setenv("GOMP_SPINCOUNT", "2000", /*overwrite=*/0);

}  // namespace

std::string source_path(const std::string& file) {
  return SATURATE_SOURCE_DIR "/" + file;
}

std::string shared_path(const std::string& file) {
  return SATURATE_SOURCE_DIR "/../shared/" + file;
}

const std::string kCommand = SATURATE_COMMAND;
const std::string kFakeNvml = SATURATE_FAKE_NVML;

}  // namespace saturate::testing
