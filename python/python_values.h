// SPDX-License-Identifier: BSD-3-Clause
// Texts and arrays of C++ as Python objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
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

inline nb::dlpack::dtype dlpack_type(ElementType type) {
  using Code = nb::dlpack::dtype_code;
  constexpr Code kCodes[] = {Code::Bool,   Code::UInt,  Code::Int,  Code::UInt, Code::Int,
                             Code::UInt,   Code::Int,   Code::UInt, Code::Int,  Code::Float,
                             Code::Bfloat, Code::Float, Code::Float};  // by ElementType
  return {uint8_t(kCodes[size_t(type)]), uint8_t(8 * bytes_of(type)), 1};
}

inline nb::dlpack::dtype dlpack_type(PixelType type) {
  return dlpack_type(type == PixelType::kUint8      ? ElementType::kUint8
                     : type == PixelType::kBfloat16 ? ElementType::kBfloat16
                     : type == PixelType::kFloat16  ? ElementType::kFloat16
                                                    : ElementType::kFloat32);
}

// An array that owns its numbers.
template <class Value>
nb::object array_of(std::vector<Value> values, const std::vector<size_t>& shape) {
  auto* held = new std::vector<Value>(std::move(values));
  const nb::capsule owner(
      held, [](void* memory) noexcept { delete static_cast<std::vector<Value>*>(memory); });
  return nb::cast(
      nb::ndarray<nb::array_api, Value>(held->data(), shape.size(), shape.data(), owner),
      nb::rv_policy::reference);
}

// The capsule keeps memory of a batch, which returns to the loader when the last array is gone.
inline nb::capsule keeper(const std::shared_ptr<std::byte>& memory) {
  return nb::capsule(new std::shared_ptr<std::byte>(memory), [](void* held) noexcept {
    delete static_cast<std::shared_ptr<std::byte>*>(held);
  });
}

}  // namespace saturate
