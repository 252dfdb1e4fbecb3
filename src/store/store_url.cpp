#include "store/store_url.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "base/url_text.h"
#include "saturate/data/error.h"
#include "store/credentials.h"

namespace saturate {
namespace {

bool starts_with_word(std::string_view text, std::string_view start) {
  return lower_case(text.substr(0, start.size())) == start;
}

std::string_view after_scheme(std::string_view url) {
  return url.substr(url.find("://") + 3);
}

[[noreturn]] void fail_url(const std::string& what, const std::string& url,
                           const std::string& remedy) {
  fail(ErrorKind::kUsage, what, store_name(url), remedy);
}

// As Amazon's signature requires.
std::string encoded(std::string_view text, std::string_view plain) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    if (is_letter_or_digit(c) || plain.find(c) != std::string_view::npos)
      out += c;
    else
      out.append({'%', kDigits[uint8_t(c) >> 4], kDigits[uint8_t(c) & 15]});
  }
  return out;
}

// A certificate for *.HOST does not cover a bucket with dots, and names of hosts have no capitals
// or underscores, which old buckets may have.
bool needs_path_style(std::string_view bucket) {
  return std::ranges::any_of(bucket,
                             [](char c) { return c == '.' || c == '_' || (c >= 'A' && c <= 'Z'); });
}

void check_bucket(std::string_view bucket, const std::string& url) {
  const bool good = bucket.size() >= 3 && std::ranges::all_of(bucket, [](char c) {
                      return is_letter_or_digit(c) || c == '-' || c == '.' || c == '_';
                    });
  if (!good) fail_url("has no valid bucket name", url, "Write s3://BUCKET/KEY or gs://BUCKET/KEY");
}

}  // namespace

std::string encode_query(std::string_view text) {
  return encoded(text, "-_.~");
}

std::string encode_key(std::string_view key) {
  return encoded(key, "-_.~/");
}

bool is_web_url(std::string_view url) {
  return starts_with_word(url, "http://") || starts_with_word(url, "https://");
}

bool is_store_url(std::string_view path) {
  return is_web_url(path) || starts_with_word(path, "s3://") || starts_with_word(path, "gs://");
}

std::string store_name(const std::string& url) {
  return url_name(url);
}

void check_url(const std::string& url) {
  if (std::ranges::any_of(url, [](char c) { return uint8_t(c) < 0x20 || c == 0x7f; }))
    fail_url("holds a control character", url, "Check the URL");
  if (has_user_info(url))
    fail_url("carries a user name or password, which a recipe would keep", url,
             is_web_url(url)
                 ? "Use s3:// with credentials of the environment, or a server that needs none"
                 : "Put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of "
                   "~/.aws/credentials, and write s3://BUCKET/KEY or gs://BUCKET/KEY");
  const size_t query = std::min(url.find('?'), url.size());
  if (!is_web_url(url) && has_signature(std::string_view(url).substr(query)))
    fail_url("carries a signature, which only https:// URLs have: keys sign s3:// and gs://", url,
             "Write the signed URL as it was made, with https://, or remove the query");
}

void require_known_scheme(std::string_view path, const std::string& where) {
  // The first kRead are read, if they are spelt right.
  constexpr std::string_view kMeant[] = {"http", "https", "s3",   "gs",   "ftp", "s3a",
                                         "gcs",  "ftps",  "sftp", "file", "az",  "hdfs"};
  constexpr int kRead = 5;
  const auto end = std::ranges::find_if_not(
      path, [](char c) { return is_letter_or_digit(c) || c == '+' || c == '-' || c == '.'; });
  const std::string_view word(path.begin(), end), rest(end, path.end());
  if (word.empty() || is_store_url(path)) return;
  const auto meant = std::ranges::find(kMeant, lower_case(word));
  const bool is_read = meant < kMeant + kRead;
  for (const std::string_view mark : {"://", ":/", "//", ":"})
    if (rest.starts_with(mark) &&
        (is_read || mark == "://" || (mark == ":/" && meant != std::end(kMeant))))
      fail(ErrorKind::kUsage, "unknown scheme \"" + std::string(word).append(mark) + "\"", where,
           lower_case(word) == "file"
               ? "Write the path alone"
               : "Write http://, https://, s3:// or gs:// before a host or bucket");
}

std::string unsigned_url(const std::string& url) {
  const size_t query = url.find('?');
  std::string kept = url.substr(0, query);
  char before = '?';
  for (size_t at = query; at < url.size();) {
    const size_t end = std::min(url.find('&', at + 1), url.size());
    const std::string parameter = url.substr(at + 1, end - at - 1);
    if (!is_signing(parameter)) kept += std::exchange(before, '&') + parameter;
    at = end;
  }
  return kept;
}

bool is_presigned(std::string_view url) {
  const std::string query = lower_case(url.substr(std::min(url.find('?'), url.size())));
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{
          "x-amz-expires=", "x-goog-expires=", "&expires=", "?expires=", "&se=", "?se="},
      [&](std::string_view name) { return query.find(name) != std::string::npos; });
}

std::string host_of(std::string_view url) {
  const std::string_view rest = after_scheme(url);
  return lower_case(rest.substr(0, rest.find_first_of("/?#")));
}

bool may_redirect(std::string_view from, std::string_view to) {
  if (!is_web_url(to) || host_of(to).find('@') != std::string::npos) return false;
  if (starts_with_word(from, "https://") && !starts_with_word(to, "https://")) return false;
  return host_of(from) == host_of(to);
}

BucketPlace locate_bucket(Env& env, const std::string& url) {
  check_url(url);
  if (is_web_url(url))
    fail_url("a web server's objects are only read one by one", url, "Write s3://BUCKET/KEY");
  const std::string_view rest = after_scheme(url);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string bucket(rest.substr(0, slash));
  check_bucket(bucket, url);
  const std::string key(rest.substr(std::min(slash + 1, rest.size())));
  if (starts_with_word(url, "gs://"))
    return {{find_google_endpoint() + "/" + bucket + "/", true, "auto", true}, key};
  const S3Settings s3 = find_s3_settings(env);
  const std::string endpoint = s3.endpoint.empty() ? amazon_url("s3", s3.region) : s3.endpoint;
  if (s3.endpoint.empty() && bucket.ends_with("--x-s3"))
    fail_url("names a directory bucket (S3 Express), whose requests are signed in another way", url,
             "Copy the data to a general purpose bucket");
  const size_t host = endpoint.find("://") + 3;
  const std::string place = s3.path_style || needs_path_style(bucket)
                                ? endpoint + "/" + bucket
                                : endpoint.substr(0, host) + bucket + "." + endpoint.substr(host);
  return {{place + "/", true, s3.region, false, s3.authorities}, key};
}

StoreLocation locate_object(Env& env, const std::string& url) {
  if (is_web_url(url)) {
    check_url(url);
    if (host_of(url).empty()) fail_url("has no host", url, "Write http://HOST/PATH");
    if (url.find(' ') != std::string::npos) fail_url("holds a space", url, "Write it as %20");
    return {url.substr(0, url.find('#')), false, ""};
  }
  BucketPlace place = locate_bucket(env, url);
  if (place.key.empty()) fail_url("names a bucket, not an object", url, "Write s3://BUCKET/KEY");
  place.bucket.url += encode_key(place.key);
  return place.bucket;
}

}  // namespace saturate
