#include "loader_setup.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <future>
#include <iterator>
#include <source_location>
#include <string_view>
#include <utility>

#include "base/cancel.h"
#include "others_run.h"
#include "saturate/data/env.h"
#include "saturate/data/input.h"

namespace nb = nanobind;

namespace saturate {
namespace {

PixelType type_named(const std::string& name) {
  if (name == "uint8") return PixelType::kUint8;
  if (name == "bfloat16") return PixelType::kBfloat16;
  if (name == "float16") return PixelType::kFloat16;
  if (name == "float32") return PixelType::kFloat32;
  fail(ErrorKind::kUsage, "unknown dtype \"" + name + "\"", "dtype",
       "Use uint8, bfloat16, float16 or float32");
}

void check_mixing(const Recipe& recipe, const Setup& setup) {
  const bool mixes = recipe.augment.mixup > 0 || recipe.augment.cutmix > 0;
  if (mixes && setup.train && setup.mixes && setup.dtype == "uint8")
    fail(ErrorKind::kUsage, "images of bytes cannot be mixed", "dtype", "Use a float dtype");
}

// Ends reads of an OwnSource, whose processes may hang.
void stop_reads(const nb::object& read) {
  try {
    if (!read.is_none()) read.attr("__self__").attr("stop")();
  } catch (const nb::python_error&) {  // a signal again: the processes are killed all the same
  }
}

// Opens data on another thread while this one looks for signals: a look needs Python's lock, which
// must not be waited for where the store's are held. The exception of a signal, such as that of
// Ctrl-C, ends waits for the store and data.stage's copy, and is thrown in the place of their
// error.
template <class Open>
std::unique_ptr<Dataset> until_signalled(const nb::object& own, const Open& open) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  std::atomic<bool> stops{false};
  std::exception_ptr signal;
  auto data = std::async(std::launch::async, [&] {
    const CancelScope scope([&] { return stops.load(); });
    return open();
  });
  const auto has_opened = [&] {
    const OthersRun others_run;
    return data.wait_for(kLook) == std::future_status::ready;
  };
  while (!has_opened()) {
    if (stops || PyErr_CheckSignals() == 0) continue;
    signal = std::make_exception_ptr(nb::python_error());
    stops = true;
    stop_reads(own);
  }
  if (signal) std::rethrow_exception(signal);
  return data.get();
}

}  // namespace

World world_of_launcher() {
  return parse_world([](const char* name) {
    const char* const value = std::getenv(name);
    if (value && *value) return value;
    const std::string_view asked(name);
    return asked == "MASTER_ADDR" ? "localhost" : asked == "MASTER_PORT" ? "29500" : value;
  });
}

namespace {

// Whether a loader uses a recipe's key, which may be one of earlier versions.
bool is_used(std::string_view key) {
  constexpr std::string_view kOthers[] = {"train.batch", "train.drop_last", "distributed.uneven",
                                          "seed"};
  constexpr std::string_view kUnused[] = {"data.source", "data.eval_source", "data.decode_device",
                                          "augment.device", "augment.output"};
  if (std::ranges::find(kUnused, key) != std::end(kUnused)) return false;
  return key.starts_with("data.") || key.starts_with("augment.") ||
         std::ranges::find(kOthers, key) != std::end(kOthers);
}

void require_used(const std::vector<std::string>& overrides) {
  for (const std::string& setting : overrides)
    if (const std::string key = setting.substr(0, setting.find('=')); !is_used(key))
      fail(ErrorKind::kUsage, "a Python loader does not use this key", key,
           key == "augment.output" ? "Remove it, or give dtype=" : "Remove it");
}

}  // namespace

Recipe recipe_of(const Setup& setup) {
  std::vector<std::string> all{"data.source=" + setup.source};
  all.insert(all.end(), setup.overrides.begin(), setup.overrides.end());
  Recipe recipe = parse_recipe("", "saturate.Loader", all);
  if (recipe.data.threads == 0) recipe.data.threads = available_cores();
  require_used(setup.overrides);
  if (recipe.train.batch == kAutomatic)
    fail(ErrorKind::kUsage, "only training can choose the batch", "train.batch",
         "Give batch= a number");
  if (recipe.data.cache.mode == CacheMode::kDevice)
    fail(ErrorKind::kUsage, "the Python loader holds no images on a device", "data.cache",
         "Set data.cache=ram");
  check_mixing(recipe, setup);
  return recipe;
}

std::unique_ptr<Dataset> open_data(const Setup& setup, const Recipe& recipe) {
  std::unique_ptr<Dataset> data;
  if (setup.own.is_none()) {
    data = until_signalled(setup.own,
                           [&] { return open_input(Env::posix(), setup.source, recipe.data); });
  } else {
    auto own =
        make_own_dataset(setup.own, setup.own_size, setup.classes, setup.own_masks, setup.vectors);
    data = until_signalled(setup.own, [&] {
      return cache_dataset(stage_dataset(Env::posix(), std::move(own), setup.source,
                                         recipe.data.stage, recipe.data.threads),
                           recipe.data.cache);
    });
  }
  if (!data->tensors().empty()) {
    if (setup.soft_labels)
      fail(ErrorKind::kUsage, "the source has tensors, and soft labels are of images", setup.source,
           "Leave soft_labels out");
    return data;
  }
  if (!recipe.augment.size.is_set())
    fail(ErrorKind::kUsage, "the size of the images is not set", "augment.size",
         "Set size=, the side of square images in pixels, or (height, width)");
  const bool mixes = recipe.augment.mixup > 0 || recipe.augment.cutmix > 0;
  if (data->has_masks() && (mixes || setup.soft_labels))
    fail(ErrorKind::kUsage, "masks cannot be mixed, nor be soft labels", setup.source,
         "Leave mixup, cutmix and soft_labels out");
  if (setup.soft_labels && !setup.vectors && data->classes().empty())
    fail(ErrorKind::kUsage, "the number of classes is not known", "soft_labels",
         "Name the classes with classes=[...]");
  return data;
}

BufferAllocator allocator_of(const Setup& setup) {
  if (setup.allocate.is_none()) return {};
  return [held = shared_object(setup.allocate)](size_t bytes) -> std::shared_ptr<std::byte> {
    const nb::gil_scoped_acquire locked;
    try {
      const nb::tuple result = nb::cast<nb::tuple>(nb::handle(held.get())(bytes));
      return {shared_object(nb::borrow(result[0])),
              reinterpret_cast<std::byte*>(nb::cast<uintptr_t>(result[1]))};
    } catch (nb::python_error& error) {  // the loader throws it again, and Python takes it once
      throw PythonCausedError(
          Error(ErrorKind::kRun, "the memory of a batch cannot be allocated", "loader",
                "Lower prefetch or batch_size", std::source_location::current()),
          shared_object(nb::borrow(error.value())));
    }
  };
}

// With the processes of this machine, as the launcher's variables say, which may be of another
// group.
Shard shard_of(const Setup& setup, const Recipe& recipe) {
  Shard shard{setup.rank, setup.world, recipe.distributed.uneven};
  if (shard.world == 1) return shard;
  try {
    const World world = world_of_launcher();
    if (world.rank != shard.rank || world.size != shard.world) return shard;
    shard.first_local = world.rank - world.local_rank;
    shard.local_size = world.local_size;
  } catch (const Error&) {
    // Rank and world are given: the variables need not be right.
  }
  return shard;
}

LoaderOptions loader_options(const Recipe& recipe, const Setup& setup, const Dataset& data) {
  LoaderOptions options;
  options.batch = size_t(recipe.train.batch);
  options.shard = shard_of(setup, recipe);
  options.threads = recipe.data.threads;
  options.nice = std::max(0, recipe.data.nice);
  options.prefetch = recipe.data.prefetch;
  options.shuffle = recipe.data.shuffle;
  if (!setup.train) options.shuffle.mode = ShuffleMode::kNone;
  options.drop_last = setup.train && recipe.train.drop_last;
  options.epochs = setup.epochs;
  options.train = setup.train;
  options.on_error = recipe.data.on_error;
  options.decode = recipe.data.decode;
  options.type = type_named(setup.dtype);
  // Interleaved memory can be viewed as planes; uint8 batches are never planar.
  if (setup.planar && options.type != PixelType::kUint8) options.output = BatchOutput::kPlanar;
  options.names = setup.names;
  options.masks = data.has_masks();
  if (!data.tensors().empty()) options.output = BatchOutput::kTensors;
  options.seed = recipe.seed;
  options.wait_limit = wait_limit_for(recipe.data.store);
  return options;
}

}  // namespace saturate
