// A task of your own: the position of a keypoint, as the highest point of a heat map that a network
// draws. Samples are tensors: an image with a cross among noise, and the heat map to draw.
//   keypoints FOLDER
#include <torch/nn.h>

#include <cmath>
#include <cstdio>

#include "saturate/data/error.h"
#include "saturate/data/random.h"
#include "saturate/module_model.h"
#include "saturate/task.h"
#include "saturate/trainer.h"

using namespace saturate;
constexpr int64_t kSide = 24;

class Crosses : public Dataset {
 public:
  Crosses(size_t count, uint32_t part) : count_(count), part_(part) {}
  size_t size() const override { return count_; }
  const std::vector<std::string>& classes() const override { return none_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  void read(size_t index, Sample& out) const override {
    RandomStream random(1, part_, index, RandomUse(1000));
    const auto x = int64_t(2 + random.below(kSide - 4)), y = int64_t(2 + random.below(kSide - 4));
    std::vector<float> values(2 * kSide * kSide);
    for (int64_t i = 0; i < kSide * kSide; ++i) {
      const int64_t dx = i % kSide - x, dy = i / kSide - y;
      const bool cross = (dx == 0 && std::abs(dy) <= 2) || (dy == 0 && std::abs(dx) <= 2);
      values[size_t(i)] = float(cross + 0.5 * random.normal());
      values[size_t(kSide * kSide + i)] = std::exp(-float(dx * dx + dy * dy) / 4);
    }
    const auto bytes = std::as_bytes(std::span(values));
    out.bytes.assign(bytes.begin(), bytes.end());
    out.encoding = SampleEncoding::kTensors;
    out.name = "cross " + std::to_string(index);
  }

 private:
  const size_t count_;
  const uint32_t part_;
  const std::vector<std::string> none_;
  const std::vector<TensorField> fields_ = {
      {"image", ElementType::kFloat32, {1, kSide, kSide}},
      {"heat", ElementType::kFloat32, {1, kSide, kSide}, /*is_target=*/true}};
};

// Cross entropy of the heat map, and the mean distance of its highest point from the right one.
class Keypoints : public Task {
 public:
  at::Tensor mean_loss(const at::Tensor& maps, const at::Tensor& labels, double) const override {
    return -(labels.flatten(1) * maps.flatten(1).log_softmax(1)).sum(1).mean();
  }
  std::vector<MetricName> metric_names() const override { return {{"pixels", false}}; }
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& maps,
                               const at::Tensor& labels) const override {
    const auto points = [](const at::Tensor& heat) {
      const at::Tensor highest = heat.flatten(1).argmax(1);
      return at::stack({highest % kSide, highest.floor_divide(kSide)}, 1).to(at::kDouble);
    };
    const at::Tensor pixels = (points(maps) - points(labels)).norm(2, 1).sum();
    return {at::stack({loss.to(at::kDouble) * labels.size(0), pixels})};
  }
  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t samples) const override {
    const at::Tensor means = sums.at(0).cpu() / double(samples);
    return {.loss = means[0].item<double>(), .values = {{"pixels", means[1].item<double>()}}};
  }
};

struct HeatMapNet : torch::nn::Module {
  HeatMapNet() { register_module("layers", layers); }
  at::Tensor forward(const at::Tensor& images) { return layers->forward(images); }
  static torch::nn::Conv2d conv(int64_t from, int64_t to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 5).padding(2));
  }
  torch::nn::Sequential layers{conv(1, 16), torch::nn::ReLU(), conv(16, 16), torch::nn::ReLU(),
                               conv(16, 1)};
};

int main(int argc, char** argv) try {
  Recipe recipe;
  recipe.optimizer.name = "adamw";
  recipe.optimizer.lr = 0.003;
  recipe.train.batch = 32;
  recipe.train.epochs = 3;
  TrainerOptions options;
  options.out = argc > 1 ? argv[1] : "runs/keypoints";
  options.dataset = std::make_shared<Crosses>(2000, /*part=*/0);
  options.eval_dataset = std::make_shared<Crosses>(400, /*part=*/1);
  options.model = make_module_model<HeatMapNet>();
  options.task = std::make_shared<Keypoints>();
  const double pixels = *Trainer(Env::posix(), recipe, options).run().eval->value("pixels");
  std::printf("held out: keypoints are found %.2f pixels away in the mean\n", pixels);
  return pixels < 1 ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
