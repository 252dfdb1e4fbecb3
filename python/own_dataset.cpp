#include "own_dataset.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace nb = nanobind;

namespace saturate {
namespace {

// The bytes of an object, kept from changing until this is gone.
class BufferView {
 public:
  explicit BufferView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  const Py_buffer& operator*() const { return view_; }

 private:
  Py_buffer view_;
};

std::string first_line_of(nb::handle value) {
  std::string text = nb::cast<std::string>(nb::steal<nb::str>(PyObject_Str(value.ptr())));
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void fail_reading(nb::python_error& error, size_t index) {
  if (error.matches(PyExc_MemoryError)) throw std::bad_alloc();
  const SharedObject cause = shared_object(nb::borrow(error.value()));
  const std::string sample = "sample " + std::to_string(index);
  std::string text;
  try {
    text = first_line_of(error.value());
  } catch (nb::python_error&) {  // its __str__ raises too
  } catch (const nb::cast_error&) {
  }
  const std::string kind = nb::cast<std::string>(error.type().attr("__name__"));
  const bool is_ours =
      kind == "Error" && nb::cast<std::string>(error.type().attr("__module__")) == "saturate";
  const std::string what = is_ours ? text : kind + (text.empty() ? "" : ": " + text);
  // KeyboardInterrupt and SystemExit do not make a sample one to be skipped.
  if (is_ours || !error.matches(PyExc_Exception))
    throw PythonCausedError(Error(ErrorKind::kRun, what, sample, "See the cause of this error",
                                  std::source_location::current()),
                            cause);
  throw PythonCausedError(
      Error(ErrorKind::kData, what, sample,
            "Correct the dataset's __getitem__, or skip such samples with on_error=\"skip\"",
            std::source_location::current()),
      cause);
}

// Calls `done`, unless it is None, also if reading has failed.
struct CallAtEnd {
  nb::object done;
  ~CallAtEnd() {
    if (done.is_none()) return;
    nb::error_scope kept;
    if (const nb::object result = nb::steal(PyObject_CallNoArgs(done.ptr())); !result.is_valid())
      PyErr_WriteUnraisable(done.ptr());
  }
};

thread_local int reading = 0;

class OwnDataset : public Dataset {
 public:
  OwnDataset(nb::object read, size_t size, std::vector<std::string> classes, bool masks,
             std::shared_ptr<LabelVectors> vectors)
      : read_(shared_object(std::move(read))),
        size_(size),
        classes_(std::move(classes)),
        masks_(masks),
        vectors_(std::move(vectors)) {}

  size_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  bool has_masks() const override { return masks_; }

  void read(size_t index, Sample& out) const override {
    const nb::gil_scoped_acquire locked;
    const Reading here;
    try {
      const auto item = nb::cast<nb::tuple>(nb::handle(read_.get())(index));
      const CallAtEnd done{item[6]};
      take_target(item[4], index, out);
      take(item, out);
    } catch (nb::python_error& error) {
      fail_reading(error, index);
    }
  }

 private:
  struct Reading {
    Reading() { ++reading; }
    ~Reading() { --reading; }
  };

  void take_target(nb::handle target, size_t index, Sample& out) const {
    out.label = 0;
    if (!masks_ && !vectors_) {
      out.label = nb::cast<int64_t>(target);
      return;
    }
    const auto parts = nb::cast<nb::tuple>(target);
    const nb::object bytes = parts[vectors_ ? 1 : 0];
    const BufferView view(bytes);
    const auto* from = static_cast<const std::byte*>((*view).buf);
    const std::span<const std::byte> values(from, size_t((*view).len));
    if (vectors_) return vectors_->put(index, nb::cast<bool>(parts[0]), values);
    out.mask.bytes.assign(values.begin(), values.end());
    out.mask.width = nb::cast<int>(parts[1]);
    out.mask.height = nb::cast<int>(parts[2]);
    out.mask.is_raw = out.mask.width > 0;
    out.mask.name = "mask of sample " + std::to_string(index);
  }

  static void take(const nb::tuple& item, Sample& out) {
    out.width = nb::cast<int>(item[1]);
    out.height = nb::cast<int>(item[2]);
    out.channels = nb::cast<int>(item[3]);
    out.encoding = out.width > 0 ? SampleEncoding::kRaw : SampleEncoding::kEncoded;
    {
      const BufferView view(item[0]);
      const nb::gil_scoped_release others_run;
      const auto* from = static_cast<const std::byte*>((*view).buf);
      out.bytes.assign(from, from + (*view).len);
    }
    if (!item[5].is_none()) {
      const auto name = nb::cast<nb::bytes>(item[5]);
      out.name.assign(name.c_str(), name.size());
    }
  }

  const SharedObject read_;
  const size_t size_;
  const std::vector<std::string> classes_;
  const bool masks_;
  const std::shared_ptr<LabelVectors> vectors_;  // or null
};

}  // namespace

SharedObject shared_object(nb::object object) {
  return {object.release().ptr(), [](PyObject* held) {
            if (!nb::is_alive()) return;  // the interpreter has ended, and its objects with it
            const nb::gil_scoped_acquire locked;
            Py_DECREF(held);
          }};
}

bool is_reading_own() {
  return reading > 0;
}

void LabelVectors::put(size_t index, bool is_float, std::span<const std::byte> values) {
  const size_t width = values.size() / (is_float ? sizeof(float) : sizeof(int64_t));
  if (width_ == 0) {
    width_ = width;
    is_float_ = is_float;
    values_.resize(size_ * values.size());
  }
  const auto text = [](size_t count, bool floats) {
    return std::to_string(count) + (floats ? " of float32" : " of int64");
  };
  if (width != width_ || is_float != is_float_)
    fail(ErrorKind::kData,
         "it has " + text(width, is_float) + " as labels, and earlier samples have " +
             text(width_, is_float_),
         "sample " + std::to_string(index), "Return as many labels of one type for each sample");
  std::copy(values.begin(), values.end(), values_.begin() + std::ptrdiff_t(index * values.size()));
}

std::unique_ptr<Dataset> make_own_dataset(nb::object read, size_t size,
                                          std::vector<std::string> classes, bool masks,
                                          std::shared_ptr<LabelVectors> vectors) {
  return std::make_unique<OwnDataset>(std::move(read), size, std::move(classes), masks,
                                      std::move(vectors));
}

}  // namespace saturate
