#include "store/bucket_region.h"

#include <map>

#include "base/mutex.h"
#include "store/credentials.h"
#include "store/store_url.h"

namespace saturate {
namespace {

Mutex regions_mutex;
std::map<std::string, std::string>& regions() NEEDS_LOCK(regions_mutex) {
  static std::map<std::string, std::string> by_bucket;
  return by_bucket;
}

std::string amazon_host(const std::string& region) {
  return host_of(amazon_url("s3", region));
}

// The bucket of a URL at Amazon's host of this region; "" if that is not its host.
std::string amazon_bucket(const std::string& url, const std::string& region) {
  const std::string host = host_of(url), amazons = amazon_host(region);
  if (host.ends_with("." + amazons)) return host.substr(0, host.size() - amazons.size() - 1);
  const size_t begin = url.find("://") + 3 + host.size() + 1;
  if (host != amazons || begin >= url.size()) return "";
  return url.substr(begin, url.find_first_of("/?", begin) - begin);
}

}  // namespace

void move_to_region(std::string& url, std::string& region) {
  const std::string bucket = amazon_bucket(url, region);
  if (bucket.empty()) return;
  const MutexLock lock(regions_mutex);
  const auto found = regions().find(bucket);
  if (found == regions().end()) return;
  const size_t old = amazon_host(region).size();
  url.replace(url.find("://") + 3 + host_of(url).size() - old, old, amazon_host(found->second));
  region = found->second;
}

bool note_region(const std::string& url, const std::string& region, const std::string& named) {
  if (named.empty()) return false;
  const std::string bucket = amazon_bucket(url, region);
  if (bucket.empty()) return false;
  const MutexLock lock(regions_mutex);
  regions()[bucket] = named;
  return true;
}

}  // namespace saturate
