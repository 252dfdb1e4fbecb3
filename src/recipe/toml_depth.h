// A check of TOML before it is parsed: toml++ makes a table for each part of a dotted key, and
// frees them recursively, which overflows the stack if there are a million.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "saturate/data/error.h"

namespace saturate {

// The end of the text whose quotes begin at `at`.
inline size_t toml_text_end(std::string_view toml, size_t at) {
  const char quote = toml[at];
  const bool is_long = toml.substr(at, 3) == std::string(3, quote);
  const std::string_view quotes = toml.substr(at, is_long ? 3 : 1);
  for (at += quotes.size(); at < toml.size(); ++at) {
    if (toml[at] == '\\' && quote == '"') {
      ++at;  // and what follows
    } else if (toml[at] == '\n' && !is_long) {
      return at;  // it has no end, which the parser refuses
    } else if (toml.substr(at).starts_with(quotes)) {
      at += quotes.size();
      for (int own = 0; is_long && own < 2 && toml.substr(at).starts_with(quote); ++own) ++at;
      return at;
    }
  }
  return toml.size();
}

// Where a key has more dots than any of a recipe or ladder; npos if none has.
inline size_t find_deep_key(std::string_view toml) {
  constexpr int kMostDots = 8;
  int dots = 0;  // of this key
  for (size_t at = 0; at < toml.size();) {
    const char c = toml[at];
    if (c == '"' || c == '\'') {
      at = toml_text_end(toml, at);
      continue;
    }
    if (c == '#') {
      at = std::min(toml.find('\n', at), toml.size());
      continue;
    }
    if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) dots = 0;
    if (c == '.' && ++dots > kMostDots) return at;
    ++at;
  }
  return std::string_view::npos;
}

// Fails with kUsage, naming the line of `where`, if there is such a key.
inline void require_shallow(std::string_view toml, const std::string& where) {
  const size_t at = find_deep_key(toml);
  if (at == std::string_view::npos) return;
  const auto lines = std::ranges::count(toml.substr(0, at), '\n');
  fail(ErrorKind::kUsage, "a key has more than eight dots", where + ":" + std::to_string(lines + 1),
       "Correct the line");
}

}  // namespace saturate
