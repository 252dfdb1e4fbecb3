// SPDX-License-Identifier: BSD-3-Clause
// Texts and arrays of C++ as Python objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "saturate/data/loader.h"
#include "saturate/data/pixel.h"

namespace saturate {

namespace nb = nanobind;

// A file's name, which need not be UTF-8, as os.fsdecode() returns it.
inline nb::object name_of(const std::string& name) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(name.data(), Py_ssize_t(name.size())));
}

// For messages: bytes that are not UTF-8 become \xNN.
inline nb::object text_of(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "backslashreplace"));
}

inline nb::dlpack::dtype dlpack_type(PixelType type) {
  if (type == PixelType::kUint8) return nb::dtype<uint8_t>();
  if (type == PixelType::kFloat32) return nb::dtype<float>();
  const bool is_float16 = type == PixelType::kFloat16;
  using Code = nb::dlpack::dtype_code;
  return {uint8_t(is_float16 ? Code::Float : Code::Bfloat), 16, 1};
}

inline nb::dlpack::dtype dlpack_type(ElementType type) {
  switch (type) {
    case ElementType::kBool:
      return nb::dtype<bool>();
    case ElementType::kUint8:
      return nb::dtype<uint8_t>();
    case ElementType::kInt8:
      return nb::dtype<int8_t>();
    case ElementType::kUint16:
      return nb::dtype<uint16_t>();
    case ElementType::kInt16:
      return nb::dtype<int16_t>();
    case ElementType::kUint32:
      return nb::dtype<uint32_t>();
    case ElementType::kInt32:
      return nb::dtype<int32_t>();
    case ElementType::kUint64:
      return nb::dtype<uint64_t>();
    case ElementType::kInt64:
      return nb::dtype<int64_t>();
    case ElementType::kFloat16:
      return dlpack_type(PixelType::kFloat16);
    case ElementType::kBfloat16:
      return dlpack_type(PixelType::kBfloat16);
    case ElementType::kFloat32:
      return nb::dtype<float>();
    case ElementType::kFloat64:
      return nb::dtype<double>();
  }
  return nb::dtype<uint8_t>();
}

// An array that owns its numbers.
template <class Value>
nb::object array_of(std::vector<Value> values, std::initializer_list<size_t> shape) {
  auto* held = new std::vector<Value>(std::move(values));
  const nb::capsule owner(
      held, [](void* memory) noexcept { delete static_cast<std::vector<Value>*>(memory); });
  return nb::cast(nb::ndarray<nb::array_api, Value>(held->data(), shape, owner),
                  nb::rv_policy::reference);
}

// The capsule keeps memory of a batch, which returns to the loader when the last array is gone.
inline nb::capsule keeper(const std::shared_ptr<std::byte>& memory) {
  return nb::capsule(new std::shared_ptr<std::byte>(memory), [](void* held) noexcept {
    delete static_cast<std::shared_ptr<std::byte>*>(held);
  });
}

}  // namespace saturate
