// The functions of libcurl that are called. It is loaded when it is first needed, so that the
// program starts without it.
#pragma once

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

namespace saturate {

#define SATURATE_CURL_FUNCTIONS(declare)                                                       \
  declare(global_init) declare(version_info) declare(easy_init) declare(easy_setopt)           \
      declare(easy_getinfo) declare(easy_strerror) declare(easy_cleanup) declare(slist_append) \
          declare(slist_free_all) declare(multi_init) declare(multi_setopt)                    \
              declare(multi_add_handle) declare(multi_remove_handle) declare(multi_perform)    \
                  declare(multi_info_read) declare(multi_poll) declare(multi_wakeup)           \
                      declare(multi_cleanup)

struct CurlLibrary {
#define SATURATE_CURL_MEMBER(name) \
  decltype(&::curl_##name) name; /* NOLINT(bugprone-macro-parentheses) */
  SATURATE_CURL_FUNCTIONS(SATURATE_CURL_MEMBER)
#undef SATURATE_CURL_MEMBER
  // It is the wheel's (tools/lean_curl.py), which knows no certificate authorities.
  bool is_wheels;
};

// The system's libcurl, or the wheel's where that is missing or too old. Fails with kUsage without
// either. Stays loaded until the process ends. Safe for concurrent use.
const CurlLibrary& curl_library();

}  // namespace saturate
