#include "base/url_text.h"

#include <algorithm>

#include "base/text.h"

namespace saturate {
namespace {

constexpr std::string_view kSchemeEnd = "://";

struct HostStart {
  size_t begin, host;   // after the scheme, and after user information
  bool is_cut = false;  // a secret may follow the host's colon
};

// A password may hold "/", which its URL should have as %2F: then no port follows the colon.
HostStart find_host(std::string_view url) {
  const size_t mark = url.find(kSchemeEnd);
  if (mark == std::string_view::npos) return {0, 0};
  const size_t begin = mark + kSchemeEnd.size();
  const std::string_view rest = url.substr(begin);
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  const size_t colon = authority.rfind(':');
  const std::string scheme = lower_case(url.substr(0, mark));
  const bool is_bucket = scheme.ends_with("s3") || scheme.ends_with("gs");  // which has no port
  const bool has_port =
      colon == std::string_view::npos ||
      (!is_bucket && (authority.front() == '[' ||
                      authority.find_first_not_of("0123456789", colon + 1) == authority.npos));
  const size_t at = (has_port ? authority : rest).rfind('@');
  if (at != std::string_view::npos) return {begin, begin + at + 1};
  return {begin, begin, !has_port};
}

}  // namespace

bool is_signing(std::string_view parameter) {
  // For Amazon, Google, CloudFront and Azure, whose dates are st and se.
  constexpr std::string_view kSigning[] = {"x-amz-",
                                           "x-goog-",
                                           "awsaccesskeyid=",
                                           "googleaccessid=",
                                           "signature=",
                                           "expires=",
                                           "key-pair-id=",
                                           "policy=",
                                           "sig=",
                                           "st=",
                                           "se=",
                                           "token="};
  return std::ranges::any_of(kSigning, [&](std::string_view start) {
    return lower_case(parameter.substr(0, start.size())) == start;
  });
}

bool has_signature(std::string_view text) {
  for (size_t at = text.find_first_of("?&"); at != text.npos; at = text.find_first_of("?&", at + 1))
    if (is_signing(text.substr(at + 1))) return true;
  return false;
}

bool has_user_info(std::string_view url) {
  const HostStart found = find_host(url);
  return found.host > found.begin || found.is_cut;
}

std::string url_name(std::string_view url) {
  const HostStart found = find_host(url);
  const std::string before = lower_case(url.substr(0, found.begin));
  const std::string_view rest = url.substr(found.host);
  size_t end = rest.size();
  if (before.ends_with("http://") || before.ends_with("https://"))
    end = std::min(end, rest.find_first_of("?#"));
  else if (has_signature(rest))
    end = rest.find_first_of("?&");
  if (found.is_cut) end = std::min(end, rest.find(':'));
  return std::string(url.substr(0, found.begin)).append(rest.substr(0, end));
}

}  // namespace saturate
