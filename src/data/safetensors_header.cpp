#include "data/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "data/elements.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using nlohmann::json;

// {name: {"shape": [...]}} is three deep; anything deeper is not a safetensors header.
constexpr int kMaxHeaderDepth = 3;
// The maximum of torch's iterators.
constexpr size_t kMaxDimensions = 64;

struct TensorPlace {
  const std::string& path;
  const std::string& tensor;
  [[noreturn]] void fail(const std::string& what) const {
    fail_safetensors("tensor " + quoted_name(tensor) + " " + what, path);
  }
};

// The parser alone would silently keep the last duplicate.
json parse_strictly(const std::string& text, const std::string& path) {
  std::vector<std::set<std::string>> keys;  // seen so far, per open object
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxHeaderDepth) fail_safetensors("the header is nested too deep", path);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        fail_safetensors("the header has " + quoted_name(key) + " twice", path);
    }
    return true;
  };
  if (!text.starts_with('{')) fail_safetensors("the header does not start with {", path);
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    fail_safetensors("the header is not valid JSON at byte " + std::to_string(error.byte), path);
  } catch (const json::exception&) {
    fail_safetensors("the header has a number out of range", path);
  }
}

const json& member(const json& object, const char* key, const TensorPlace& place) {
  const auto found = object.find(key);
  if (found == object.end()) place.fail(std::string("has no ") + key);
  return *found;
}

// The shape, and its size in `bytes`. Zeros count as ones in the overflow check, because torch
// multiplies such shapes out for its strides.
std::vector<int64_t> parse_shape(const json& value, int64_t element_bytes, uint64_t& bytes,
                                 const TensorPlace& place) {
  if (!value.is_array() || value.size() > kMaxDimensions) place.fail("has no valid shape");
  std::vector<int64_t> shape;
  int64_t product = element_bytes;
  bool empty = false;
  for (const auto& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t(INT64_MAX))
      place.fail("has no valid shape");
    shape.push_back(item.get<int64_t>());
    empty = empty || shape.back() == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(1, shape.back()), &product))
      place.fail("has a shape too large to count");
  }
  bytes = empty ? 0 : uint64_t(product);
  return shape;
}

SafetensorsEntry parse_entry(const json& value, const TensorPlace& place) {
  if (!value.is_object()) place.fail("is not described by an object");
  const json& dtype = member(value, "dtype", place);
  const ElementRow* type = dtype.is_string() ? find_element(&ElementRow::safetensors,
                                                            dtype.get_ref<const std::string&>())
                                             : nullptr;
  if (type == nullptr)
    place.fail("has the dtype " + quoted_name(dtype.is_string() ? std::string(dtype) : "") +
               ", which is not supported");
  uint64_t bytes = 0;
  auto shape = parse_shape(member(value, "shape", place), int64_t(type->bytes), bytes, place);
  const auto& offsets = member(value, "data_offsets", place);
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    place.fail("has no valid data_offsets");
  const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end) place.fail("ends before it begins");
  if (end - begin != bytes)
    place.fail("has a shape of " + std::to_string(bytes) + " bytes but " +
               std::to_string(end - begin) + " bytes of data");
  return {place.tensor, type->safetensors, std::move(shape), begin, end};
}

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& path) {
  if (!value.is_object()) fail_safetensors("__metadata__ is not an object", path);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      fail_safetensors("the metadata " + quoted_name(key) + " is not text", path);
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// Sorted by offset, the tensors must be contiguous from 0 to `data_bytes`.
void check_cover(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes,
                 const std::string& path) {
  std::ranges::stable_sort(entries, {},
                           [](const auto& entry) { return std::pair(entry.begin, entry.end); });
  uint64_t position = 0;
  for (const auto& entry : entries) {
    const TensorPlace place{path, entry.name};
    if (entry.end > data_bytes) place.fail("lies outside the file");
    if (entry.begin < position) place.fail("overlaps the one before it");
    if (entry.begin > position) place.fail("leaves a hole before it");
    position = entry.end;
  }
  if (position != data_bytes)
    fail_safetensors(std::to_string(data_bytes - position) + " bytes belong to no tensor", path);
}

}  // namespace

std::string quoted_name(const std::string& name) {
  constexpr size_t kLongest = 200;
  const auto replace = json::error_handler_t::replace;
  return json(name.substr(0, kLongest)).dump(-1, ' ', /*ensure_ascii=*/true, replace);
}

void fail_safetensors(const std::string& what, const std::string& path) {
  fail(ErrorKind::kRun, "not a valid safetensors file: " + what, path,
       "Use another copy of the file, or write it again");
}

SafetensorsHeader parse_safetensors_header(const std::string& text, uint64_t data_bytes,
                                           const std::string& path) {
  const json root = parse_strictly(text, path);
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__")
      header.metadata = parse_metadata(value, path);
    else
      header.entries.push_back(parse_entry(value, {path, name}));
  }
  check_cover(header.entries, data_bytes, path);
  return header;
}

}  // namespace saturate
