// The JSON header of a safetensors file, parsed and checked apart from any tensor data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

struct SafetensorsEntry {
  std::string name;
  std::string_view type;  // static, a name in ElementRow::safetensors
  std::vector<int64_t> shape;
  uint64_t begin, end;  // bytes from the start of the data section
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in data order; together they cover the data section
  std::map<std::string, std::string> metadata;
};

// `data_bytes` is the size of the data section. Fails with kRun naming `path` and the tensor.
SafetensorsHeader parse_safetensors_header(const std::string& text, uint64_t data_bytes,
                                           const std::string& path);

// A name from an untrusted file, quoted, escaped and shortened to fit one line of text.
std::string quoted_name(const std::string& name);

[[noreturn]] void fail_safetensors(const std::string& what, const std::string& path);

}  // namespace saturate
