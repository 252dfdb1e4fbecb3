// Fine-tuning in a custom loop: a frozen encoder before a decoder that is trained in two groups,
// its last layer at ten times the learning rate. With Trainer, the recipe's optimizer.freeze and
// optimizer.lr_factors do the same.
#include <torch/nn.h>

#include <cstdio>
#include <thread>

#include "saturate/data/error.h"
#include "saturate/feed.h"
#include "saturate/optimizer.h"
#include "saturate/schedule.h"

namespace nn = torch::nn;

int run() {
  const auto dataset =
      saturate::open_dataset(saturate::Env::posix(), "synth:size=32,count=1600,difficulty=0.1");
  saturate::AugmentOptions augment;
  augment.size = 32;
  saturate::LoaderOptions options;
  options.batch = 32;
  options.threads = int(std::thread::hardware_concurrency());
  saturate::Loader loader(*dataset, options, augment);
  saturate::Ledger ledger(saturate::Env::posix());
  saturate::Feeder feeder(loader, at::kCPU, /*channels_last=*/true, ledger);

  // An encoder usually comes from a file (saturate/weights.h); here its filters are random.
  torch::manual_seed(1);
  nn::Sequential encoder(nn::Conv2d(nn::Conv2dOptions(3, 64, 5).stride(2)), nn::ReLU(),
                         nn::Conv2d(nn::Conv2dOptions(64, 64, 3).stride(2)), nn::ReLU());
  nn::Sequential decoder(nn::Conv2d(64, 64, 3), nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(),
                         nn::Linear(64, int64_t(dataset->classes().size())));
  std::vector<saturate::NamedTensor> named;
  for (const auto& item : encoder->named_parameters())
    named.push_back({"encoder." + item.key(), item.value()});
  for (const auto& item : decoder->named_parameters())
    named.push_back({"decoder." + item.key(), item.value()});

  saturate::OptimizerOptions sgd;
  sgd.momentum = 0.9;
  sgd.freeze = {"encoder.*"};           // in no group, and without a gradient from here on
  sgd.lr_factors = {"decoder.4.*=10"};  // the linear layer
  auto groups = saturate::make_parameter_groups(sgd, named);
  for (const auto& group : groups)
    std::printf("%s and %zu more: learning rate times %g, weight decay %g\n",
                group.parameters.front().name.c_str(), group.parameters.size() - 1, group.lr_factor,
                group.weight_decay);
  const auto optimizer = saturate::make_optimizer(sgd, std::move(groups));

  const int epochs = 4;
  const auto steps = int64_t(loader.batches());
  const saturate::Schedule schedule(saturate::ScheduleOptions{}, epochs * steps, steps);
  encoder->eval();
  for (int64_t epoch = 0, step = 0; epoch < epochs; ++epoch) {
    double right = 0, images = 0;
    loader.start_epoch(uint32_t(epoch));
    for (saturate::DeviceBatch batch; feeder.next(batch); ++step) {
      at::Tensor features;
      {
        const torch::NoGradGuard no_grad;  // the encoder has no backward
        features = encoder->forward(batch.images);
      }
      const at::Tensor logits = decoder->forward(features);
      at::cross_entropy_loss(logits, batch.labels).backward();
      optimizer->step(/*lr=*/0.02 * schedule.factor(step));
      optimizer->zero_grad();
      right += (logits.argmax(1) == batch.labels).sum().item<double>();
      images += double(batch.count());
    }
    std::printf("epoch %lld  accuracy %.1f%%\n", static_cast<long long>(epoch),
                100 * right / images);
  }
  return 0;
}

int main() {
  try {
    return run();
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
