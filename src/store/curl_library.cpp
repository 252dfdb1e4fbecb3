#ifdef SATURATE_HAS_CURL
#include "store/curl_library.h"

#include <dlfcn.h>

#include <string>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char *kSystems = "libcurl.so.4", *kWheels = "libsaturate_curl.so";
constexpr unsigned kOldest = 0x075500;  // 7.85: the list of protocols as text

[[noreturn]] void fail_curl(const std::string& what) {
  fail(
      ErrorKind::kUsage, what, kSystems,
      "Install libcurl 7.85 or newer (Debian: apt install libcurl4), which reads http(s)://, s3:// "
      "and gs://");
}

template <class Function>
void load(void* handle, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(handle, name));
  if (!out) fail_curl(std::string("it has no function ") + name);
}

CurlLibrary load_library() {
  std::string problem;
  for (const char* name : {kSystems, kWheels}) {
    void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      if (problem.empty()) problem = std::string("cannot be loaded: ") + dlerror();
      continue;
    }
    CurlLibrary curl{};
#define SATURATE_CURL_LOAD(function) load(handle, "curl_" #function, curl.function);
    SATURATE_CURL_FUNCTIONS(SATURATE_CURL_LOAD)
#undef SATURATE_CURL_LOAD
    curl.is_wheels = name == kWheels;
    const auto* version = curl.version_info(CURLVERSION_NOW);
    if (version->version_num < kOldest) {
      problem = std::string("is of version ") + version->version;
      dlclose(handle);
      continue;
    }
    if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) fail_curl("cannot be initialised");
    return curl;
  }
  fail_curl(problem);
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary library = load_library();
  return library;
}

}  // namespace saturate
#endif
