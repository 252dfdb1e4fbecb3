// The model factories of the table in models.cpp. They may assume make_model()'s checks: positive
// width, classes and size.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "saturate/model.h"

namespace saturate {

std::unique_ptr<Model> make_mlp(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_simple_cnn(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_airbench(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_resnet9(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_resnet18(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_resnet18_cifar(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_resnet34(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_resnet50(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_se_resnet18(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_mobilenet_v2(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_vit_tiny(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_vit_b_16(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_toy_cnn(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_unet(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_toy_seg(const ModelOptions& options, const ImageShape& shape);
std::unique_ptr<Model> make_torchscript(const ModelOptions& options, const ImageShape& shape);

// Fails with kUsage if `shape.size` is below `least`.
void require_size(const ModelOptions& options, const ImageShape& shape, int least);

// Fails with kUsage unless `shape.size` is a multiple of `step`.
void require_multiple(const ModelOptions& options, const ImageShape& shape, int step);

// A number of channels multiplied by model.width, at least 1.
inline int64_t scaled(int64_t channels, double width) {
  return std::max<int64_t>(1, std::llround(double(channels) * width));
}

}  // namespace saturate
