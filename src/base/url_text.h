// The parts of URLs that may be secret: user information, and queries with a signature.
#pragma once

#include <string>
#include <string_view>

namespace saturate {

// Whether a parameter of a query, as NAME=VALUE, belongs to a signature or is a token.
bool is_signing(std::string_view parameter);
// Whether such a parameter follows a "?" or "&" in the text.
bool has_signature(std::string_view text);

// Whether a user name or password comes before the host or bucket, as in s3://KEY:SECRET@BUCKET/X,
// or may do so: a colon follows the host without a port.
bool has_user_info(std::string_view url);

// The URL for messages: without user information, without the query and fragment of http(s), and
// without a query that has_signature(). Other text before its scheme is kept.
std::string url_name(std::string_view url);

}  // namespace saturate
