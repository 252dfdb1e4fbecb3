// An object of a store, as it was when it was opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/store_url.h"

namespace saturate {

struct StoreObject {
  std::string name;  // for messages
  StoreLocation location;
  // Set once, by the reply to the first request; constant afterwards.
  bool is_open = false;
  uint64_t size = 0;            // bytes
  std::string etag, modified;   // as the server gave them; may be empty
  std::vector<std::byte> head;  // the first bytes
  // Where a server's redirect led; "" if to nowhere. Only for the transfers' thread.
  std::string redirected;

  // Identifies these bytes for the cache on disk; "" if the server does not say which they are.
  std::string identity() const {
    const std::string& version = etag.empty() ? modified : etag;
    if (version.empty()) return "";
    return unsigned_url(location.url) + "\n" + version + "\n" + std::to_string(size);
  }
};

}  // namespace saturate
