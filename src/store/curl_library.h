// libcurl, loaded when it is first needed: the program starts without it, and wheels need no copy
// of it and of the twenty libraries that it is linked to.
#pragma once

#ifdef SATURATE_HAS_CURL
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

namespace saturate {

struct CurlLibrary {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_version_info) version_info;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) setopt;
  decltype(&::curl_easy_getinfo) getinfo;
  decltype(&::curl_easy_strerror) strerror;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_setopt) multi_setopt;
  decltype(&::curl_multi_add_handle) add_handle;
  decltype(&::curl_multi_remove_handle) remove_handle;
  decltype(&::curl_multi_perform) perform;
  decltype(&::curl_multi_info_read) info_read;
  decltype(&::curl_multi_poll) poll;
  decltype(&::curl_multi_wakeup) wakeup;
  decltype(&::curl_multi_cleanup) multi_cleanup;
};

// Fails with kUsage if it is not installed, or too old. Stays loaded until the process ends.
const CurlLibrary& curl_library();

}  // namespace saturate
#endif
