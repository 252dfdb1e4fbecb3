// The loader as a Python class; saturate/__init__.py wraps it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/printable.h"
#include "loader_setup.h"
#include "others_run.h"
#include "parts.h"
#include "python_values.h"
#include "saturate/data/effects.h"
#include "saturate/data/error.h"
#include "saturate/data/loader.h"
#include "saturate/data/world.h"

namespace saturate {
namespace {

class PyLoader {
 public:
  explicit PyLoader(const Setup& setup)
      : recipe_(recipe_of(setup)),
        planar_(setup.planar),
        soft_(setup.soft_labels),
        mixes_(setup.mixes),
        trains_(setup.train),
        mixable_(setup.train && (recipe_.augment.mixup > 0 || recipe_.augment.cutmix > 0)),
        vectors_(setup.vectors),
        data_(open_data(setup, recipe_)),
        size_(data_->size()),
        has_masks_(data_->has_masks()),
        tensors_(data_->tensors()),
        classes_(data_->classes()),
        loader_(std::make_unique<Loader>(*data_, loader_options(recipe_, setup, *data_),
                                         recipe_.augment, allocator_of(setup))),
        batches_(loader_->batches()) {}
  ~PyLoader() {
    if (is_forked())
      static_cast<void>(new std::pair(std::move(loader_), std::move(data_)));  // never ended
    close();
  }
  PyLoader(const PyLoader&) = delete;
  PyLoader& operator=(const PyLoader&) = delete;

  // Ends the threads, which may need Python's lock to finish, and frees the source.
  void close() {
    if (is_forked()) return;
    const OthersRun others_run;
    std::shared_ptr<Dataset> data;  // freed when nothing is locked, since it may call Python
    const MutexLock one_consumer(consuming_);
    held_.reset();
    data = std::move(data_);
    // Python's collector may have freed this on one of the threads to wait for.
    if (loader_ && is_reading_own())
      std::thread([loader = std::move(loader_), data]() mutable { loader.reset(); }).detach();
    loader_.reset();
  }

  // Returns the number of this pass, which next() takes.
  uint64_t start_epoch(uint32_t epoch, size_t first_batch) {
    const OthersRun others_run;
    const MutexLock one_consumer(consuming_);
    held_.reset();
    ++pass_;  // also if this fails, so that the one before does not continue
    opened_loader().start_epoch(epoch, first_batch);
    return pass_;
  }

  // (images, target, names, place in the epoch, mix), or None at the end; `target` is the labels,
  // (labels, mixed labels, lambda), soft labels or masks; `mix` is None, or how the caller has to
  // mix the images. Of a source with tensors, `images` is a dictionary of all fields, and `target`
  // None. A signal's exception (Ctrl-C) ends the wait; the next call then returns the
  // batch.
  nb::object next(uint64_t pass) {
    std::optional<Taken> taken;
    for (int looks = 0; !taken; ++looks) {
      fetch(pass, looks);
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      // Never blocks on another waiting thread, since this thread holds Python's lock.
      if (!consuming_.try_lock()) continue;
      const MutexLock one_consumer(consuming_, std::adopt_lock);
      check_current(pass);
      taken.swap(held_);
    }
    if (!taken->more) return nb::none();
    Batch& batch = taken->batch;
    nb::list names;
    for (const BatchSample& sample : batch.samples)
      if (!sample.name.empty()) names.append(name_of(sample.name));
    const bool tensors = batch.columns != nullptr;
    const nb::object result = nb::make_tuple(tensors ? columns(batch) : images(batch),
                                             tensors ? nb::none() : target(batch), names,
                                             batch.place, mixes_ ? nb::none() : mix_of(batch.mix));
    batch.pixels.reset();
    batch.masks.reset();
    if (!consuming_.try_lock()) return result;
    const MutexLock one_consumer(consuming_, std::adopt_lock);
    spare_ = std::move(batch);
    return result;
  }

  // Whether next() would not wait.
  bool ready() {
    if (!consuming_.try_lock()) return false;
    const MutexLock one_consumer(consuming_, std::adopt_lock);
    return held_ || (loader_ && loader_->ready() > 0);
  }

  size_t batches() const { return batches_; }
  int batch() const { return recipe_.train.batch; }
  uint64_t seed() const { return recipe_.seed; }
  // "full", "block:4096" or "none", for the samples of an epoch.
  std::string order() const {
    const ShuffleOptions& shuffle = recipe_.data.shuffle;
    if (!trains_ || shuffle.mode == ShuffleMode::kNone) return "none";
    return shuffle.mode == ShuffleMode::kFull ? "full" : "block:" + std::to_string(shuffle.block);
  }
  size_t size() const { return size_; }
  std::vector<double> mean() const { return recipe_.augment.mean; }
  std::vector<double> deviation() const { return recipe_.augment.std; }
  bool has_masks() const { return has_masks_; }
  // The name of each field, and whether it is the target; empty for images.
  nb::list fields() const {
    nb::list list;
    for (const TensorField& field : tensors_)
      list.append(nb::make_tuple(text_of(field.name), field.is_target));
    return list;
  }
  // Whether a field is a volume, to which options of augmentation apply.
  bool has_volumes() const { return std::ranges::any_of(tensors_, &TensorField::is_volume); }
  nb::list classes() const {
    nb::list list;
    for (const std::string& name : classes_) list.append(text_of(name));
    return list;
  }
  nb::list skipped() const {
    nb::list list;
    for (const SkippedSample& sample : of_loader(&Loader::skipped))
      list.append(nb::make_tuple(name_of(sample.name), text_of(sample.reason)));
    return list;
  }
  size_t skipped_count() const { return of_loader(&Loader::skipped_count); }

 private:
  struct Taken {
    Batch batch;
    bool more = false;  // false: the end of the epoch
  };
  static constexpr auto kLook = std::chrono::milliseconds(50);  // between two checks for signals

  // A forked process has none of the threads, which it would wait for.
  bool is_forked() const { return getpid() != process_; }

  // A value of the loader; the default once it is closed.
  template <class Value>
  Value of_loader(Value (Loader::*read)() const) const {
    const OthersRun others_run;
    const MutexLock one_consumer(consuming_);
    return loader_ ? (loader_.get()->*read)() : Value();
  }

  Loader& opened_loader() NEEDS_LOCK(consuming_) {
    if (!loader_) fail(ErrorKind::kUsage, "it is closed", "loader", "Make a new saturate.Loader");
    return *loader_;
  }

  // While a pass waits, another thread may start the next.
  void check_current(uint64_t pass) const NEEDS_LOCK(consuming_) {
    if (pass != pass_)
      fail(ErrorKind::kUsage, "this iteration was ended by a newer one over the same loader",
           "loader", "Make a separate saturate.Loader for each of two concurrent iterations");
  }

  // Takes the next batch, or the end, if it comes within kLook. Fails after the wait limit.
  void fetch(uint64_t pass, int looks) {
    const OthersRun others_run;
    const MutexLock one_consumer(consuming_);
    Loader& loader = opened_loader();
    check_current(pass);
    if (held_) return;
    if (!loader.wait(kLook)) {
      const auto limit = wait_limit_for(recipe_.data.store);
      if (looks * kLook < limit) return;
      fail(ErrorKind::kRun,
           "no batch came within " + std::to_string(limit / std::chrono::seconds(1)) + " s",
           "loader", "Look for storage that hangs under data.source");
    }
    Taken taken{std::move(spare_)};
    taken.more = loader.next(taken.batch);
    const Batch& batch = taken.batch;
    if (taken.more && mixes_)
      mix_images(batch.mix, batch.type, batch.output == BatchOutput::kPlanar, batch.count(),
                 batch.size, batch.pixels.get());
    held_ = std::move(taken);
  }

  static nb::object columns(const Batch& batch) {
    nb::dict fields;
    for (const BatchColumn& column : *batch.columns) {
      std::vector<size_t> shape = {batch.count()};
      shape.insert(shape.end(), column.field.shape.begin(), column.field.shape.end());
      fields[text_of(column.field.name)] = nb::cast(
          nb::ndarray<nb::array_api>(batch.pixels.get() + column.offset, shape.size(), shape.data(),
                                     keeper(batch.pixels), nullptr, dlpack_type(column.field.type),
                                     nb::device::cpu::value, 0),
          nb::rv_policy::reference);
    }
    return fields;
  }

  nb::object images(const Batch& batch) const {
    const auto height = size_t(batch.size.height), width = size_t(batch.size.width);
    const size_t count = batch.count();
    const bool seen_as_planes = planar_ && batch.output != BatchOutput::kPlanar;
    const size_t nchw[] = {count, 3, height, width}, nhwc[] = {count, height, width, 3};
    const int64_t interleaved[] = {3 * batch.size.area(), 1, 3 * batch.size.width, 3};
    return nb::cast(
        nb::ndarray<nb::array_api>(batch.pixels.get(), 4, planar_ ? nchw : nhwc,
                                   keeper(batch.pixels), seen_as_planes ? interleaved : nullptr,
                                   dlpack_type(batch.type), nb::device::cpu::value, 0),
        nb::rv_policy::reference);
  }

  nb::object masks(const Batch& batch) const {
    const auto height = size_t(batch.size.height), width = size_t(batch.size.width);
    const std::shared_ptr<std::byte>& memory = batch.masks ? batch.masks : batch.pixels;
    return nb::cast(nb::ndarray<nb::array_api, uint8_t>(
                        memory.get(), {batch.count(), height, width}, keeper(memory)),
                    nb::rv_policy::reference);
  }

  nb::object target(const Batch& batch) const {
    if (has_masks_) return masks(batch);
    if (!vectors_)
      return labels<int64_t>(batch, {batch.count()},
                             [](const BatchSample& sample) { return std::span(&sample.label, 1); });
    return vectors_->is_float() ? several<float>(batch) : several<int64_t>(batch);
  }

  // target() of samples with several labels each.
  template <class Value>
  nb::object several(const Batch& batch) const {
    return labels<Value>(batch, {batch.count(), vectors_->width()}, [&](const BatchSample& sample) {
      return vectors_->at<Value>(sample.index);
    });
  }

  // The labels of samples and of those they are mixed with, of `shape` each, as target() returns
  // them; `labels_of` returns a sample's. The heavier come first, as in DeviceBatch.
  template <class Value, class LabelsOf>
  nb::object labels(const Batch& batch, const std::vector<size_t>& shape,
                    const LabelsOf& labels_of) const {
    const size_t count = batch.count();
    std::vector<Value> own, other;
    for (size_t i = 0; i < count; ++i) {
      const auto values = labels_of(batch.samples[i]);
      own.insert(own.end(), values.begin(), values.end());
    }
    const size_t moved = count == 0 ? 0 : own.size() / count * (batch.mix.offset % count);
    std::ranges::rotate_copy(own, own.end() - std::ptrdiff_t(moved), std::back_inserter(other));
    double lambda = batch.mix.lambda;
    if (lambda < 0.5) {
      own.swap(other);
      lambda = 1 - lambda;
    }
    if (soft_ && vectors_) {
      std::vector<float> weighted(own.size());
      for (size_t i = 0; i < own.size(); ++i)
        weighted[i] = float(lambda * double(own[i]) + (1 - lambda) * double(other[i]));
      return array_of(std::move(weighted), shape);
    }
    if (soft_) return soft(own, other, lambda);
    if (!mixable_) return array_of(std::move(own), shape);
    return nb::make_tuple(array_of(std::move(own), shape), array_of(std::move(other), shape),
                          lambda);
  }

  // One weight for each class, of samples with one label each.
  template <class Value>
  nb::object soft(const std::vector<Value>& own, const std::vector<Value>& other,
                  double lambda) const {
    const size_t count = own.size(), classes = classes_.size();
    std::vector<float> weights(count * classes);
    for (size_t i = 0; i < count; ++i) {
      weights[i * classes + size_t(own[i])] += float(lambda);
      weights[i * classes + size_t(other[i])] += float(1 - lambda);
    }
    return array_of(std::move(weights), {count, classes});
  }

  static nb::object mix_of(const Mix& mix) {
    if (mix.kind == MixKind::kNone) return nb::none();
    return nb::make_tuple(mix.kind == MixKind::kCutMix, mix.lambda, mix.offset, mix.box.x,
                          mix.box.y, mix.box.width, mix.box.height);
  }

  const pid_t process_ = getpid();
  const Recipe recipe_;
  const bool planar_, soft_;
  const bool mixes_;  // pixels; the labels always
  const bool trains_;
  const bool mixable_;                                    // whether labels are pairs
  const std::shared_ptr<LabelVectors> vectors_;           // null: a sample has one label, or a mask
  mutable Mutex consuming_;                               // the loader has one consumer at a time
  std::shared_ptr<Dataset> data_ GUARDED_BY(consuming_);  // null once closed
  const size_t size_;
  const bool has_masks_;
  const std::vector<TensorField> tensors_;
  const std::vector<std::string> classes_;
  std::unique_ptr<Loader> loader_ GUARDED_BY(consuming_);  // null once closed
  const size_t batches_;
  uint64_t pass_ GUARDED_BY(consuming_) = 0;
  std::optional<Taken> held_ GUARDED_BY(consuming_);  // taken from the loader, not returned yet
  Batch spare_ GUARDED_BY(consuming_);  // one that was returned, for its samples' memory
};

// (rank, world size, whose variables said so).
nb::tuple launched_world() {
  const World world = world_of_launcher();
  return nb::make_tuple(world.rank, world.size, world.told_by);
}

}  // namespace

NB_MODULE(_core, module) {
  // With torch but without numpy, Python ends before it frees a script's loader, which is no error.
  nb::set_leak_warnings(false);
  module.attr("__version__") = SATURATE_VERSION;
  register_error(module);
  module.def("begin_exit", &begin_exit);
  module.def("launched_world", &launched_world);
  module.def("without_queries", &without_queries, nb::arg("text"));
  register_gains(module);
  register_report(module);
  register_phase_clock(module);
  nb::class_<PyLoader>(module, "Loader")
      .def(
          "__init__",
          [](PyLoader* loader, std::string source, nb::object own, size_t own_size,
             std::string own_target, std::vector<std::string> classes,
             std::vector<std::string> overrides, uint32_t epochs, bool train, std::string dtype,
             bool planar, bool names, int rank, int world, bool soft_labels, bool mixes,
             nb::object allocate) {
            auto vectors =
                own_target == "labels" ? std::make_shared<LabelVectors>(own_size) : nullptr;
            new (loader) PyLoader({std::move(source), std::move(own), own_size, std::move(classes),
                                   own_target == "mask", vectors, std::move(overrides), epochs,
                                   train, planar, names, std::move(dtype), rank, world, soft_labels,
                                   mixes, std::move(allocate)});
          },
          nb::arg("source"), nb::arg("own").none(), nb::arg("own_size"), nb::arg("own_target"),
          nb::arg("classes"), nb::arg("overrides"), nb::arg("epochs"), nb::arg("train"),
          nb::arg("dtype"), nb::arg("planar"), nb::arg("names"), nb::arg("rank"), nb::arg("world"),
          nb::arg("soft_labels"), nb::arg("mixes"), nb::arg("allocate").none())
      .def("start_epoch", &PyLoader::start_epoch)
      .def("next", &PyLoader::next)
      .def("close", &PyLoader::close)
      .def("skipped", &PyLoader::skipped)
      .def_prop_ro("ready", &PyLoader::ready)
      .def_prop_ro("skipped_count", &PyLoader::skipped_count)
      .def_prop_ro("batches", &PyLoader::batches)
      .def_prop_ro("batch", &PyLoader::batch)
      .def_prop_ro("seed", &PyLoader::seed)
      .def_prop_ro("order", &PyLoader::order)
      .def_prop_ro("size", &PyLoader::size)
      .def_prop_ro("mean", &PyLoader::mean)
      .def_prop_ro("std", &PyLoader::deviation)
      .def_prop_ro("has_masks", &PyLoader::has_masks)
      .def_prop_ro("fields", &PyLoader::fields)
      .def_prop_ro("has_volumes", &PyLoader::has_volumes)
      .def_prop_ro("classes", &PyLoader::classes);
}

}  // namespace saturate
