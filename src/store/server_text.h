// Text that servers have sent, before it appears in messages: short, printable, and without secrets
// of the request, which a server that lies could send back.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/credentials.h"
#include "store/transfers.h"

namespace saturate {

// The key, its secret and token, and the values of the URL's query, which may be a signature.
std::vector<std::string> secrets_of(const std::string& url,
                                    const std::optional<Credentials>& signer);
std::string without_secrets(std::string text, const std::vector<std::string>& secrets);
// Replaces secrets in all parts of a reply that messages may show: its headers, its error, and its
// body unless that is the range that was asked for. Short ones stay in the body of a good reply,
// and all in headers that are compared with other values, such as Content-Range: a query's value
// may be one of their numbers.
void hide_secrets(HttpReply& reply, const std::vector<std::string>& secrets);

// The text, printable, if it is short and has only letters, digits and the characters of `others`;
// else "".
std::string plain_text(std::string_view text, std::string_view others, size_t most);

}  // namespace saturate
