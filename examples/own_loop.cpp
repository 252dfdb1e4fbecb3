// saturate's loader in a custom LibTorch loop: any torch::nn module, any torch::optim.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>
#include <thread>

#include "saturate/data/error.h"
#include "saturate/feed.h"

namespace nn = torch::nn;

nn::Sequential make_network(int64_t classes) {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1).bias(false)),
                        nn::BatchNorm2d(16), nn::ReLU(), nn::MaxPool2d(2),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1).bias(false)),
                        nn::BatchNorm2d(32), nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(),
                        nn::Linear(32, classes));
}

int run() {
  const auto dataset =
      saturate::open_dataset(saturate::Env::posix(), "synth:size=32,count=1600,difficulty=0.1");
  saturate::AugmentOptions augment;
  augment.size = 32;
  saturate::LoaderOptions options;
  options.batch = 32;
  options.threads = int(std::thread::hardware_concurrency());
  saturate::Loader loader(*dataset, options, augment);
  // Accounts for wall time by phase; the feeder charges waiting and copying to it.
  saturate::Ledger ledger(saturate::Env::posix());
  saturate::Feeder feeder(loader, at::kCPU, /*channels_last=*/true, ledger);

  torch::manual_seed(1);
  nn::Sequential network = make_network(int64_t(dataset->classes().size()));
  torch::optim::SGD optimizer(network->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(5e-4));
  for (uint32_t epoch = 0; epoch < 4; ++epoch) {
    double loss_sum = 0;
    int64_t right = 0, images = 0;
    loader.start_epoch(epoch);
    for (saturate::DeviceBatch batch; feeder.next(batch); images += batch.count()) {
      const at::Tensor logits = network->forward(batch.images);
      const at::Tensor loss = at::cross_entropy_loss(logits, batch.labels);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      loss_sum += loss.item<double>() * double(batch.count());
      right += (logits.argmax(1) == batch.labels).sum().item<int64_t>();
    }
    std::printf("epoch %u  loss %.3f  accuracy %.1f%%\n", epoch, loss_sum / double(images),
                100.0 * double(right) / double(images));
  }
  std::printf("waited for input: %.2f s\n", ledger.times()[saturate::Phase::kWait]);
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
