#include "saturate/safetensors.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "base/checksum.h"
#include "data/safetensors_header.h"
#include "model/model_files.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation

std::string_view type_name(const NamedTensor& named, const std::string& path) {
  for (const auto& row : kSafetensorsTypes) {
    if (row.type == named.tensor.scalar_type()) return row.name;
  }
  fail(ErrorKind::kRun,
       "tensor \"" + named.name + "\" is of type " + c10::toString(named.tensor.scalar_type()) +
           ", which safetensors cannot hold",
       path, "Convert it to a floating-point or integer type");
}

// Widest elements first, otherwise in the given order: this aligns every tensor without gaps.
std::vector<NamedTensor> in_file_order(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> ordered;
  for (const auto& named : tensors)
    ordered.push_back({named.name, named.tensor.detach().to(at::kCPU).contiguous()});
  std::ranges::stable_sort(ordered, std::greater<>(),
                           [](const auto& named) { return named.tensor.element_size(); });
  return ordered;
}

// The length field and the JSON, padded so that the data starts at a multiple of 8.
std::string make_header(const std::vector<NamedTensor>& ordered,
                        const std::map<std::string, std::string>& metadata,
                        const std::string& path) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& named : ordered) {
    if (named.name == "__metadata__" || header.contains(named.name))
      fail(ErrorKind::kRun, "two tensors are called \"" + named.name + "\"", path,
           "Give every tensor a unique name");
    const uint64_t end = offset + named.tensor.nbytes();
    header[named.name] = {{"dtype", type_name(named, path)},
                          {"shape", named.tensor.sizes().vec()},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

SafetensorsHeader read_header(const ReadableFile& file, const std::string& path,
                              uint64_t& data_start) {
  if (file.size() < kLengthBytes) fail_safetensors("it is shorter than 8 bytes", path);
  uint64_t length = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes)
    fail_safetensors("its header would take " + std::to_string(length) + " bytes", path);
  std::string text(length, '\0');
  file.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  data_start = kLengthBytes + length;
  return parse_safetensors_header(text, file.size() - data_start, path);
}

at::Tensor read_tensor(const ReadableFile& file, const SafetensorsEntry& entry, uint64_t data_start,
                       const std::string& path) {
  at::Tensor tensor = at::empty(entry.shape, type_named(entry.type));
  const std::span bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  if (bytes.empty()) return tensor;
  file.read_at(data_start + entry.begin, bytes);
  if (tensor.scalar_type() == at::kBool && !are_bools(bytes))
    fail_safetensors("tensor " + quoted_name(entry.name) + " is BOOL but not all 0 and 1", path);
  return tensor;
}

}  // namespace

void write_safetensors(Env& env, const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<NamedTensor> ordered = in_file_order(tensors);
  std::string header;
  try {
    header = make_header(ordered, metadata, path);
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::kRun, "a tensor's name or the metadata is not UTF-8", path,
         "Use UTF-8 names only");
  }
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(header))};
  for (const auto& named : ordered) pieces.push_back(bytes_of(named.tensor));
  write_atomically(env, path, pieces);
}

SafetensorsFile read_safetensors(Env& env, const std::string& path) {
  return as_of_the_run([&] {
    const auto file = env.open_readable(path);
    uint64_t data_start = 0;
    auto header = read_header(*file, path, data_start);
    SafetensorsFile result;
    result.metadata = std::move(header.metadata);
    for (const auto& entry : header.entries)
      result.tensors.push_back({entry.name, read_tensor(*file, entry, data_start, path)});
    return result;
  });
}

std::string tensors_crc32(const std::vector<NamedTensor>& tensors) {
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) by_name[name] = &tensor;
  uint32_t crc = 0;
  for (const auto& [name, tensor] : by_name) {
    crc = checksum_of(std::as_bytes(std::span(name)), crc);
    crc = checksum_of(bytes_of(*tensor), crc);
  }
  return fmt::format("{:08x}", crc);
}

std::map<std::string, std::string> read_safetensors_metadata(Env& env, const std::string& path) {
  return as_of_the_run([&] {
    uint64_t data_start = 0;
    return read_header(*env.open_readable(path), path, data_start).metadata;
  });
}

}  // namespace saturate
