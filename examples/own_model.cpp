// A custom network and loss, trained by Trainer with checkpoints, evaluation, schedule, averaged
// weights and report, like any built-in model.
//   own_model FOLDER
#include <torch/nn.h>

#include <cstdio>

#include "saturate/data/error.h"
#include "saturate/module_model.h"
#include "saturate/trainer.h"

namespace nn = torch::nn;

// Patches of 4 x 4 pixels, mixed by depthwise convolutions (a small ConvMixer), and the focal loss
// of Lin et al. (https://arxiv.org/abs/1708.02002), which weighs easy images less.
class PatchMixer : public nn::Module {
 public:
  explicit PatchMixer(int64_t classes) {
    const int64_t width = 64;
    layers_->push_back(nn::Conv2d(nn::Conv2dOptions(3, width, 4).stride(4)));
    for (int i = 0; i < 3; ++i) {
      layers_->push_back(nn::GELU());
      layers_->push_back(nn::BatchNorm2d(width));
      layers_->push_back(nn::Conv2d(nn::Conv2dOptions(width, width, 5).groups(width).padding(2)));
      layers_->push_back(nn::GELU());
      layers_->push_back(nn::BatchNorm2d(width));
      layers_->push_back(nn::Conv2d(nn::Conv2dOptions(width, width, 1)));
    }
    layers_->push_back(nn::AdaptiveAvgPool2d(1));
    layers_->push_back(nn::Flatten());
    layers_->push_back(nn::Linear(width, classes));
    register_module("layers", layers_);
  }

  // images [N, 3, H, W] to logits [N, classes]
  at::Tensor forward(const at::Tensor& images) { return layers_->forward(images); }

  // The mean over the images; without this method it would be cross entropy.
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& labels) {
    const at::Tensor log_p = logits.log_softmax(1).gather(1, labels.unsqueeze(1));
    return -((1 - log_p.exp()).square() * log_p).mean();
  }

 private:
  nn::Sequential layers_;
};

int run(const std::string& folder) {
  saturate::add_model("patch_mixer", "an example's own",
                      [](const saturate::ModelOptions&, const saturate::ModelInput& input) {
                        return saturate::make_module_model<PatchMixer>(input.outputs);
                      });
  saturate::Recipe recipe;
  recipe.data.source = "synth:size=32,count=600,difficulty=0.1,split=train";
  recipe.data.eval_source = "synth:size=32,count=200,difficulty=0.1,split=test";
  recipe.model.name = "patch_mixer";
  recipe.optimizer.name = "adamw";
  recipe.optimizer.lr = 0.005;
  recipe.train.batch = 48;
  recipe.train.epochs = 2;

  saturate::TrainerOptions options;
  options.out = folder;
  saturate::Trainer trainer(saturate::Env::posix(), recipe, options);
  const saturate::TrainResult result = trainer.run();
  std::printf("held out: focal loss %.3f, accuracy %.1f%%; weights in %s\n", result.eval->loss,
              100 * *result.eval->value("accuracy"), result.checkpoint.c_str());
  return 0;
}

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "runs/own_model");
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
