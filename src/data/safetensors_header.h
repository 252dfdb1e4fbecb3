// The JSON header of a safetensors file, parsed and checked apart from any tensor data.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

// An element type that torch has as well.
struct SafetensorsElement {
  std::string_view name;  // the format's name
  int64_t bytes;
};

inline constexpr std::array<SafetensorsElement, 13> kSafetensorsElements{{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"I64", 8},
    {"U64", 8},
    {"I32", 4},
    {"U32", 4},
    {"I16", 2},
    {"U16", 2},
    {"I8", 1},
    {"U8", 1},
    {"BOOL", 1},
}};

struct SafetensorsEntry {
  std::string name;
  std::string_view type;  // a name in kSafetensorsElements
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
