// Objects of stores and their names: http(s)://HOST/PATH, s3://BUCKET/KEY and gs://BUCKET/KEY.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/env.h"

namespace saturate {

// Whether a path names an object in a store instead of a file.
bool is_store_url(std::string_view path);

// The name of an object for messages: without what may be secret (base/url_text.h).
std::string store_name(const std::string& url);

// Fails with kUsage if the URL has control characters or user information, or if one of s3:// or
// gs:// has a signature, which would be part of the key.
void check_url(const std::string& url);

// Fails with kUsage naming `where` if the path is meant as a URL, and has no scheme of a store:
// htps://, s3:/, S3//.
void require_known_scheme(std::string_view path, const std::string& where);

// The URL without the parameters of its query that sign it, which are other ones each time.
std::string unsigned_url(const std::string& url);

// Whether the URL is signed for a limited time.
bool is_presigned(std::string_view url);

// The request line of an object.
struct StoreLocation {
  std::string url;         // http(s)
  bool is_bucket = false;  // s3: or gs:: signed if there are credentials, and never redirected
  std::string region;      // for the signature
  bool is_google = false;  // gs:, which is not for Amazon's keys
  std::string authorities = {};  // as of S3Settings
};

// A bucket of s3:// or gs://, and a key in it: of an object, or what keys begin with.
struct BucketPlace {
  StoreLocation bucket;  // its URL ends with "/"
  std::string key;       // may be empty
};

// "s3://BUCKET[/KEY]". Fails with kUsage as locate_object(), or if `url` is http(s).
BucketPlace locate_bucket(Env& env, const std::string& url);

// All but letters, digits and -_.~ as %XX; of a key, all but those and "/".
std::string encode_query(std::string_view text);
std::string encode_key(std::string_view key);

// Whether this is the URL of a web server, whose objects are only read.
bool is_web_url(std::string_view url);

// Fails with kUsage as check_url(), or if `url` is not well-formed. Reads S3's settings.
StoreLocation locate_object(Env& env, const std::string& url);

// Whether a reply to an unsigned request for `from` may send on to `to`: within one host and port,
// and not from TLS to none.
bool may_redirect(std::string_view from, std::string_view to);

// "HOST[:PORT]" of an http(s) URL.
std::string host_of(std::string_view url);

// An object of a store, as it was when it was opened.
struct StoreObject {
  std::string name;  // for messages
  StoreLocation location;
  // Set once, by the reply to the first request; constant afterwards.
  bool is_open = false;
  uint64_t size = 0;                  // bytes
  std::string etag, modified;         // as the server gave them; may be empty
  std::vector<std::byte> head;        // the first bytes
  std::string group;                  // of objects that the cache keeps together; "": it is alone
  std::atomic<bool> is_cached{true};  // false: what is read now is not for the cache on disk
  // Where a server's redirect led; "" if to nowhere. Only for the transfers' thread.
  std::string redirected;

  // Identifies these bytes for the cache on disk; "" if the server does not say which they are.
  // Other bytes of the same meaning may have the same weak ETag (RFC 9110).
  std::string identity() const {
    const std::string& version = etag.empty() || etag.starts_with("W/") ? modified : etag;
    if (version.empty()) return "";
    return (group.empty() ? "" : identity_of_group(group)) + unsigned_url(location.url) + "\n" +
           version + "\n" + std::to_string(size);
  }
  // The start of the identities of a group's objects: URLs hold no such character.
  static std::string identity_of_group(const std::string& group) { return group + "\x1f"; }
};

}  // namespace saturate
