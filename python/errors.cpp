// Errors of C++ as exceptions of Python.
#include <nanobind/nanobind.h>

#include <exception>

#include "own_dataset.h"
#include "parts.h"
#include "python_values.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// The Error as an exception of Python, with the one that caused it, if any.
void set_python_error(const Error& failure, PyObject* type) {
  const nb::object value =
      nb::steal(PyObject_CallFunctionObjArgs(type, text_of(failure.what()).ptr(), nullptr));
  if (!value.is_valid()) return;
  value.attr("exit_code") = failure.exit_code();
  if (const auto* caused = dynamic_cast<const PythonCausedError*>(&failure))
    PyException_SetCause(value.ptr(), nb::borrow(caused->cause().get()).release().ptr());
  PyErr_SetObject(type, value.ptr());
}

}  // namespace

void register_error(nb::module_& module) {
  nb::dict members;
  members["exit_code"] = int(ErrorKind::kUsage);  // of those that Python code raises
  const nb::object error =
      nb::steal(PyErr_NewException("saturate.Error", PyExc_RuntimeError, members.ptr()));
  module.attr("Error") = error;
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Error& failure) {
          set_python_error(failure, static_cast<PyObject*>(type));
        }
      },
      error.ptr());  // the module keeps it alive
}

}  // namespace saturate
