#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>

#include "parts.h"
#include "phase_clock.h"

namespace saturate {
namespace {

constexpr int kWait = int(Phase::kWait);

// Throws what Python has raised if there is no object.
nb::object checked(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

// `name` of the module, or None if nothing has imported that.
nb::object imported(const char* module, const char* name) {
  const nb::object found = nb::steal(PyImport_GetModule(nb::str(module).ptr()));
  return found.is_valid() ? nb::getattr(found, name, nb::none()) : nb::none();
}

// Errors are no reason to end a training.
int64_t number(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  return value < 0 ? 0 : value;
}

// Samples in a batch: the first number of its shape, or of that of the first object in a tuple,
// list or dict. phases.size_of() knows others, and takes longer.
int64_t size_of(nb::handle batch) {
  nb::handle array = batch;
  if (PyTuple_CheckExact(batch.ptr()) && PyTuple_Size(batch.ptr()) > 0)
    array = PyTuple_GetItem(batch.ptr(), 0);
  if (PyList_CheckExact(batch.ptr()) && PyList_Size(batch.ptr()) > 0)
    array = PyList_GetItem(batch.ptr(), 0);
  PyObject* value = nullptr;
  if (Py_ssize_t place = 0;
      PyDict_CheckExact(batch.ptr()) && PyDict_Next(batch.ptr(), &place, nullptr, &value) != 0)
    array = value;
  const nb::object shape = nb::steal(PyObject_GetAttrString(array.ptr(), "shape"));
  if (!shape.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();  // such as Ctrl-C
    PyErr_Clear();
  } else if (PyTuple_Check(shape.ptr()) && PyTuple_Size(shape.ptr()) > 0) {
    PyObject* const first = PyTuple_GetItem(shape.ptr(), 0);
    if (const int64_t size = PyLong_CheckExact(first) ? number(first) : 0; size != 0) return size;
  }
  return number(nb::module_::import_("saturate.phases").attr("size_of")(batch).ptr());
}

// See _core.pyi.
struct StepCounter {
  explicit StepCounter(nb::object kept_clock)
      : kept(std::move(kept_clock)), clock(nb::cast<PhaseClock&>(kept)) {}

  nb::handle self() { return nb::find(this); }

  bool is_due(int64_t now) const { return steps >= due_step || now >= due_ns; }

  void step(nb::handle loss) {
    const int64_t now = clock.settle();
    if (is_due(now) || !is_manual) {
      self().attr("_end_manual_step")(now, loss);
    } else {
      ++steps;
    }
  }

  void end_step() {
    const int64_t now = clock.settle();
    if (is_due(now)) {
      self().attr("_end_step")(now);
    } else {
      ++steps;
      has_stepped = false;
    }
  }

  void end_batch() {
    ++batches;
    if (is_open && !is_manual && (has_stepped || optimizer.is_none())) end_step();
  }

  void end_others_step() {
    const bool has_batch = !source.is_none();
    if (is_open && !is_manual && counts_others && has_stepped && has_batch) end_step();
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

  // Null without an exception at the end of `batches_of`, an iterator.
  nb::object next_batch(PyObject* batches_of) {
    nb::object batch = waited(PyIter_Next, batches_of);
    if (!batch.is_valid()) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      return batch;
    }
    if (!is_open) return batch;
    samples += size_of(batch);
    if (clock.is_long()) self().attr("_look_closer")();
    source_before = std::exchange(source, nb::none());
    return batch;
  }

  // The weak reference to an object, one for each, so that a loader's threads end when it is
  // dropped; the object itself if it cannot have one.
  static nb::object weakly(nb::object to) {
    PyObject* const reference = PyWeakref_NewRef(to.ptr(), nullptr);
    if (reference) return nb::steal(reference);
    PyErr_Clear();
    return to;
  }

  nb::object other_batch(PyObject* next, PyObject* iteration) {
    const bool is_counted = clock.phase() == kWait;  // by the next() around it
    if (is_counted || !clock.is_own_thread()) {
      return nb::steal(PyObject_CallFunctionObjArgs(next, iteration, nullptr));
    }
    if (is_grad_enabled.is_none()) is_grad_enabled = imported("torch", "is_grad_enabled");
    const bool has_gradients = is_grad_enabled.is_none() ||
                               nb::cast<bool>(checked(PyObject_CallNoArgs(is_grad_enabled.ptr())));
    if (has_gradients) end_others_step();
    const auto call = [&](PyObject* of) { return PyObject_CallFunctionObjArgs(next, of, nullptr); };
    nb::object batch = waited(call, iteration);
    if (!batch.is_valid()) return batch;
    const nb::object dataset = nb::getattr(iteration, "_dataset", nb::none());
    const nb::object from =
        weakly(dataset.is_none() ? nb::getattr(iteration, "_loader", nb::none()) : dataset);
    if (counts_others && has_gradients) samples += size_of(batch);
    const bool is_usual = from.is(source) || from.is(source_before);
    if (!has_gradients || !is_usual || clock.is_long()) {
      self().attr("_look_at_other")(has_gradients, is_usual);
    }
    source = from;
    return batch;
  }

  nb::object kept;
  PhaseClock& clock;
  nb::object optimizer = nb::none(), is_grad_enabled = nb::none();
  // weakly() the datasets of the latest batch of other_batch() since the last next_batch(), and
  // before that.
  nb::object source = nb::none(), source_before = nb::none();
  int64_t steps = 0, samples = 0, loops = 0, batches = 0, due_step = 0, due_ns = 0;
  bool is_open = true, has_stepped = false, is_manual = false, counts_others = true;
};

// See _core.pyi.
struct BatchIterator {
  explicit BatchIterator(nb::object counting) : counter(std::move(counting)) {
    nb::cast<StepCounter&>(counter);  // throws
  }
  BatchIterator(const BatchIterator&) = delete;
  ~BatchIterator() { finish(); }

  StepCounter& counts() const { return *nb::inst_ptr<StepCounter>(counter); }

  // Null without an exception at the end.
  nb::object next() {
    const Running running(is_running);
    if (!counter.is_valid()) return {};
    try {
      if (!batches.is_valid()) begin();
      end_batch();
      nb::object batch = counts().next_batch(batches.ptr());
      has_batch = batch.is_valid();
      if (!has_batch) end();
      return batch;
    } catch (nb::python_error& error) {
      end();
      // Otherwise the loop would end as if there were no more batches.
      if (!error.matches(PyExc_StopIteration)) throw;
      nb::raise_from(error, PyExc_RuntimeError, "the loader raised StopIteration");
    }
  }

  void close() {
    const Running running(is_running);
    try {
      end_batch();
    } catch (nb::python_error&) {
      end();
      throw;
    }
    end();
  }

  // close() where no error may be raised.
  void finish() {
    if (is_running) return;
    const nb::error_scope kept_error;  // where one leaves the loop
    try {
      close();
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the end of a loop over saturate.watch()");
    }
  }

  // Python handles no signal between the two last lines: none leaves a loop that never ends.
  void begin() {
    nb::object passed = counter.attr("_begin_pass")();
    if (!PyIter_Check(passed.ptr())) throw nb::type_error("_begin_pass() returned no iterator");
    batches = std::move(passed);
    ++counts().loops;
  }

  void end_batch() {
    if (std::exchange(has_batch, false)) counts().end_batch();
  }

  void end() {
    const nb::object ended = std::move(counter), rest = std::move(batches);
    if (rest.is_valid()) --nb::inst_ptr<StepCounter>(ended)->loops;
  }

  // For a call; two at a time are an error, as for a generator.
  struct Running {
    explicit Running(bool& running) : is_running(running) {
      if (is_running) {
        PyErr_SetString(PyExc_ValueError, "the iterator is already executing");
        throw nb::python_error();
      }
      is_running = true;
    }
    Running(const Running&) = delete;
    ~Running() { is_running = false; }
    bool& is_running;
  };

  nb::object counter, batches;  // null after the end; batches also before the begin
  bool has_batch = false, is_running = false;
};

// `body` as a function of Python's API. Those of nanobind take 4 us more, since a training step
// evicts the code and tables of their calls from the caches.
template <typename Object, typename Body>
PyObject* guarded(PyObject* self, Body body) {
  try {
    if (!nb::inst_ready(self)) throw std::runtime_error("its __init__() has not run");
    return body(*nb::inst_ptr<Object>(self)).release().ptr();
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
  return guarded<StepCounter>(self, [&](StepCounter& counter) -> nb::object {
    counter.step(named == 1 ? arguments[0] : Py_None);
    return nb::none();
  });
}

PyObject* optimizer_stepped(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1) return wrong_count("_optimizer_stepped");
  return guarded<StepCounter>(self, [&](StepCounter& counter) -> nb::object {
    counter.optimizer_stepped(arguments[0]);
    return nb::none();
  });
}

PyObject* next_batch(PyObject* self) {
  return guarded<BatchIterator>(self, [](BatchIterator& iterator) { return iterator.next(); });
}

// For the garbage collector: a loader may keep an iterator over the watch of itself.
int visit_iterator(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const BatchIterator& iterator = *nb::inst_ptr<BatchIterator>(self);
  Py_VISIT(iterator.counter.ptr());
  Py_VISIT(iterator.batches.ptr());
  return 0;
}

void finish_iterator(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<BatchIterator>(self)->finish();
}

PyObject* other_batch(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return wrong_count("_other_batch");
  return guarded<StepCounter>(
      self, [&](StepCounter& counter) { return counter.other_batch(arguments[0], arguments[1]); });
}

template <typename Function>
PyMethodDef method(const char* name, Function* function, int flags, const char* text = nullptr) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), flags, text};
}

// See _core.pyi.
struct Hook {
  nb::object function = nb::none();
};

PyObject* call_hook(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  return guarded<Hook>(self, [&](const Hook& hook) -> nb::object {
    const nb::object function = hook.function;
    if (function.is_none()) return function;
    return checked(PyObject_Vectorcall(function.ptr(), arguments, size_t(count), names));
  });
}

}  // namespace

void register_step_counter(nb::module_& module) {
  static PyMethodDef methods[] = {
      method("step", step, METH_FASTCALL | METH_KEYWORDS, kStepText),
      method("_optimizer_stepped", optimizer_stepped, METH_FASTCALL),
      method("_other_batch", other_batch, METH_FASTCALL),
      {},
  };
  static PyType_Slot slots[] = {{Py_tp_methods, methods}, {}};
  static PyMethodDef hook_methods[] = {method("call", call_hook, METH_FASTCALL | METH_KEYWORDS),
                                       {}};
  static PyType_Slot hook_slots[] = {{Py_tp_methods, hook_methods}, {}};
  static PyType_Slot iterator_slots[] = {{Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
                                         {Py_tp_iternext, reinterpret_cast<void*>(next_batch)},
                                         {Py_tp_traverse, reinterpret_cast<void*>(visit_iterator)},
                                         {Py_tp_finalize, reinterpret_cast<void*>(finish_iterator)},
                                         {}};
  nb::class_<BatchIterator>(module, "BatchIterator", nb::type_slots(iterator_slots))
      .def(nb::init<nb::object>(), nb::arg("counter"))
      .def("close", &BatchIterator::close);
  nb::class_<Hook>(module, "Hook", nb::type_slots(hook_slots))
      .def(nb::init<>())
      .def_rw("function", &Hook::function, nb::arg().none());
  nb::class_<StepCounter>(module, "StepCounter", nb::type_slots(slots))
      .def(nb::init<nb::object>(), nb::arg("clock"))
      .def("_end_others_step", &StepCounter::end_others_step)
      .def_rw("steps", &StepCounter::steps)
      .def_rw("samples", &StepCounter::samples)
      .def_rw("_loops", &StepCounter::loops)
      .def_rw("_batches", &StepCounter::batches)
      .def_rw("_is_open", &StepCounter::is_open)
      .def_rw("_due_step", &StepCounter::due_step)
      .def_rw("_due_ns", &StepCounter::due_ns)
      .def_rw("_has_stepped", &StepCounter::has_stepped)
      .def_rw("_is_manual", &StepCounter::is_manual)
      .def_rw("_counts_others", &StepCounter::counts_others)
      .def_rw("_optimizer", &StepCounter::optimizer, nb::arg().none())
      .def_rw("_source", &StepCounter::source, nb::arg().none())
      .def_rw("_source_before", &StepCounter::source_before, nb::arg().none())
      .def_rw("_is_grad_enabled", &StepCounter::is_grad_enabled, nb::arg().none());
}

}  // namespace saturate
