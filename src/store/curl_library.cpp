#ifdef SATURATE_HAS_CURL
#include "store/curl_library.h"

#include <dlfcn.h>

#include <string>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char *kSystems = "libcurl.so.4", *kWheels = "libsaturate_curl.so";
constexpr unsigned kOldest = 0x075700;  // 7.87: signatures cover all headers, a session's token too

[[noreturn]] void fail_curl(const std::string& what) {
  fail(
      ErrorKind::kUsage, what, kSystems,
      "Install libcurl 7.87 or newer (Debian: apt install libcurl4), which reads http(s)://, s3:// "
      "and gs://");
}

// The system's libcurl gets the system's OpenSSL, even if a wheel has loaded another one for the
// whole process. Sanitizers do not support this flag.
int own_libraries() {
#ifdef RTLD_DEEPBIND
  if (!dlsym(RTLD_DEFAULT, "__asan_init") && !dlsym(RTLD_DEFAULT, "__tsan_init"))
    return RTLD_DEEPBIND;
#endif
  return 0;
}

template <class Function>
void load(void* handle, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(handle, name));
  if (!out) fail_curl(std::string("has no function ") + name);
}

// Throws if it cannot be used.
CurlLibrary load_library(const char* name) {
  void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | own_libraries());
  if (!handle) fail_curl(std::string("cannot be loaded: ") + dlerror());
  CurlLibrary curl{};
  load(handle, "curl_version_info", curl.version_info);
  const auto* version = curl.version_info(CURLVERSION_NOW);
  if (version->version_num < kOldest) fail_curl(std::string("is of version ") + version->version);
#define SATURATE_CURL_LOAD(function) load(handle, "curl_" #function, curl.function);
  SATURATE_CURL_FUNCTIONS(SATURATE_CURL_LOAD)
#undef SATURATE_CURL_LOAD
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) fail_curl("cannot be initialised");
  return curl;
}

CurlLibrary load_either() {
  try {
    return load_library(kSystems);
  } catch (const Error&) {
    void* const wheels = dlopen(kWheels, RTLD_NOW | RTLD_LOCAL);
    if (!wheels) throw;
  }
  CurlLibrary curl = load_library(kWheels);
  curl.is_wheels = true;
  return curl;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary library = load_either();
  return library;
}

}  // namespace saturate
#endif
