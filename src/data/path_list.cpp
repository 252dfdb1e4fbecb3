#include "data/path_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kMaxPaths = 100'000;

// {FIRST..LAST} in a path.
struct NumberSpan {
  size_t begin, end;  // of the braces, in the path
  uint64_t first, last;
  size_t width;  // minimum number of digits
};

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  if (text.empty() || text.size() > 9) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<NumberSpan> find_range(std::string_view path) {
  for (size_t open = path.find('{'); open != std::string_view::npos;
       open = path.find('{', open + 1)) {
    const size_t close = path.find('}', open);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view inner = path.substr(open + 1, close - open - 1);
    const size_t dots = inner.find("..");
    if (dots == std::string_view::npos) continue;
    const auto first = parse_number(inner.substr(0, dots));
    const auto last = parse_number(inner.substr(dots + 2));
    if (!first || !last) continue;
    // A number written without leading zeros requests no padding.
    const auto width_of = [](std::string_view digits) {
      return digits.size() > 1 && digits.front() == '0' ? digits.size() : size_t{1};
    };
    const size_t width =
        std::max(width_of(inner.substr(0, dots)), width_of(inner.substr(dots + 2)));
    return NumberSpan{open, close + 1, *first, *last, width};
  }
  return std::nullopt;
}

void expand(Env& env, const std::string& path, std::string_view scheme,
            std::vector<std::string>& out) {
  const auto range = find_range(path);
  if (!range || env.exists(path)) {
    out.push_back(path);
    return;
  }
  if (range->first > range->last || range->last - range->first + out.size() >= kMaxPaths)
    fail(ErrorKind::kUsage,
         "range " + path.substr(range->begin, range->end - range->begin) +
             " counts down or names more than 100000 paths",
         std::string(scheme) + ":" + path, "Write {FIRST..LAST}, as {000..003}");
  for (uint64_t i = range->first; i <= range->last; ++i) {
    std::string number = std::to_string(i);
    if (number.size() < range->width) number.insert(0, range->width - number.size(), '0');
    expand(env, path.substr(0, range->begin) + number + path.substr(range->end), scheme, out);
  }
}

}  // namespace

std::vector<std::string> expand_paths(Env& env, const std::string& rest, std::string_view scheme) {
  if (!rest.empty() && env.exists(rest)) return {rest};
  std::vector<std::string> paths;
  for (size_t start = 0; start <= rest.size();) {
    const size_t comma = std::min(rest.find(',', start), rest.size());
    if (comma == start)
      fail(ErrorKind::kUsage, std::string(scheme) + ": has an empty path", "data.source",
           "Write " + std::string(scheme) + ":PATH[,PATH...]");
    expand(env, rest.substr(start, comma - start), scheme, paths);
    start = comma + 1;
  }
  return paths;
}

std::string take_option(std::string& rest, std::string_view key) {
  const std::string mark = std::string(",").append(key).append("=");
  const size_t at = rest.find(mark);
  if (at == std::string::npos) return {};
  const size_t end = std::min(rest.find(',', at + 1), rest.size());
  std::string value = rest.substr(at + mark.size(), end - at - mark.size());
  rest.erase(at, end - at);
  return value;
}

}  // namespace saturate
