#include "tests/paths.h"

namespace saturate::testing {

std::string source_path(const std::string& file) {
  return SATURATE_SOURCE_DIR "/" + file;
}

std::string shared_path(const std::string& file) {
  return SATURATE_SOURCE_DIR "/../shared/" + file;
}

const std::string kCommand = SATURATE_COMMAND;
const std::string kFakeNvml = SATURATE_FAKE_NVML;

}  // namespace saturate::testing
