// A dataset that is a Python object, and Python objects that threads without Python's lock hold.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
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

// `read(index)` returns (buffer, width, height, channels, label, name, done): encoded bytes if the
// width is 0, else pixels; the name as bytes, or None. `done`, if not None, is called once the
// buffer has been copied. It is called on the loader's threads with Python's lock; its exceptions
// become errors that name the sample. The caller has the lock.
std::unique_ptr<Dataset> make_own_dataset(nanobind::object read, size_t size,
                                          std::vector<std::string> classes);

// Whether this thread is in such a `read`, and so cannot wait for its loader's threads.
bool is_reading_own();

}  // namespace saturate
