#include "data/elements.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "saturate/data/image.h"

namespace saturate {
namespace {

template <class T>
T read_as(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// IEEE 754's binary16.
double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = std::ldexp(fraction, -24);
  if (exponent == 31)
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  else if (exponent > 0)
    value = std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -value : value;
}

// The upper half of a float.
double brain(uint16_t bits) {
  return double(std::bit_cast<float>(uint32_t(bits) << 16));
}

template <class T>
int64_t as_whole(const std::byte* from) {
  const T value = read_as<T>(from);
  return std::in_range<int64_t>(value) ? int64_t(value) : -1;
}

template <class T>
double as_number(const std::byte* from) {
  return double(read_as<T>(from));
}

template <class T>
bool exceeds(std::span<const std::byte> bytes, uint64_t limit, bool are_voxels) {
  bool found = false;
  for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    const T value = read_as<T>(bytes.data() + at);
    const bool ignored =
        are_voxels && (std::cmp_less(value, 0) || std::cmp_equal(value, kIgnoredClass));
    found |= (std::cmp_less(value, 0) || std::cmp_greater_equal(value, limit)) && !ignored;
  }
  return found;
}

template <class T>
constexpr ElementRow whole(ElementType type, const char* name, const char* npy,
                           const char* safetensors) {
  return {type, name, sizeof(T), npy, safetensors, as_whole<T>, as_number<T>, exceeds<T>};
}

constexpr ElementRow kElements[] = {  // by ElementType
    whole<uint8_t>(ElementType::kBool, "bool", "b1", "BOOL"),
    whole<uint8_t>(ElementType::kUint8, "uint8", "u1", "U8"),
    whole<int8_t>(ElementType::kInt8, "int8", "i1", "I8"),
    whole<uint16_t>(ElementType::kUint16, "uint16", "u2", "U16"),
    whole<int16_t>(ElementType::kInt16, "int16", "i2", "I16"),
    whole<uint32_t>(ElementType::kUint32, "uint32", "u4", "U32"),
    whole<int32_t>(ElementType::kInt32, "int32", "i4", "I32"),
    whole<uint64_t>(ElementType::kUint64, "uint64", "u8", "U64"),
    whole<int64_t>(ElementType::kInt64, "int64", "i8", "I64"),
    {ElementType::kFloat16, "float16", 2, "f2", "F16", nullptr,
     [](const std::byte* from) { return half(read_as<uint16_t>(from)); }, nullptr},
    {ElementType::kBfloat16, "bfloat16", 2, "", "BF16", nullptr,
     [](const std::byte* from) { return brain(read_as<uint16_t>(from)); }, nullptr},
    {ElementType::kFloat32, "float32", 4, "f4", "F32", nullptr, as_number<float>, nullptr},
    {ElementType::kFloat64, "float64", 8, "f8", "F64", nullptr, as_number<double>, nullptr}};

}  // namespace

const ElementRow& element_row(ElementType type) {
  return kElements[size_t(type)];
}

const ElementRow* find_element(std::string_view ElementRow::*format, std::string_view name) {
  for (const ElementRow& row : kElements)
    if (!name.empty() && row.*format == name) return &row;
  return nullptr;
}

size_t bytes_of(ElementType type) {
  return element_row(type).bytes;
}

const char* element_name(ElementType type) {
  return element_row(type).name.data();
}

}  // namespace saturate
