#include "data/plain_path.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/bytes.h"
#include "data/path_list.h"
#include "data/shard_format.h"

namespace saturate {
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
