#include "store/range_reply.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/printable.h"
#include "base/text.h"
#include "store/server_text.h"

namespace saturate {
namespace {

constexpr const char* kCheckUrl = "Check the URL, and that the object exists";
constexpr const char* kChanged =
    "Start a new run on the new data, or put the old object back and resume";

// Offsets after the end of an object, such as those of a member of a tar, must not overflow.
constexpr uint64_t kMostObjectBytes = INT64_MAX / 2;

// An upload's body was damaged on the way.
constexpr std::string_view kBodyDamaged = "XAmzContentSHA256Mismatch";

struct ContentRange {
  uint64_t first = 0, last = 0, total = 0;
};

bool take_number(std::string_view& text, uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc()) return false;
  text.remove_prefix(size_t(end - text.data()));
  return true;
}

bool take_char(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

// "bytes FIRST-LAST/TOTAL"
std::optional<ContentRange> parse_content_range(std::string_view text) {
  ContentRange range;
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const bool good = take_number(text, range.first) && take_char(text, '-') &&
                    take_number(text, range.last) && take_char(text, '/') &&
                    take_number(text, range.total) && text.empty();
  if (!good || range.first > range.last || range.last >= range.total ||
      range.total > kMostObjectBytes)
    return std::nullopt;
  return range;
}

ReplyVerdict final_verdict(std::string what, std::string remedy, ErrorKind kind = ErrorKind::kRun) {
  return {ReplyKind::kFinal, std::move(what), std::move(remedy), kind};
}

ReplyVerdict lie(std::string what, std::string remedy = "Check the server, or use another",
                 ErrorKind kind = ErrorKind::kRun) {
  return {ReplyKind::kLie, std::move(what), std::move(remedy), kind};
}

// Data that are missing or not permitted: a fault of the source before the run, of the run later.
ErrorKind kind_at(const StoreObject& object) {
  return object.is_open ? ErrorKind::kRun : ErrorKind::kData;
}

// A proxy may do so now and then, so it is asked again.
ReplyVerdict ignored_range(const StoreObject& object, const HttpReply& reply) {
  if (reply.header("x-goog-stored-content-encoding") == "gzip")
    return final_verdict(
        "the object is stored with Content-Encoding: gzip, and Google Cloud Storage decompresses "
        "such objects as a whole",
        "Upload it again without compression: gsutil cp without -z, -j and -Z", kind_at(object));
  const std::string& url = object.redirected.empty() ? object.location.url : object.redirected;
  return lie("the server " + host_of(url) + " ignores ranges: it answers 200 with the whole file",
             "Use a server that supports ranges, such as nginx, or copy the file to a disk",
             kind_at(object));
}

// "gzip" and so on; "" if a reply is not compressed on the way. A bucket's objects may have been
// uploaded with that name, and servers give it for files that are compressed; both send their bytes
// as they are. Some stores name "aws-chunked".
std::string compression_of(const StoreObject& object, const HttpReply& reply) {
  const std::string path = lower_case(object.name);
  if (object.location.is_bucket || is_presigned(object.location.url) || path.ends_with("gz") ||
      path.ends_with(".zst"))
    return "";
  const std::string encoding = lower_case(reply.header("content-encoding"));
  for (const char* name : {"gzip", "br", "deflate", "zstd", "compress"})
    if (encoding.find(name) != std::string::npos) return name;
  return "";
}

// A reply whose body is not of the object, or is not its bytes; kGood if it may be.
ReplyVerdict judge_body(const StoreObject& object, const HttpReply& reply) {
  if (reply.status == 200 && lower_case(reply.header("content-type")).starts_with("text/html"))
    return lie("the server sent a web page instead of the object, perhaps of a login",
               object.location.is_bucket
                   ? "Check that AWS_ENDPOINT_URL is the S3 service, not its console"
                   : "Open the URL in a private window of a browser: it must give the file itself",
               kind_at(object));
  if (const std::string name = compression_of(object, reply); !name.empty())
    return lie("the server sent compressed bytes (Content-Encoding: " + name +
                   "), which are not those of the object",
               "Switch compression off for such files in the server, or upload the object again "
               "without Content-Encoding",
               kind_at(object));
  return {};
}

// Opens an object of so many bytes, or compares its version.
ReplyVerdict take_version(StoreObject& object, uint64_t total, const HttpReply& reply) {
  const std::string modified = reply.header("last-modified");
  const std::string etag = reply.header("etag");
  const auto unmarked = [](std::string_view tag) {  // caches mark some replies, with the same bytes
    return tag.starts_with("W/") ? tag.substr(2) : tag;
  };
  if (!object.is_open) {
    object.size = total;
    object.etag = etag;
    object.modified = modified;
    object.head = reply.body;
    object.is_open = true;
  } else if (!etag.empty() && !object.etag.empty()
                 ? unmarked(etag) != unmarked(object.etag)
                 : !modified.empty() && !object.modified.empty() && modified != object.modified) {
    return final_verdict("the object has changed since the run began: its ETag or date differs",
                         kChanged);
  }
  return {};
}

// Whether a server that ignores ranges has sent the whole object, which was asked for. A longer one
// fills the request that opens it.
bool is_whole_object(const StoreObject& object, uint64_t offset, uint64_t length,
                     const HttpReply& reply) {
  const size_t size = reply.body.size();
  if (offset != 0 || !reply.error.empty() || reply.too_long) return false;
  return object.is_open ? size == object.size
                        : size < length && reply.header("content-length") == std::to_string(size);
}

ReplyVerdict judge_content(StoreObject& object, uint64_t offset, uint64_t length,
                           HttpReply& reply) {
  const std::string header = reply.header("content-range");
  if (header.empty())
    return lie("the server answered 206 without Content-Range, which says what bytes it sent",
               "Check the server, and proxies before it, which may remove the header");
  const auto range = parse_content_range(header);
  std::string text = plain_text(header, " -/*", 70);  // of three numbers
  if (text.empty()) text = "unreadable";
  if (text.ends_with("/*"))
    return lie("the server does not tell the object's size: it answered with \"" + text + "\"",
               "Use a server that tells it, such as nginx, or copy the file to a disk");
  if (!range) return lie("the server answered with the range \"" + text + "\"");
  const uint64_t total = object.is_open ? object.size : range->total;
  if (range->total != total)
    return final_verdict("the object has changed: it has " + std::to_string(range->total) +
                             " bytes instead of " + std::to_string(total),
                         kChanged);
  const uint64_t end = std::min(offset + length, total);
  if (range->first != offset || range->last + 1 != end)
    return lie("the server was asked for bytes " + std::to_string(offset) + "-" +
               std::to_string(end - 1) + ", and answered with \"" + text + "\"");
  if (reply.body.size() != end - offset)
    return lie("the server sent " + std::to_string(reply.body.size()) + " bytes instead of " +
               std::to_string(end - offset));
  return take_version(object, total, reply);
}

ReplyVerdict judge_status(const StoreObject& object, const HttpReply& reply) {
  const std::string code = error_code_of(reply);
  const std::string status = "the server answered " + status_text(reply);
  if (may_pass(reply.status, code)) return {ReplyKind::kRetry, status, "", ErrorKind::kRun};
  const bool denied = is_denied(reply.status, code);
  if ((denied || is_expired(code)) && !object.location.is_bucket &&
      is_presigned(object.location.url))
    return final_verdict(status + ": the URL is signed for a limited time, which may have passed",
                         "Sign it again, and give the new URL with --set data.source=SOURCE, "
                         "which --resume accepts too; or use s3:// or gs:// with keys",
                         kind_at(object));
  if (is_expired(code)) return {ReplyKind::kExpired, status, "", ErrorKind::kRun};
  if (const std::string region = other_region(reply); !region.empty())
    return final_verdict("the bucket is in region " + region, "Set AWS_REGION=" + region,
                         ErrorKind::kUsage);
  if (reply.status / 100 == 3 && !reply.redirect.empty())
    return {ReplyKind::kRedirect, status, "", ErrorKind::kRun};
  if (denied)
    return final_verdict(status + ": access is denied",
                         object.location.is_bucket
                             ? remedy_of_denial(code, "read the object", reply.signed_by)
                             : "Use a URL that can be read without a password",
                         kind_at(object));
  if (reply.status == 404 || reply.status == 410)
    return final_verdict(status + ": there is no such object", kCheckUrl, kind_at(object));
  if (reply.status == 416 && !object.is_open)
    return final_verdict(status + " to a request for the first bytes: the object may be empty",
                         kCheckUrl, ErrorKind::kData);
  if (reply.status == 416 || reply.status == 412)
    return final_verdict(status + ": the object has changed, and is shorter now", kChanged);
  return final_verdict(status, kCheckUrl, kind_at(object));
}

// The text between <NAME> and </NAME> in a body; "" if there is none.
std::string_view element_of(const HttpReply& reply, const std::string& name) {
  const std::string_view text = as_text(reply.body);
  const size_t before = text.find("<" + name + ">");
  if (before == std::string_view::npos) return "";
  const size_t begin = before + name.size() + 2;
  const size_t end = text.find("</" + name + ">", begin);
  return end == std::string_view::npos ? "" : text.substr(begin, end - begin);
}

}  // namespace

std::string error_code_of(const HttpReply& reply) {
  const std::string_view code = element_of(reply, "Code");
  const bool has_digit = std::ranges::any_of(code, [](char c) { return c >= '0' && c <= '9'; });
  return has_digit && code != kBodyDamaged ? "" : plain_text(code, ".", 60);
}

std::string status_text(const HttpReply& reply) {
  const std::string code = error_code_of(reply);
  return std::to_string(reply.status) + (code.empty() ? "" : " " + code);
}

std::string other_region(const HttpReply& reply) {
  if (reply.region.empty() || (reply.status / 100 != 3 && reply.status != 400)) return "";
  std::string named = plain_text(reply.header("x-amz-bucket-region"), "-", 30);
  if (named.empty()) named = plain_text(element_of(reply, "Region"), "-", 30);  // as Garage's
  return named == reply.region ? "" : named;
}

bool may_pass(int status, const std::string& code) {
  constexpr int kNotImplemented = 501;
  return status == 408 || status == 425 || status == 429 ||
         (status >= 500 && status != kNotImplemented) || code == "SlowDown" ||
         code == "RequestTimeout" || code == "Throttling" || code == "InternalError" ||
         code == "ServiceUnavailable" || code == "OperationAborted" || code == "BadDigest" ||
         code == kBodyDamaged;
}

double retry_after(const HttpReply& reply) {
  constexpr double kMost = 60;
  const double seconds = std::strtod(reply.header("retry-after").c_str(), nullptr);
  return std::isfinite(seconds) ? std::clamp(seconds, 0.0, kMost) : 0;
}

bool is_expired(const std::string& code) {
  return code == "ExpiredToken" || code == "ExpiredTokenException" || code == "RequestExpired" ||
         code == "TokenRefreshRequired";
}

bool is_denied(int status, const std::string& code) {
  return status == 401 || status == 403 || code == "InvalidToken";
}

bool is_unknown_key(const std::string& code) {
  return code == "InvalidAccessKeyId" || code == "InvalidToken" || code == "InvalidTokenId";
}

std::string remedy_of_denial(const std::string& code, const std::string& doing,
                             const std::string& signed_by) {
  if (code == "InvalidObjectState")
    return "Restore the object from the archive first (aws s3api restore-object)";
  if (code == "RequestTimeTooSkewed")
    return "Set this machine's clock: signatures of another time are refused";
  if (signed_by.empty())
    return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (for gs:// "
           "GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY): no keys that may be sent there were found, "
           "so the request was not signed";
  if (is_unknown_key(code))
    return "Check or renew " + signed_by + ": the store does not know the key, or no longer does";
  return "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_PROFILE, and that they may " +
         doing;
}

ReplyVerdict judge_reply(StoreObject& object, uint64_t offset, uint64_t length, HttpReply& reply) {
  if (reply.status == 200 || reply.status == 206)
    if (ReplyVerdict verdict = judge_body(object, reply); verdict.kind != ReplyKind::kGood)
      return verdict;
  if (reply.is_range() && reply.too_long)
    return lie("the server sent more bytes than the " + std::to_string(length) +
               " that it was asked for");
  if (reply.status == 200 && !reply.is_range())
    return is_whole_object(object, offset, length, reply)
               ? take_version(object, reply.body.size(), reply)
               : ignored_range(object, reply);
  if (!reply.error.empty()) {
    const std::string what = printable(reply.error);
    if (!reply.remedy.empty()) return final_verdict(what, reply.remedy, kind_at(object));
    return {ReplyKind::kRetry, what, "", ErrorKind::kRun};
  }
  if (reply.is_range()) return judge_content(object, offset, length, reply);
  if (reply.status == 416 && !object.is_open && reply.header("content-range") == "bytes */0") {
    object.is_open = true;  // of no bytes
    return {};
  }
  return judge_status(object, reply);
}

}  // namespace saturate
