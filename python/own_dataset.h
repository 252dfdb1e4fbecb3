// SPDX-License-Identifier: BSD-3-Clause
// A dataset that is a Python object, and Python objects that threads without Python's lock hold.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/error.h"

namespace saturate {

// A reference that may be copied and dropped without Python's lock.
using SharedObject = std::shared_ptr<PyObject>;
SharedObject shared_object(nanobind::object object);

// An error whose cause is an exception of Python code, which becomes its __cause__.
class PythonCausedError : public Error {
 public:
  PythonCausedError(const Error& error, SharedObject cause)
      : Error(error), cause_(std::move(cause)) {}
  const SharedObject& cause() const { return cause_; }

 private:
  SharedObject cause_;
};

// The labels of samples that have several, [size, width]. Kept until the end, since a cached sample
// is read once. To be used with Python's lock.
class LabelVectors {
 public:
  explicit LabelVectors(size_t size) : size_(size) {}

  // Fails with kData, naming the sample, if it has another type or number than the first ones.
  void put(size_t index, bool is_float, std::span<const std::byte> values);
  bool is_float() const { return is_float_; }  // else int64
  size_t width() const { return width_; }
  // REQUIRES: Value is float if is_float(), else int64_t; put(index) has been called.
  template <class Value>
  std::span<const Value> at(size_t index) const {
    return {reinterpret_cast<const Value*>(values_.data()) + index * width_, width_};
  }

 private:
  const size_t size_;
  size_t width_ = 0;
  bool is_float_ = false;
  std::vector<std::byte> values_;
};

// `read(index)` returns (buffer, width, height, channels, target, name, done): encoded bytes if the
// width is 0, else pixels; the name as bytes, or None. `done`, if not None, is called once the
// buffer has been copied. The target is a label; with `vectors` (whether they are floats, bytes of
// the labels); with `masks` (bytes, width, height), a PNG if the width is 0. It is called on the
// loader's threads with Python's lock; its exceptions become errors that name the sample. The
// caller has the lock.
std::unique_ptr<Dataset> make_own_dataset(nanobind::object read, size_t size,
                                          std::vector<std::string> classes, bool masks,
                                          std::shared_ptr<LabelVectors> vectors);

// Whether this thread is in such a `read`, and so cannot wait for its loader's threads.
bool is_reading_own();

}  // namespace saturate
