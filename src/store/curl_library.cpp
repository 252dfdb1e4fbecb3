#include "store/curl_library.h"

#ifdef SATURATE_HAS_CURL
#include <dlfcn.h>

#include <string>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char* kLibcurl = "libcurl.so.4";
constexpr unsigned kOldest = 0x075500;  // 7.85: the list of protocols as text

[[noreturn]] void fail_curl(const std::string& what) {
  fail(
      ErrorKind::kUsage, what, kLibcurl,
      "Install libcurl 7.85 or newer (Debian: apt install libcurl4), which reads http(s)://, s3:// "
      "and gs://");
}

template <class Function>
void load(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  if (!out) fail_curl(std::string("it has no function ") + name);
}

CurlLibrary load_curl() {
  void* const library = dlopen(kLibcurl, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail_curl(std::string("cannot be loaded: ") + dlerror());
  CurlLibrary curl{};
  load(library, "curl_global_init", curl.global_init);
  load(library, "curl_version_info", curl.version_info);
  load(library, "curl_easy_init", curl.easy_init);
  load(library, "curl_easy_setopt", curl.setopt);
  load(library, "curl_easy_getinfo", curl.getinfo);
  load(library, "curl_easy_strerror", curl.strerror);
  load(library, "curl_easy_cleanup", curl.easy_cleanup);
  load(library, "curl_slist_append", curl.slist_append);
  load(library, "curl_slist_free_all", curl.slist_free);
  load(library, "curl_multi_init", curl.multi_init);
  load(library, "curl_multi_setopt", curl.multi_setopt);
  load(library, "curl_multi_add_handle", curl.add_handle);
  load(library, "curl_multi_remove_handle", curl.remove_handle);
  load(library, "curl_multi_perform", curl.perform);
  load(library, "curl_multi_info_read", curl.info_read);
  load(library, "curl_multi_poll", curl.poll);
  load(library, "curl_multi_wakeup", curl.wakeup);
  load(library, "curl_multi_cleanup", curl.multi_cleanup);
  const auto* version = curl.version_info(CURLVERSION_NOW);
  if (version->version_num < kOldest) fail_curl(std::string("is of version ") + version->version);
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) fail_curl("cannot be initialised");
  return curl;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary loaded = load_curl();
  return loaded;
}

}  // namespace saturate
#endif
