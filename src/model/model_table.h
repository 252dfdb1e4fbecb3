// The models, one row each: ROW(NAME, one line for `saturate list`, traits...), made by
// make_NAME(). The rules of recipes are compiled without torch and read the traits alone;
// models.cpp adds the factories.
#pragma once

#define SATURATE_MODELS(ROW)                                                                       \
  ROW(mlp, "one hidden layer of 128 units on the flattened pixels, or the values of a tensor",     \
      .takes_tensors = true)                                                                       \
  ROW(simple_cnn, "three convolutions with BatchNorm; learns small images in seconds")             \
  ROW(resnet9, "a residual network of nine layers for 32x32 images, fast on a CPU")                \
  ROW(airbench, "K. Jordan's network for 94 % on CIFAR-10 in seconds")                             \
  ROW(resnet18, "torchvision's ResNet-18, ImageNet stem")                                          \
  ROW(resnet18_cifar, "ResNet-18 for small images: a 3x3 first convolution, no pool")              \
  ROW(resnet34, "torchvision's ResNet-34, ImageNet stem")                                          \
  ROW(resnet50, "torchvision's ResNet-50, ImageNet stem")                                          \
  ROW(se_resnet18, "ResNet-18 with squeeze-and-excitation blocks, reduction 16")                   \
  ROW(mobilenet_v2, "torchvision's MobileNetV2: depthwise-separable convolutions")                 \
  ROW(vit_tiny, "vision transformer on 16x16 patches: 12 layers, 3 heads, 192 channels")           \
  ROW(vit_b_16, "torchvision's ViT-B/16: 12 layers, 12 heads, 768 channels")                       \
  ROW(toy_cnn, "2x2 convolutions that halve the image and double the channels, down to one pixel") \
  ROW(unet, "U-Net for segmentation: five levels, from 64 channels, with BatchNorm")               \
  ROW(toy_seg, "2x2 convolutions down to an eighth and up again, for segmentation")                \
  ROW(gpt_tiny, "GPT-2's architecture: 2 layers, 2 heads, 64 channels", .is_language = true)       \
  ROW(gpt_micro, "GPT-2's architecture: 4 layers, 4 heads, 128 channels", .is_language = true)     \
  ROW(gpt_mini, "GPT-2's architecture: 6 layers, 6 heads, 384 channels", .is_language = true)      \
  ROW(gpt2, "GPT-2: 12 layers, 12 heads, 768 channels, 124 M weights", .is_language = true)        \
  ROW(unet3d, "3-D U-Net for the classes of a volume's voxels: four levels, from 16 channels",     \
      .takes_tensors = true)                                                                       \
  ROW(resnet18_1d, "ResNet-18 along one dimension, for signals", .takes_tensors = true,            \
      .takes_lengths = true)                                                                       \
  ROW(torchscript, "a module of your own, from Python: model.file", .is_file = true,               \
      .takes_tensors = true)
