// npy:FILE.npy[,FILE.npy...] or npy:FOLDER, and npz:FILE.npz: arrays of numpy, [samples, ...] each.
#include <algorithm>
#include <utility>

#include "base/thread_pool.h"
#include "data/array_source.h"
#include "data/npy_format.h"
#include "data/path_list.h"
#include "data/zip_directory.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr std::string_view kEnding = ".npy";

// "a/x.npy" is the array x.
std::string array_name(std::string_view path) {
  path.remove_prefix(path.rfind('/') + 1);
  if (path.ends_with(kEnding)) path.remove_suffix(kEnding.size());
  return std::string(path);
}

StoredArray open_npy_array(Env& env, const std::string& url) {
  std::shared_ptr<const ReadableFile> file = env.open_readable(url);
  const std::string path = store_name(url);
  std::vector<std::byte> begin(std::min<uint64_t>(file->size(), kNpyHeaderBytes));
  file->read_at(0, begin);
  const NpyHeader header = parse_npy_header(begin, file->size(), path);
  return stored_in(std::move(file), header.values_at, array_name(path), header.layout);
}

std::vector<std::string> find_npy_files(Env& env, const std::string& rest) {
  std::vector<std::string> files;
  for (const std::string& path : expand_paths(env, rest, "npy")) {
    if (!env.is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const FileInfo& info : env.list(path))
      if (!info.is_directory && info.name.ends_with(kEnding))
        files.push_back(path + "/" + info.name);
    if (files.size() == before)
      fail(ErrorKind::kData, "folder holds no .npy file", path, "Check data.source");
  }
  return files;
}

StoredArray open_member(const std::shared_ptr<const ReadableFile>& file, const ZipMember& member,
                        const std::string& path) {
  const std::string where = path + ":" + member.name, name = array_name(member.name);
  // Larger ones are read sample by sample, and their checksum is not verified.
  constexpr uint64_t kMostInMemory = uint64_t{64} << 20;
  if (member.is_deflated || member.size <= kMostInMemory) {
    std::vector<std::byte> bytes = read_member(member, *file, path);
    const NpyHeader header = parse_npy_header(
        std::span(bytes).first(std::min(bytes.size(), kNpyHeaderBytes)), bytes.size(), where);
    bytes.erase(bytes.begin(), bytes.begin() + ptrdiff_t(header.values_at));
    return stored_in_memory(std::move(bytes), name, header.layout);
  }
  const uint64_t offset = offset_of(member, *file, path);
  std::vector<std::byte> begin(std::min<uint64_t>(member.size, kNpyHeaderBytes));
  file->read_at(offset, begin);
  const NpyHeader header = parse_npy_header(begin, member.size, where);
  return stored_in(file, offset + header.values_at, name, header.layout);
}

}  // namespace

std::unique_ptr<Dataset> open_npy(Env& env, const std::string& rest) {
  std::string list = rest;
  const ArrayChoice choice = take_array_choice(list);
  const std::vector<std::string> files = find_npy_files(env, list);
  std::vector<StoredArray> arrays(files.size());
  parallel_for(files.size(), opening_threads(files),
               [&](size_t i) { arrays[i] = open_npy_array(env, files[i]); });
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string& name = arrays[i].field.name;
    const auto same = [&](const StoredArray& array) { return array.field.name == name; };
    if (std::find_if(arrays.begin(), arrays.begin() + ptrdiff_t(i), same) !=
        arrays.begin() + ptrdiff_t(i))
      fail(ErrorKind::kUsage, "two files hold an array \"" + name + "\"", store_name(files[i]),
           "Rename one of the files");
  }
  return make_array_source(std::move(arrays), choice,
                           store_name(files.size() == 1 ? files[0] : list));
}

std::unique_ptr<Dataset> open_npz(Env& env, const std::string& rest) {
  std::string url = rest;
  const ArrayChoice choice = take_array_choice(url);
  const std::shared_ptr<const ReadableFile> file = env.open_readable(url);
  const std::string path = store_name(url);
  std::vector<StoredArray> arrays;
  for (const ZipMember& member : read_zip_directory(*file, path)) {
    const std::string name = array_name(member.name);
    const bool wanted = choice.fields.empty() || std::ranges::count(choice.fields, name) > 0;
    const auto same = [&](const StoredArray& array) { return array.field.name == name; };
    if (std::ranges::any_of(arrays, same))
      fail(ErrorKind::kData, "the archive holds the array \"" + name + "\" twice", path,
           "Write it again with numpy.savez");
    if (wanted) arrays.push_back(open_member(file, member, path));
  }
  if (arrays.empty())
    fail(ErrorKind::kData,
         choice.fields.empty() ? "the archive holds no array"
                               : "the archive holds none of the fields",
         path, "Write it with numpy.savez, as numpy.savez(\"a.npz\", x=x, y=y)");
  return make_array_source(std::move(arrays), choice, path);
}

}  // namespace saturate
