#include "data/path_list.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "data/bytes.h"
#include "data/shard_format.h"
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

uint64_t take_number(std::string& rest, std::string_view key, const NumberRange& range,
                     std::string_view scheme) {
  const std::string text = take_option(rest, key);
  if (text.empty()) return range.otherwise;
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ptr == end && parsed.ec == std::errc() && value >= range.least && value <= range.most)
    return value;
  const std::string from = std::to_string(range.least);
  const std::string wanted =
      "a whole number from " + from +
      (range.most == UINT64_MAX ? " on" : " to " + std::to_string(range.most));
  fail(ErrorKind::kUsage,
       std::string(scheme).append(" ").append(key) + "=" + text + " is not " + wanted,
       "data.source", "Set " + std::string(key) + " to " + wanted);
}

namespace {

bool has(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

bool is_idx_name(const std::string& name) {
  return has(name, "images") && has(name, "idx3");
}

bool is_cifar_name(const std::string& name) {
  return name == "train.bin" || name == "test.bin" || name == "test_batch.bin" ||
         (name.starts_with("data_batch_") && name.ends_with(".bin"));
}

// Any other folder is opened as class folders, which reports missing ones.
std::string scheme_of_folder(Env& env, const std::string& path) {
  bool images = false, masks = false;
  for (const FileInfo& info : env.list(path)) {
    images = images || (info.is_directory && info.name == "images");
    masks = masks || (info.is_directory && info.name == "masks");
    if (info.is_directory) continue;
    if (info.name == "data.mdb") return "lmdb";
    if (info.name.ends_with(".shard")) return "shard";
    if (is_idx_name(info.name)) return "idx";
    if (is_cifar_name(info.name)) return "cifar";
  }
  return images && masks ? "masks" : "folder";
}

// By its magic number, else by its name.
std::string scheme_of_file(Env& env, const std::string& path) {
  constexpr size_t kTarMagic = 257;  // offset of "ustar" in a header block
  std::array<std::byte, kTarMagic + 5> begin{};
  const auto file = env.open_readable(path);
  const size_t size = size_t(std::min<uint64_t>(file->size(), begin.size()));
  file->read_at(0, std::span(begin).first(size));
  const std::string_view text = as_text(begin);
  const std::string name = path.substr(path.rfind('/') + 1);
  if (text.starts_with(kShardMagic) || name.ends_with(".shard")) return "shard";
  if (text.substr(kTarMagic) == "ustar" || has(name, ".tar") || name.ends_with(".tgz"))
    return "tar";
  if (text.starts_with(std::string_view("\0\0\x08\x03", 4)) || is_idx_name(name)) return "idx";
  if (text.starts_with("\x93NUMPY") || name.ends_with(".npy")) return "npy";
  for (const char* ending : {"npz", "safetensors", "csv"})
    if (name.ends_with(std::string(".") + ending)) return ending;
  if (name.ends_with(".tsv")) return "csv";
  if (name.ends_with(".mdb") || name.ends_with(".lmdb")) return "lmdb";
  return name.ends_with(".bin") ? "cifar" : "";
}

}  // namespace

std::string scheme_of_path(Env& env, const std::string& rest) {
  if (rest.empty() || rest.front() == ',') return "";
  const std::string first =
      env.exists(rest) ? rest : expand_paths(env, rest.substr(0, rest.find(',')), "source").front();
  if (env.is_directory(first)) return scheme_of_folder(env, first);
  return env.exists(first) ? scheme_of_file(env, first) : "";
}

}  // namespace saturate
