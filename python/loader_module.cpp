// The loader as a Python class; saturate/__init__.py wraps it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"
#include "saturate/data/loader.h"
#include "saturate/data/recipe.h"

namespace nb = nanobind;

namespace saturate {
namespace {

Recipe parsed(const std::string& source, const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"data.source=" + source};
  all.insert(all.end(), overrides.begin(), overrides.end());
  Recipe recipe = parse_recipe("", "saturate.Loader", all);
  if (recipe.data.threads == 0) recipe.data.threads = available_cores();
  if (recipe.train.batch == kAutomatic) recipe.train.batch = TrainOptions().batch;
  if (recipe.augment.size == 0)
    fail(ErrorKind::kUsage, "the size of the images is not set", "augment.size",
         "Set size=, the side of the images in pixels");
  if (recipe.data.cache.mode == CacheMode::kDevice)
    fail(ErrorKind::kUsage, "the Python loader has no device", "data.cache", "Set data.cache=ram");
  if (recipe.augment.mixup > 0 || recipe.augment.cutmix > 0)
    fail(ErrorKind::kUsage, "the Python loader does not mix batches", "augment.mixup",
         "Leave augment.mixup and augment.cutmix at 0, and mix the batches in your program");
  return recipe;
}

// Labels of a source with masks mean nothing, and batches have no masks.
std::unique_ptr<Dataset> opened(const std::string& source, const DataOptions& options) {
  auto data = open_input(Env::posix(), source, options);
  if (data->has_masks())
    fail(ErrorKind::kUsage, "the source has masks instead of a class for each image", source,
         "Use a source of classes");
  return data;
}

// A file's name, which need not be UTF-8, as os.fsdecode() returns it.
nb::object name_of(const std::string& name) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(name.data(), Py_ssize_t(name.size())));
}

// For messages: bytes that are not UTF-8 become \xNN.
nb::object text_of(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "backslashreplace"));
}

PixelType type_named(const std::string& name) {
  if (name == "uint8") return PixelType::kUint8;
  if (name == "bfloat16") return PixelType::kBfloat16;
  if (name == "float16") return PixelType::kFloat16;
  if (name == "float32") return PixelType::kFloat32;
  fail(ErrorKind::kUsage, "unknown dtype \"" + name + "\"", "dtype",
       "Use uint8, bfloat16, float16 or float32");
}

nb::dlpack::dtype dlpack_type(PixelType type) {
  if (type == PixelType::kUint8) return nb::dtype<uint8_t>();
  if (type == PixelType::kFloat32) return nb::dtype<float>();
  const bool is_float16 = type == PixelType::kFloat16;
  using Code = nb::dlpack::dtype_code;
  return {uint8_t(is_float16 ? Code::Float : Code::Bfloat), 16, 1};
}

LoaderOptions loader_options(const Recipe& recipe, bool train, PixelType type, bool planar,
                             bool names) {
  LoaderOptions options;
  options.batch = size_t(recipe.train.batch);
  options.threads = recipe.data.threads;
  options.prefetch = recipe.data.prefetch;
  options.shuffle = recipe.data.shuffle;
  if (!train) options.shuffle.mode = ShuffleMode::kNone;
  options.drop_last = train && recipe.train.drop_last;
  options.train = train;
  options.on_error = recipe.data.on_error;
  options.decode = recipe.data.decode;
  options.type = type;
  if (planar) options.output = BatchOutput::kPlanar;
  options.names = names;
  options.seed = recipe.seed;
  return options;
}

class PyLoader {
 public:
  PyLoader(const std::string& source, const std::vector<std::string>& overrides, bool train,
           const std::string& dtype, bool planar, bool names)
      : recipe_(parsed(source, overrides)),
        type_(type_named(dtype)),
        planar_(planar),
        data_(opened(source, recipe_.data)),
        // Interleaved memory can be viewed as planes; uint8 batches are never planar.
        loader_(*data_,
                loader_options(recipe_, train, type_, planar && type_ != PixelType::kUint8, names),
                recipe_.augment) {}

  void start_epoch(uint32_t epoch, size_t first_batch) {
    const nb::gil_scoped_release others_run;
    const std::lock_guard one_consumer(consuming_);
    held_.reset();
    loader_.start_epoch(epoch, first_batch);
  }

  // (images, labels, indices, names, place in the epoch), or None at the end. A signal's exception
  // (Ctrl-C) ends the wait; the next call then returns the batch.
  nb::object next() {
    std::optional<Taken> taken;
    for (int looks = 0; !taken; ++looks) {
      fetch(looks);
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      // Never blocks on another waiting thread, since this thread holds Python's lock.
      const std::unique_lock one_consumer(consuming_, std::try_to_lock);
      if (one_consumer) taken.swap(held_);
    }
    if (!taken->more) return nb::none();
    Batch& batch = taken->batch;
    const size_t count = batch.count();
    nb::list names;
    std::vector<int64_t> labels(count), indices(count);
    for (size_t i = 0; i < count; ++i) {
      const BatchSample& sample = batch.samples[i];
      labels[i] = sample.label;
      indices[i] = sample.index;
      if (!sample.name.empty()) names.append(name_of(sample.name));
    }
    const nb::object result = nb::make_tuple(images(batch, count), numbers(std::move(labels)),
                                             numbers(std::move(indices)), names, batch.place);
    batch.pixels.reset();
    const std::unique_lock one_consumer(consuming_, std::try_to_lock);
    if (one_consumer) spare_ = std::move(batch);
    return result;
  }

  size_t batches() const { return loader_.batches(); }
  int batch() const { return recipe_.train.batch; }
  uint64_t seed() const { return recipe_.seed; }
  size_t size() const { return data_->size(); }
  nb::list classes() const {
    nb::list list;
    for (const std::string& name : data_->classes()) list.append(text_of(name));
    return list;
  }
  nb::list skipped() const {
    nb::list list;
    for (const SkippedSample& sample : loader_.skipped())
      list.append(nb::make_tuple(name_of(sample.name), text_of(sample.reason)));
    return list;
  }
  size_t skipped_count() const { return loader_.skipped_count(); }

 private:
  struct Taken {
    Batch batch;
    bool more = false;  // false: the end of the epoch
  };
  static constexpr auto kLook = std::chrono::milliseconds(50);  // between two checks for signals

  // Takes the next batch, or the end, if it comes within kLook. Fails after the loader's wait
  // limit.
  void fetch(int looks) {
    const nb::gil_scoped_release others_run;
    const std::lock_guard one_consumer(consuming_);
    if (held_) return;
    if (!loader_.wait(kLook)) {
      if (looks * kLook < LoaderOptions().wait_limit) return;
      fail(ErrorKind::kRun, "no batch came within 600 s", "loader",
           "Look for storage that hangs under data.source");
    }
    Taken taken{std::move(spare_)};
    taken.more = loader_.next(taken.batch);
    held_ = std::move(taken);
  }

  // Shares the batch's memory, which returns to the loader when the last array is gone.
  nb::object images(const Batch& batch, size_t count) const {
    const auto side = size_t(batch.size);
    auto* memory = new std::shared_ptr<std::byte>(batch.pixels);
    const nb::capsule owner(
        memory, [](void* held) noexcept { delete static_cast<std::shared_ptr<std::byte>*>(held); });
    const auto pitch = int64_t(side);
    const bool seen_as_planes = planar_ && batch.output != BatchOutput::kPlanar;
    const size_t nchw[] = {count, 3, side, side}, nhwc[] = {count, side, side, 3};
    const int64_t interleaved[] = {3 * pitch * pitch, 1, 3 * pitch, 3};
    return nb::cast(nb::ndarray<nb::array_api>(batch.pixels.get(), 4, planar_ ? nchw : nhwc, owner,
                                               seen_as_planes ? interleaved : nullptr,
                                               dlpack_type(type_), nb::device::cpu::value, 0),
                    nb::rv_policy::reference);
  }

  static nb::object numbers(std::vector<int64_t> values) {
    auto* held = new std::vector<int64_t>(std::move(values));
    const nb::capsule owner(
        held, [](void* memory) noexcept { delete static_cast<std::vector<int64_t>*>(memory); });
    return nb::cast(nb::ndarray<nb::array_api, int64_t>(held->data(), {held->size()}, owner),
                    nb::rv_policy::reference);
  }

  Recipe recipe_;
  PixelType type_;
  bool planar_;
  std::unique_ptr<Dataset> data_;
  Loader loader_;
  std::mutex consuming_;       // the loader has one consumer at a time
  std::optional<Taken> held_;  // taken from the loader, not returned yet; guarded by consuming_
  Batch spare_;                // one that was returned, for its samples' memory; guarded likewise
};

// saturate.Error with the message that the command would print, also for a missing file.
void register_error(nb::module_& module) {
  const nb::object error =
      nb::steal(PyErr_NewException("saturate.Error", PyExc_RuntimeError, nullptr));
  module.attr("Error") = error;
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Error& failure) {
          PyErr_SetObject(static_cast<PyObject*>(type), text_of(failure.what()).ptr());
        }
      },
      error.ptr());  // the module keeps it alive
}

}  // namespace

NB_MODULE(_core, module) {
  module.attr("__version__") = SATURATE_VERSION;
  register_error(module);
  nb::class_<PyLoader>(module, "Loader")
      .def(nb::init<const std::string&, const std::vector<std::string>&, bool, const std::string&,
                    bool, bool>(),
           nb::call_guard<nb::gil_scoped_release>())
      .def("start_epoch", &PyLoader::start_epoch)
      .def("next", &PyLoader::next)
      .def("skipped", &PyLoader::skipped)
      .def_prop_ro("skipped_count", &PyLoader::skipped_count)
      .def_prop_ro("batches", &PyLoader::batches)
      .def_prop_ro("batch", &PyLoader::batch)
      .def_prop_ro("seed", &PyLoader::seed)
      .def_prop_ro("size", &PyLoader::size)
      .def_prop_ro("classes", &PyLoader::classes);
}

}  // namespace saturate
