#include "store/server_text.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr size_t kShortestSecret = 8;  // shorter ones, such as a number of seconds, are none
// Good replies hold names, in which a shorter key ID, such as "datascience", may be a word.
constexpr size_t kShortestInNames = 16;
constexpr std::string_view kHidden = "***";
constexpr std::string_view kCompared[] = {"content-length", "content-range", "etag",
                                          "last-modified"};

void add(std::vector<std::string>& secrets, const std::string& secret) {
  if (secret.size() < kShortestSecret) return;
  secrets.push_back(secret);
  if (std::string escaped = encode_query(secret); escaped != secret)
    secrets.push_back(std::move(escaped));
}

template <class Text>
void hide(Text& text, std::string_view secret) {
  using Unit = typename Text::value_type;
  const auto units = [](std::string_view of) {
    const auto* begin = reinterpret_cast<const Unit*>(of.data());
    return std::pair(begin, begin + of.size());
  };
  const auto [begin, end] = units(secret);
  auto found = std::search(text.begin(), text.end(), begin, end);
  if (found == text.end()) return;
  Text kept;
  for (auto at = text.begin();; found = std::search(at, text.end(), begin, end)) {
    kept.insert(kept.end(), at, found);
    if (found == text.end()) break;
    const auto [first, last] = units(kHidden);
    kept.insert(kept.end(), first, last);
    at = found + ptrdiff_t(secret.size());
  }
  text = std::move(kept);
}

}  // namespace

std::vector<std::string> secrets_of(const std::string& url,
                                    const std::optional<Credentials>& signer) {
  std::vector<std::string> secrets;
  if (signer)
    for (const std::string* secret : {&signer->secret, &signer->token, &signer->key})
      add(secrets, *secret);
  for (size_t at = url.find('?'); at < url.size();) {
    const size_t end = std::min(url.find('&', at + 1), url.size());
    const size_t value = url.find('=', at);
    if (value < end) add(secrets, url.substr(value + 1, end - value - 1));
    at = end;
  }
  return secrets;
}

std::string without_secrets(std::string text, const std::vector<std::string>& secrets) {
  for (const std::string& secret : secrets) hide(text, secret);
  return text;
}

void hide_secrets(HttpReply& reply, const std::vector<std::string>& secrets) {
  const bool is_good = reply.status / 100 == 2;
  for (const std::string& secret : secrets) {
    hide(reply.error, secret);
    if (!reply.is_range() && !(is_good && secret.size() < kShortestInNames))
      hide(reply.body, secret);
    for (auto& [name, value] : reply.headers)
      if (std::ranges::count(kCompared, std::string_view(name)) == 0) hide(value, secret);
  }
}

std::string plain_text(std::string_view text, std::string_view others, size_t most) {
  const bool is_plain = text.size() <= most && std::ranges::all_of(text, [&](char c) {
                          return is_letter_or_digit(c) || others.find(c) != std::string_view::npos;
                        });
  return is_plain ? std::string(text) : "";
}

}  // namespace saturate
