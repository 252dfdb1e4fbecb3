// Names of objects: http(s)://HOST/PATH, s3://BUCKET/KEY and gs://BUCKET/KEY.
#pragma once

#include <string>
#include <string_view>

#include "saturate/data/env.h"

namespace saturate {

// Whether a path names an object in a store instead of a file.
bool is_store_url(std::string_view path);

// The name of an object for messages: without the query, which may hold a signature.
std::string store_name(const std::string& url);

// The URL without the parameters of its query that sign it, which are other ones each time.
std::string unsigned_url(const std::string& url);

// The request line of an object.
struct StoreLocation {
  std::string url;         // http(s)
  bool is_bucket = false;  // s3: or gs:: signed if there are credentials, and never redirected
  std::string region;      // for the signature
};

// Fails with kUsage if `url` is not well-formed, or carries a password. Reads S3's settings.
StoreLocation locate_object(Env& env, const std::string& url);

// Whether a reply to an unsigned request for `from` may send on to `to`: within one host, or to
// another one if both use TLS, which a machine's own services rarely do.
bool may_redirect(std::string_view from, std::string_view to);

// "HOST[:PORT]" of an http(s) URL.
std::string host_of(std::string_view url);

}  // namespace saturate
