// The table of models with their factories.
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <iterator>
#include <vector>

#include "model/factories.h"
#include "saturate/data/error.h"
#include "saturate/model.h"

namespace saturate {
namespace {

#define SATURATE_ROW(name, doc, ...) {#name, doc, make_##name, {__VA_ARGS__}},
constexpr RegistryEntry<ModelFactory, ModelTraits> kModels[] = {SATURATE_MODELS(SATURATE_ROW)};
#undef SATURATE_ROW

// The table, and models added by programs.
std::vector<RegistryEntry<ModelFactory, ModelTraits>>& all_models() {
  static std::vector<RegistryEntry<ModelFactory, ModelTraits>> all(std::begin(kModels),
                                                                   std::end(kModels));
  return all;
}

}  // namespace

std::span<const RegistryEntry<ModelFactory, ModelTraits>> models() {
  return all_models();
}

void add_model(std::string_view name, std::string_view doc, ModelFactory make) {
  for (const auto& entry : models())
    if (entry.name == name)
      fail(ErrorKind::kUsage, "there is a model \"" + std::string(name) + "\" already", "add_model",
           "Give it another name");
  all_models().push_back({name, doc, make});
}

void require_size(const ModelOptions& options, const ImageShape& shape, int least) {
  if (shape.size >= least) return;
  fail(ErrorKind::kUsage,
       options.name + " needs images of at least " + std::to_string(least) + " pixels, not " +
           std::to_string(shape.size),
       "augment.size", "Raise augment.size, or choose another model.name");
}

void require_multiple(const ModelOptions& options, const ImageShape& shape, int step) {
  if (shape.size % step == 0) return;
  fail(ErrorKind::kUsage,
       options.name + " needs images whose side is a multiple of " + std::to_string(step) +
           ", not of " + std::to_string(shape.size) + " pixels",
       "augment.size", "Set augment.size to a multiple, or choose another model.name");
}

// set_data() keeps every handle that was given out pointing at the moved tensor.
void Model::to(const at::Device& device, bool channels_last) {
  const at::NoGradGuard no_grad;
  for (const auto& tensors : {parameters(), buffers()})
    for (const auto& [name, tensor] : tensors) {
      at::Tensor moved = tensor.to(device);
      if (channels_last && moved.dim() == 4)
        moved = moved.contiguous(at::MemoryFormat::ChannelsLast);
      tensor.set_data(moved);
    }
}

ModelFacets Model::facets() {
  return {};
}

std::unique_ptr<Model> make_model(const ModelOptions& options, const ImageShape& shape) {
  const auto& entry = find_entry(models(), options.name, "model.name");
  if (shape.classes < 1)
    fail(ErrorKind::kUsage,
         "a model needs at least one class, not " + std::to_string(shape.classes), "model.classes",
         "Set model.classes to the number of classes in the data");
  if (!std::isfinite(options.width) || options.width <= 0)
    fail(ErrorKind::kUsage, "the width must be positive, not " + std::to_string(options.width),
         "model.width", "Set model.width to a number above 0, such as 1.0");
  require_size(options, shape, 1);
  return entry.make(options, shape);
}

}  // namespace saturate
