// Lists of the objects of a bucket: S3's ListObjectsV2, also of services that imitate it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "store/http_calls.h"
#include "store/store_url.h"

namespace saturate {

struct ListedObject {
  std::string key;
  std::string etag;  // as in a reply's header
  uint64_t size = 0;
};

// A reply to ListObjectsV2.
struct ListPage {
  std::vector<ListedObject> objects;
  std::vector<std::string> folders;  // common prefixes, ending in "/"
  std::string next;                  // continues the list; "": this is its end
};

// Fails with kRun naming `where` if it is not a list, is malformed, or claims a next page without
// saying where it is.
ListPage parse_list_page(std::string_view xml, const std::string& where);

// Listing all that begins with one prefix; the keys of all its lists together are limited.
class BucketList {
 public:
  // `name` is that of the place, for messages. `calls` must outlive this.
  BucketList(HttpCalls& calls, BucketPlace place, std::string name)
      : calls_(calls), place_(std::move(place)), name_(std::move(name)) {}

  // Calls `take` with each page of the objects whose keys begin with `prefix`, which begins with
  // the place's; if `by_folder`, those with a further "/" appear as folders. Every key begins with
  // the prefix. From any thread. Fails as HttpCalls::call() and require_good(), and with kRun if
  // the list has no end or other keys.
  void each_page(const std::string& prefix, bool by_folder,
                 const std::function<void(ListPage&&)>& take);

 private:
  ListPage page(const std::string& prefix, bool by_folder, const std::string& token);
  void check(const std::string& prefix, const ListPage& page);

  HttpCalls& calls_;
  const BucketPlace place_;
  const std::string name_;
  std::atomic<uint64_t> keys_{0};
  // Less than for ranges, since all else waits for a late page; at least twice the longest time
  // that a page has taken until its first byte.
  std::atomic<int> stall_s_{5};
};

}  // namespace saturate
