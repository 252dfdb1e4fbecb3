#include "tests/paths.h"

#include <unistd.h>

#include <cstdlib>

namespace saturate::testing {
namespace {

// The command would set it and re-execute itself, which hundreds of tests would wait for.
[[maybe_unused]] const int kNoNewStart = setenv("GOMP_SPINCOUNT", "2000", /*overwrite=*/0);

// Commands keep indexes of JPEGs there, and not in the cache of whoever runs the tests.
[[maybe_unused]] const int kOwnCache = setenv(
    "XDG_CACHE_HOME", ("/tmp/saturate-tests-" + std::to_string(getuid())).c_str(), /*overwrite=*/1);

// The folder of a stage made by tools/gpu-check, with the command and some of the project's files.
std::string staged_or(const std::string& file, const std::string& built) {
  const char* root = std::getenv("SATURATE_TEST_ROOT");
  return root ? std::string(root) + "/" + file : built;
}

}  // namespace

std::string source_path(const std::string& file) {
  return staged_or(file, SATURATE_SOURCE_DIR "/" + file);
}

std::string shared_path(const std::string& file) {
  return SATURATE_SOURCE_DIR "/../shared/" + file;
}

const std::string kCommand = staged_or("saturate", SATURATE_COMMAND);
const std::string kFakeNvml = SATURATE_FAKE_NVML;
#if SATURATE_ASAN || SATURATE_TSAN
const bool kSanitized = true;
#else
const bool kSanitized = false;
#endif

}  // namespace saturate::testing
