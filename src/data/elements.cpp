#include "data/elements.h"

#include <cmath>
#include <cstring>
#include <limits>

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
  const uint32_t wide = uint32_t(bits) << 16;
  return double(read_as<float>(reinterpret_cast<const std::byte*>(&wide)));
}

}  // namespace

int64_t whole_number(ElementType type, const std::byte* from) {
  switch (type) {
    case ElementType::kInt8:
      return read_as<int8_t>(from);
    case ElementType::kUint16:
      return read_as<uint16_t>(from);
    case ElementType::kInt16:
      return read_as<int16_t>(from);
    case ElementType::kUint32:
      return read_as<uint32_t>(from);
    case ElementType::kInt32:
      return read_as<int32_t>(from);
    case ElementType::kUint64: {
      const auto value = read_as<uint64_t>(from);
      return value > uint64_t(INT64_MAX) ? -1 : int64_t(value);
    }
    case ElementType::kInt64:
      return read_as<int64_t>(from);
    default:
      return read_as<uint8_t>(from);
  }
}

double as_number(ElementType type, const std::byte* from) {
  switch (type) {
    case ElementType::kFloat16:
      return half(read_as<uint16_t>(from));
    case ElementType::kBfloat16:
      return brain(read_as<uint16_t>(from));
    case ElementType::kFloat32:
      return double(read_as<float>(from));
    case ElementType::kFloat64:
      return read_as<double>(from);
    case ElementType::kUint64:
      return double(read_as<uint64_t>(from));
    default:
      return double(whole_number(type, from));
  }
}

}  // namespace saturate
