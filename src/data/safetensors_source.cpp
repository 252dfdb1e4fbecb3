// safetensors:FILE: its tensors, [samples, ...] each.
#include <algorithm>
#include <utility>

#include "data/array_source.h"
#include "data/bytes.h"
#include "data/elements.h"
#include "data/path_list.h"
#include "data/read_undamaged.h"
#include "data/safetensors_header.h"
#include "saturate/data/error.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr uint64_t kMaxHeader = 100 << 20;  // bytes, the limit of the reference implementation

SafetensorsHeader read_header(const ReadableFile& file, const std::string& path,
                              uint64_t& values_at) {
  std::vector<std::byte> length(sizeof values_at);
  if (file.size() >= length.size()) file.read_at(0, length);
  const uint64_t bytes = ByteReader(length).number<uint64_t>();
  if (file.size() < length.size() || bytes > kMaxHeader || bytes > file.size() - length.size())
    fail(ErrorKind::kData, "not a valid safetensors file: its header is truncated or too long",
         path, "Use another copy of the file, or write it again");
  values_at = length.size() + bytes;
  return read_undamaged(file, length.size(), bytes, [&] {
    std::vector<std::byte> header(bytes);
    file.read_at(length.size(), header);
    try {
      return parse_safetensors_header(std::string(as_text(header)), file.size() - values_at, path);
    } catch (const Error& error) {
      fail(ErrorKind::kData, error.reason(), path, error.remedy());
    }
  });
}

}  // namespace

std::unique_ptr<Dataset> open_safetensors(Env& env, const std::string& rest) {
  std::string url = rest;
  const ArrayChoice choice = take_array_choice(url);
  const std::shared_ptr<const ReadableFile> file = env.open_readable(url);
  const std::string path = store_name(url);
  uint64_t values_at = 0;
  std::vector<StoredArray> arrays;
  for (const SafetensorsEntry& entry : read_header(*file, path, values_at).entries) {
    if (!choice.fields.empty() && std::ranges::count(choice.fields, entry.name) == 0) continue;
    ArrayLayout layout;
    layout.type = find_element(&ElementRow::safetensors, entry.type)->type;
    layout.shape = entry.shape;
    const std::string where = path + ":" + quoted_name(entry.name);
    measure(layout, where);
    arrays.push_back(stored_in(file, values_at + entry.begin, entry.name, layout, where));
  }
  if (arrays.empty())
    fail(ErrorKind::kData,
         choice.fields.empty() ? "the file holds no tensor" : "the file holds none of the fields",
         path, "Write it with safetensors.numpy.save_file");
  return make_array_source(std::move(arrays), choice, path);
}

}  // namespace saturate
