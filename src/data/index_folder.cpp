#include "data/index_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/user_cache.h"
#include "data/sources.h"
#include "image/scan_index.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr uint64_t kMostFolderBytes = uint64_t{16} << 30;
constexpr const char* kIndexEnding = ".points";

std::string index_folder() {
  return user_cache_folder("index");
}

// The parts of a source's paths, made absolute, so that they do not depend on the current folder.
std::string absolute_source(Env& env, const std::string& uri) {
  const std::string source = without_split(uri);  // split:train,1/5,SOURCE has the index of SOURCE
  const std::string scheme = scheme_of_source(env, source);
  const std::string rest =
      source.starts_with(scheme + ":") ? source.substr(scheme.size() + 1) : source;
  std::string all = scheme;
  for (const std::string& part : split_text(rest, ',')) {
    const bool is_option = part.find('=') < part.find('/');
    all += "\n" + (is_option || part.empty() ? part
                   : is_store_url(part)      ? store_name(part)
                                             : path_without_links(part));
  }
  return all;
}

struct IndexInFolder {
  std::string path;
  uint64_t bytes = 0;
  std::filesystem::file_time_type used = {};  // Env has no such clock
};

std::vector<IndexInFolder> list_indices(Env& env, const std::string& folder) {
  std::vector<IndexInFolder> all;
  for (const FileInfo& info : env.list(folder)) {
    if (!info.name.ends_with(kIndexEnding)) continue;
    IndexInFolder one{folder + "/" + info.name};
    std::error_code gone;
    one.bytes = std::filesystem::file_size(one.path, gone);
    if (!gone) one.used = std::filesystem::last_write_time(one.path, gone);
    if (!gone) all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

std::string path_without_links(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed);
  const std::filesystem::path real = std::filesystem::weakly_canonical(absolute, failed);
  return without_end_slashes((failed ? absolute.lexically_normal() : real).string());
}

std::string index_path_of(Env& env, const std::string& uri) {
  const std::string folder = index_folder();
  if (folder.empty()) return "";
  const std::string source = absolute_source(env, uri);
  std::string name = source.substr(source.find_last_of("/\n") + 1).substr(0, 40);
  for (char& c : name)
    if (!is_letter_or_digit(c) && c != '.' && c != '-') c = '_';
  return fmt::format("{}/{}-{:016x}{}", folder, name,
                     scan_key(std::as_bytes(std::span(source))).checksums, kIndexEnding);
}

bool is_in_index_folder(const std::string& path) {
  return !path.empty() && parent_folder(path) == index_folder();
}

void mark_index_used(const std::string& path) {
  std::error_code ignored;
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now(), ignored);
}

void trim_index_folder(Env& env, const std::string& own) {
  std::vector<IndexInFolder> all;
  try {
    all = list_indices(env, parent_folder(own));
  } catch (const Error&) {  // the next one to save tries it again
    return;
  }
  std::ranges::sort(all, {}, &IndexInFolder::used);
  uint64_t bytes = 0;
  for (const IndexInFolder& one : all) bytes += one.bytes;
  for (const IndexInFolder& one : all) {
    if (bytes <= kMostFolderBytes) return;
    if (one.path == own) continue;
    try {
      const auto held = env.lock(one.path + ".lock");
      env.remove(one.path);
      env.remove(one.path + ".lock");
      bytes -= one.bytes;
    } catch (const Error&) {  // another process saves it
    }
  }
}

}  // namespace saturate
