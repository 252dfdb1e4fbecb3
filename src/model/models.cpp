// The table of models with their factories.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

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

// "mlp or model.name=torchscript".
std::string names_with(bool ModelTraits::*trait) {
  std::string names;
  for (const auto& entry : all_models())
    if (entry.traits.*trait)
      names += (names.empty() ? "" : " or model.name=") + std::string(entry.name);
  return names;
}

// Padding follows the tokens, and a language model is causal.
void require_lengths(std::string_view name, const ModelTraits& traits, const ModelInput& input) {
  const bool tokens = input.is_tokens();
  if (traits.takes_lengths || (tokens && traits.is_language)) return;
  fail(ErrorKind::kUsage,
       std::string(name) + " does not take samples of varying length, such as " + input.tensor.name,
       "model.name",
       "Set model.name=" +
           names_with(tokens ? &ModelTraits::is_language : &ModelTraits::takes_lengths) +
           (tokens ? ""
                   : ", or read or pack the arrays without ,lengths=NAME to train on them as "
                     "padded"));
}

std::vector<ImageSize> all_sizes(const ModelInput& input) {
  std::vector<ImageSize> sizes = input.other_sizes;
  sizes.push_back(input.size);
  return sizes;
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
  all_models().push_back({name, doc, make, {.takes_tensors = true, .takes_lengths = true}});
}

bool ModelInput::is_tokens() const {
  return !is_images() && tensor.type == ElementType::kInt64 && tensor.shape.size() == 1 &&
         tensor.values > 0;
}

std::vector<int64_t> ModelInput::batch_shape(int64_t count) const {
  if (is_images()) return {count, 3, size.height, size.width};
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
  return shape;
}

at::Tensor ModelInput::zeros(int64_t count) const {
  const bool whole = !is_images() && tensor.type == ElementType::kInt64;
  const at::Tensor samples = at::zeros(batch_shape(count), whole ? at::kLong : at::kFloat);
  if (tensor.is_sequence && !is_tokens()) samples.select(1, -1).fill_(1);  // without padding
  return samples;
}

void require_size(const ModelOptions& options, const ModelInput& input, int least) {
  for (const ImageSize& size : all_sizes(input))
    if (size.shorter() < least)
      fail(ErrorKind::kUsage,
           options.name + " needs images of at least " + std::to_string(least) + " pixels, not " +
               text_of(size),
           "augment.size", "Raise augment.size, or choose another model.name");
}

void require_multiple(const ModelOptions& options, const ModelInput& input, int step) {
  for (const ImageSize& size : all_sizes(input))
    if (size.height % step != 0 || size.width % step != 0)
      fail(ErrorKind::kUsage,
           options.name + " needs images whose sides are multiples of " + std::to_string(step) +
               " pixels; they are " + text_of(size),
           "augment.size", "Set augment.size to a multiple, or choose another model.name");
}

void require_one_size(const ModelOptions& options, const ModelInput& input) {
  if (input.other_sizes.empty()) return;
  fail(ErrorKind::kUsage,
       options.name + " takes images of one size, and augment.size changes it by epoch",
       "augment.size", "Give augment.size one size, or choose another model.name");
}

void require_square(const ModelOptions& options, const ModelInput& input) {
  require_one_size(options, input);
  if (input.size.is_square()) return;
  fail(ErrorKind::kUsage,
       options.name + " needs square images, not of " + text_of(input.size) + " pixels",
       "augment.size", "Give augment.size an integer, or choose another model.name");
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

std::unique_ptr<Model> make_model(const ModelOptions& options, const ModelInput& input) {
  const auto& entry = find_entry(models(), options.name, "model.name");
  if (input.outputs < 1)
    fail(ErrorKind::kUsage,
         "a model needs at least one class, not " + std::to_string(input.outputs), "model.classes",
         "Set model.classes to the number of classes in the data");
  if (!std::isfinite(options.width) || options.width <= 0)
    fail(ErrorKind::kUsage, "the width must be positive, not " + std::to_string(options.width),
         "model.width", "Set model.width to a number above 0, such as 1.0");
  if (entry.traits.is_language) {
    if (!input.is_tokens())
      fail(ErrorKind::kUsage, options.name + " is a language model, and the samples are not tokens",
           "model.name", "Give a source of tokens, as tokens:FILE, or choose another model.name");
  } else if (input.is_images()) {
    require_size(options, input, 1);
  } else if (!entry.traits.takes_tensors) {
    fail(ErrorKind::kUsage,
         options.name + " takes images, and the samples are tensors, " + input.tensor.name,
         "model.name",
         "Set model.name=" + names_with(input.is_tokens() ? &ModelTraits::is_language
                                                          : &ModelTraits::takes_tensors));
  }
  if (input.tensor.is_sequence) require_lengths(entry.name, entry.traits, input);
  return entry.make(options, input);
}

}  // namespace saturate
