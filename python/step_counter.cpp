#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>

#include "parts.h"
#include "phase_clock.h"

namespace saturate {
namespace {

constexpr int kWait = int(Phase::kWait);

// The length of the first array in it.
int64_t size_of(nb::handle batch) {
  const bool is_sequence = nb::isinstance<nb::list>(batch) || nb::isinstance<nb::tuple>(batch);
  if (!is_sequence && nb::hasattr(batch, "shape")) {
    const nb::object shape = batch.attr("shape");
    return nb::len(shape) == 0 ? 0 : nb::cast<int64_t>(nb::int_(shape[0]));
  }
  if (nb::isinstance<nb::dict>(batch)) return size_of(nb::borrow<nb::dict>(batch).values());
  const size_t length = is_sequence ? nb::len(batch) : 0;
  if (length == 0) return 0;
  const nb::object first = batch[0];
  if (const int64_t size = size_of(first); size != 0) return size;
  return nb::isinstance<nb::str>(first) || nb::isinstance<nb::bytes>(first) ? int64_t(length) : 0;
}

nb::object called(PyObject* function) {
  PyObject* result = PyObject_CallNoArgs(function);
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

// See _core.pyi.
struct StepCounter {
  explicit StepCounter(nb::object kept_clock)
      : kept(std::move(kept_clock)), clock(nb::cast<PhaseClock&>(kept)) {}

  static StepCounter& of(PyObject* self) { return *nb::inst_ptr<StepCounter>(nb::handle(self)); }
  nb::handle self() { return nb::find(this); }

  bool is_due(int64_t now) const { return steps >= due_step || now >= due_ns; }

  void step(nb::handle loss) {
    const int64_t now = clock.settle();
    if (is_due(now)) {
      self().attr("_end_manual_step")(now, loss);
    } else {
      ++steps;
    }
  }

  void end_batch() {
    ++batches;
    if (is_manual || !(has_stepped || optimizer.is_none())) return;
    const int64_t now = clock.settle();
    if (is_due(now)) {
      self().attr("_end_batch_step")(now);
    } else {
      ++steps;
      has_stepped = false;
    }
  }

  void optimizer_stepped(nb::handle which) {
    if (!clock.is_own_thread()) return;
    has_stepped = true;
    if (!optimizer.is(which)) optimizer = nb::borrow(which);
  }

  // The result of call(of), which may be null, in phase `wait`.
  template <typename Call>
  nb::object waited(Call call, PyObject* of) {
    clock.enter(kWait);
    nb::object batch = nb::steal(call(of));
    const nb::error_scope kept_error;
    clock.leave();
    return batch;
  }

  nb::object next_batch(PyObject* batches_of) {
    nb::object batch = waited(PyIter_Next, batches_of);
    if (!batch.is_valid()) {
      if (PyErr_Occurred() == nullptr) PyErr_SetNone(PyExc_StopIteration);
      return batch;
    }
    samples += size_of(batch);
    if (clock.is_long()) self().attr("_look_closer")();
    source = nb::none();
    return batch;
  }

  nb::object other_batch(PyObject* next, PyObject* iteration) {
    const bool is_counted = clock.phase() == kWait;  // by the next() around it
    if (is_counted || !clock.is_own_thread()) {
      return nb::steal(PyObject_CallOneArg(next, iteration));
    }
    const auto call = [&](PyObject* of) { return PyObject_CallOneArg(next, of); };
    nb::object batch = waited(call, iteration);
    if (!batch.is_valid()) return batch;
    const nb::object dataset = nb::getattr(iteration, "_dataset", nb::none());
    const nb::object from =
        dataset.is_none() ? nb::getattr(iteration, "_loader", nb::none()) : dataset;
    const bool has_gradients =
        is_grad_enabled.is_none() || nb::cast<bool>(called(is_grad_enabled.ptr()));
    if (counts_others && has_gradients) samples += size_of(batch);
    if (!has_gradients || !from.is(source) || clock.is_long()) {
      self().attr("_look_at_other")(has_gradients, from);
    }
    source = from;
    return batch;
  }

  nb::object kept;
  PhaseClock& clock;
  nb::object optimizer = nb::none(), source = nb::none(), is_grad_enabled = nb::none();
  int64_t steps = 0, samples = 0, batches = 0, due_step = 0, due_ns = 0;
  bool has_stepped = false, is_manual = false, counts_others = true;
};

// `body` as a function of Python's API. Those of nanobind take 4 us more, since a training step
// evicts the code and tables of their calls from the caches.
template <typename Body>
PyObject* guarded(Body body) {
  try {
    return body().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* wrong_count(const char* name) {
  PyErr_Format(PyExc_TypeError, "%s() got a wrong number of arguments", name);
  return nullptr;
}

constexpr const char* kStepText =
    "step($self, /, *, loss=None)\n--\n\n"
    "A step has ended. `loss`, a number or a tensor of one, is read only when a record is written; "
    "the last record\nhas that of the last step which was measured in detail.";

PyObject* step(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_Size(names);
  if (count != 0 || named > 1 ||
      (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "loss") != 0)) {
    PyErr_SetString(PyExc_TypeError, "step() takes only loss=");
    return nullptr;
  }
  return guarded([&]() -> nb::object {
    StepCounter::of(self).step(named == 1 ? arguments[0] : Py_None);
    return nb::none();
  });
}

PyObject* end_batch(PyObject* self, PyObject*) {
  return guarded([&]() -> nb::object {
    StepCounter::of(self).end_batch();
    return nb::none();
  });
}

PyObject* optimizer_stepped(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1) return wrong_count("_optimizer_stepped");
  return guarded([&]() -> nb::object {
    StepCounter::of(self).optimizer_stepped(arguments[0]);
    return nb::none();
  });
}

PyObject* next_batch(PyObject* self, PyObject* batches) {
  return guarded([&] { return StepCounter::of(self).next_batch(batches); });
}

PyObject* other_batch(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return wrong_count("_other_batch");
  return guarded([&] { return StepCounter::of(self).other_batch(arguments[0], arguments[1]); });
}

template <typename Function>
PyMethodDef method(const char* name, Function* function, int flags, const char* text = nullptr) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), flags, text};
}

// See _core.pyi.
struct Hook {
  nb::object function = nb::none();
};

PyObject* call_hook(PyObject* self, PyObject* arguments, PyObject* names) {
  nb::object function = nb::inst_ptr<Hook>(nb::handle(self))->function;
  return function.is_none() ? function.release().ptr()
                            : PyObject_Call(function.ptr(), arguments, names);
}

}  // namespace

void register_step_counter(nb::module_& module) {
  static PyMethodDef methods[] = {
      method("step", step, METH_FASTCALL | METH_KEYWORDS, kStepText),
      method("_end_batch", end_batch, METH_NOARGS),
      method("_optimizer_stepped", optimizer_stepped, METH_FASTCALL),
      method("_next_batch", next_batch, METH_O),
      method("_other_batch", other_batch, METH_FASTCALL),
      {},
  };
  static PyType_Slot slots[] = {{Py_tp_methods, methods}, {}};
  static PyType_Slot hook_slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_hook)}, {}};
  module.def("size_of", &size_of);
  nb::class_<Hook>(module, "Hook", nb::type_slots(hook_slots))
      .def(nb::init<>())
      .def_rw("function", &Hook::function, nb::arg().none());
  nb::class_<StepCounter>(module, "StepCounter", nb::type_slots(slots))
      .def(nb::init<nb::object>(), nb::arg("clock"))
      .def_rw("steps", &StepCounter::steps)
      .def_rw("samples", &StepCounter::samples)
      .def_rw("_batches", &StepCounter::batches)
      .def_rw("_due_step", &StepCounter::due_step)
      .def_rw("_due_ns", &StepCounter::due_ns)
      .def_rw("_has_stepped", &StepCounter::has_stepped)
      .def_rw("_is_manual", &StepCounter::is_manual)
      .def_rw("_counts_others", &StepCounter::counts_others)
      .def_rw("_optimizer", &StepCounter::optimizer, nb::arg().none())
      .def_rw("_source", &StepCounter::source, nb::arg().none())
      .def_rw("_is_grad_enabled", &StepCounter::is_grad_enabled, nb::arg().none());
}

}  // namespace saturate
