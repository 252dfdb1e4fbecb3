// The table of models.
#include <array>
#include <cmath>
#include <vector>

#include "model/factories.h"
#include "saturate/data/error.h"
#include "saturate/model.h"

namespace saturate {
namespace {

constexpr std::array<RegistryEntry<ModelFactory>, 16> kModels{{
    {"mlp", "one hidden layer of 128 units on the flattened pixels", make_mlp},
    {"simple_cnn", "three convolutions with BatchNorm; learns small images in seconds",
     make_simple_cnn},
    {"resnet9", "a residual network of nine layers for 32x32 images, fast on a CPU", make_resnet9},
    {"airbench", "K. Jordan's network for 94 % on CIFAR-10 in seconds", make_airbench},
    {"resnet18", "torchvision's ResNet-18, ImageNet stem", make_resnet18},
    {"resnet18_cifar", "ResNet-18 for small images: a 3x3 first convolution, no pool",
     make_resnet18_cifar},
    {"resnet34", "torchvision's ResNet-34, ImageNet stem", make_resnet34},
    {"resnet50", "torchvision's ResNet-50, ImageNet stem", make_resnet50},
    {"se_resnet18", "ResNet-18 with squeeze-and-excitation blocks, reduction 16", make_se_resnet18},
    {"mobilenet_v2", "torchvision's MobileNetV2: depthwise-separable convolutions",
     make_mobilenet_v2},
    {"vit_tiny", "vision transformer on 16x16 patches: 12 layers, 3 heads, 192 channels",
     make_vit_tiny},
    {"vit_b_16", "torchvision's ViT-B/16: 12 layers, 12 heads, 768 channels", make_vit_b_16},
    {"toy_cnn", "2x2 convolutions that halve the image and double the channels, down to one pixel",
     make_toy_cnn},
    {"unet", "U-Net for segmentation: five levels, from 64 channels, with BatchNorm", make_unet},
    {"toy_seg", "2x2 convolutions down to an eighth and up again, for segmentation", make_toy_seg},
    {"torchscript", "a module of your own, from Python: model.file", make_torchscript},
}};

// The table, and models added by programs.
std::vector<RegistryEntry<ModelFactory>>& all_models() {
  static std::vector<RegistryEntry<ModelFactory>> all(kModels.begin(), kModels.end());
  return all;
}

}  // namespace

std::span<const RegistryEntry<ModelFactory>> models() {
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
