#include "data/path_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "data/shard_format.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr size_t kMaxPaths = 100'000;

// {FIRST..LAST} in a path.
struct NumberSpan {
  size_t begin, end;  // of the braces, in the path
  uint64_t first, last;
  size_t width;  // minimum number of digits
};

std::optional<uint64_t> short_number(std::string_view text) {
  return text.size() > 9 ? std::nullopt : parsed_number<uint64_t>(text);
}

std::optional<NumberSpan> find_range(std::string_view path) {
  for (size_t open = path.find('{'); open != std::string_view::npos;
       open = path.find('{', open + 1)) {
    const size_t close = path.find('}', open);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view inner = path.substr(open + 1, close - open - 1);
    const size_t dots = inner.find("..");
    if (dots == std::string_view::npos) continue;
    const auto first = short_number(inner.substr(0, dots));
    const auto last = short_number(inner.substr(dots + 2));
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
    const std::string number = fmt::format("{:0{}}", i, range->width);
    expand(env, path.substr(0, range->begin) + number + path.substr(range->end), scheme, out);
  }
}

// {a,b} of a shell is two parts of a list.
bool opens_brace(std::string_view path) {
  const size_t open = path.rfind('{');
  return open != std::string_view::npos && path.find('}', open) == std::string_view::npos;
}

// Refuses what no source opens: a wildcard, the scheme written twice, a space before the path.
void check_path(Env& env, const std::string& path, const std::string& scheme) {
  if (env.exists(path)) return;
  if (path.starts_with(scheme + ":"))
    fail(ErrorKind::kUsage, scheme + ": is written before the first path only", path,
         "Write " + scheme + ":PATH[,PATH...]");
  if (path.front() == ' ')
    fail(ErrorKind::kUsage, "the space before the path would be part of it", path,
         "Write " + scheme + ":PATH[,PATH...] without spaces");
  if (!is_store_url(path) && path.find('*') != std::string::npos)
    fail(ErrorKind::kUsage, "wildcards are not expanded in a source", path,
         "Write {FIRST..LAST}, as {000..003}, the folder, or each path, separated by commas");
}

// A source's paths and options as a message names them: a query of a URL may be a signature.
std::string shown_list(const std::string& rest) {
  return rest.substr(0, rest.find('?'));
}

// Refuses a part of a list, after another one, that is no path: the rest of a query with a comma or
// of {a,b}, or an unknown option.
void check_part(Env& env, const std::string& before, const std::string& part,
                const std::string& scheme) {
  if (is_store_url(part) || find_range(part) || env.exists(part)) return;
  if (is_web_url(before) && before.find('?') != std::string::npos)
    fail(ErrorKind::kUsage,
         "a comma in the query separates paths, and what follows it is neither a URL nor a file",
         store_name(before), "Write a comma of a query as %2C");
  if (is_store_url(before) && opens_brace(before))
    fail(ErrorKind::kUsage, "braces expand to numbers only, and a comma in them separates paths",
         store_name(before) + ",...", "Write {FIRST..LAST}, as {000..003}, or each URL whole");
  const std::string key = part.substr(0, part.find_first_of("=/."));
  if (part.size() > key.size() && part[key.size()] == '=')
    fail(ErrorKind::kUsage, scheme + ": has no option " + key + "=", store_name(before),
         "Remove it; `saturate list sources` prints the options of each source");
}

}  // namespace

std::vector<std::string> expand_paths(Env& env, const std::string& rest, std::string_view scheme) {
  if (!rest.empty() && env.exists(rest)) return {rest};
  std::vector<std::string> paths;
  const std::vector<std::string> parts = split_text(rest, ',');
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty())
      fail(ErrorKind::kUsage, std::string(scheme) + ": has an empty path",
           std::string(scheme) + ":" + shown_list(rest),
           "Write " + std::string(scheme) + ":PATH[,PATH...]");
    if (i > 0) check_part(env, parts[i - 1], parts[i], std::string(scheme));
    expand(env, parts[i], scheme, paths);
  }
  for (const std::string& path : paths) check_path(env, path, std::string(scheme));
  return paths;
}

int opening_threads(const std::vector<std::string>& paths) {
  constexpr int kFarThreads = 128;
  constexpr size_t kMostThreads = 32, kPathsOfThread = 8;  // of local paths
  if (std::ranges::any_of(paths, is_store_url)) return kFarThreads;
  return int(std::clamp(paths.size() / kPathsOfThread, size_t{1}, kMostThreads));
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
  bool images = false, masks = false, folders = false, tars = false;
  for (const FileInfo& info : env.list(path)) {
    images = images || (info.is_directory && info.name == "images");
    masks = masks || (info.is_directory && info.name == "masks");
    folders = folders || info.is_directory;
    if (info.is_directory) continue;
    if (info.name == "data.mdb") return "lmdb";
    if (info.name.ends_with(".shard")) return "shard";
    tars = tars || info.name.ends_with(".tar");
    if (is_idx_name(info.name)) return "idx";
    if (is_cifar_name(info.name)) return "cifar";
  }
  if (tars && !folders) return "tar";
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

std::vector<std::string> find_files(Env& env, const std::string& rest, const std::string& scheme) {
  std::vector<std::string> files;
  for (const std::string& path : expand_paths(env, rest, scheme)) {
    if (!env.is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const FileInfo& info : env.list(path))
      if (!info.is_directory && info.name.ends_with("." + scheme))
        files.push_back(path + "/" + info.name);
    if (files.size() == before)
      fail(ErrorKind::kData, "folder holds no ." + scheme + " file", path,
           "Check the path, or name another scheme than " + scheme + ":");
  }
  return files;
}

std::vector<std::string> take_names(std::string& rest, const std::string& key) {
  const std::string names = take_option(rest, key);
  return names.empty() ? std::vector<std::string>() : split_text(names, '+');
}

std::string take_word(std::string& rest, const std::string& key, const std::string& first,
                      const std::string& second) {
  const std::string list = rest;
  std::string word = take_option(rest, key);
  if (!word.empty() && word != first && word != second)
    fail(ErrorKind::kUsage, key + "=" + word + " is neither " + first + " nor " + second,
         shown_list(list), "Write " + key + "=" + first + " or " + key + "=" + second);
  return word;
}

std::optional<size_t> take_number(std::string& rest, const std::string& key, size_t least,
                                  size_t most, const char* remedy) {
  const std::string list = rest, text = take_option(rest, key);
  const auto number = parsed_number<size_t>(text);
  if (text.empty() || (number && *number >= least && *number <= most)) return number;
  fail(ErrorKind::kUsage,
       key + "=" + text + " is not a whole number from " + std::to_string(least) +
           (most < kAnyNumber ? " to " + std::to_string(most) : " on"),
       shown_list(list), remedy);
}

std::string take_folder(const std::string& rest, const std::string& scheme) {
  if (rest.empty())
    fail(ErrorKind::kUsage, "the source needs a path", scheme + ":", "Write " + scheme + ":PATH");
  return without_end_slashes(rest);
}

std::string scheme_of_path(Env& env, const std::string& rest) {
  if (rest.empty() || rest.front() == ',') return "";
  const std::string first =
      env.exists(rest) ? rest : expand_paths(env, rest.substr(0, rest.find(',')), "source").front();
  if (env.is_directory(first)) return scheme_of_folder(env, first);
  return env.exists(first) ? scheme_of_file(env, first) : "";
}

}  // namespace saturate
