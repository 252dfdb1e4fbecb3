// A run of custom objects: a model, a dataset, and an observer that logs a scalar and ends the run.
//   observer FOLDER
#include <torch/nn/modules/linear.h>

#include <cstdio>

#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "saturate/module_model.h"
#include "saturate/trainer.h"

struct Stripes : saturate::Dataset {
  size_t size() const override { return 640; }
  const std::vector<std::string>& classes() const override { return names; }
  void read(size_t index, saturate::Sample& out) const override {
    out.encoding = saturate::SampleEncoding::kRaw;
    out.width = out.height = 16, out.channels = 1;
    out.label = int64_t(index % 2);
    out.name = names[index % 2];
    out.bytes.assign(16 * 16, std::byte{0});
    for (size_t i = 0; i < out.bytes.size(); ++i)
      if ((out.label == 0 ? i / 16 : i) / 4 % 2) out.bytes[i] = std::byte{255};
  }
  const std::vector<std::string> names = {"across", "down"};
};

struct Linear : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) { return layer(images.flatten(1)); }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(3 * 16 * 16, 2));
};

struct GoodEnough : saturate::Observer {
  void on_record(saturate::MetricsRecord& record, saturate::ObserverContext& run) override {
    if (record.kind != "step") return;
    run.log("error", 1 - *record.accuracy);  // in metrics.jsonl and TensorBoard
    if (*record.accuracy == 1) run.stop("every image of the last steps was classified correctly");
  }
};

int main(int argc, char** argv) {
  try {
    saturate::Recipe recipe;
    recipe.optimizer.lr = 0.01;
    recipe.train.batch = 32;
    recipe.train.epochs = 20;
    saturate::TrainerOptions options;
    options.out = argc > 1 ? argv[1] : "runs/observer";
    options.model = saturate::make_module_model<Linear>();
    options.dataset = std::make_shared<Stripes>();
    options.observers = {std::make_shared<GoodEnough>()};
    saturate::Trainer trainer(saturate::Env::posix(), recipe, options);
    std::printf("%s", saturate::format_summary(trainer.run()).c_str());
    std::printf("%zu parameters\n", trainer.model().parameters().size());
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
