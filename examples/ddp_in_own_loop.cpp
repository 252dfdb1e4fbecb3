// A custom LibTorch loop in several processes, which all-reduce their gradients during backward
// (like torch's DistributedDataParallel). Under torchrun, mpirun or srun it is one of their ranks;
// without a launcher it starts two of itself.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include "saturate/data/error.h"
#include "saturate/feed.h"
#include "saturate/gradient_reducer.h"
#include "saturate/launcher.h"

namespace nn = torch::nn;

// Parameters and their names, which appear in the reducer's errors.
std::vector<saturate::NamedTensor> named(const nn::Module& module) {
  std::vector<saturate::NamedTensor> all;
  for (const auto& item : module.named_parameters()) all.push_back({item.key(), item.value()});
  return all;
}

int train(const saturate::World& world) {
  at::set_num_threads(1);
  const saturate::DistributedOptions distributed;
  saturate::Group group(world, distributed, at::kCPU);

  const auto dataset =
      saturate::open_dataset(saturate::Env::posix(), "synth:size=32,count=1600,difficulty=0.1");
  saturate::AugmentOptions augment;
  augment.size = 32;
  saturate::LoaderOptions options;
  options.batch = 64;                                              // the global batch
  options.shard = {.rank = group.rank(), .world = group.world()};  // its local batch
  saturate::Loader loader(*dataset, options, augment);
  saturate::Ledger ledger(saturate::Env::posix());
  saturate::Feeder feeder(loader, at::kCPU, /*channels_last=*/true, ledger);

  nn::Sequential network(nn::Conv2d(nn::Conv2dOptions(3, 32, 4).stride(4)), nn::ReLU(),
                         nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::ReLU(),
                         nn::AdaptiveAvgPool2d(1), nn::Flatten(),
                         nn::Linear(64, int64_t(dataset->classes().size())));
  {
    const torch::NoGradGuard no_grad;
    group.broadcast(network->parameters());  // each rank drew other weights
  }
  saturate::GradientReducer reducer(group, named(*network), distributed);
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(0.01));

  for (uint32_t epoch = 0; epoch < 4; ++epoch) {
    const at::Tensor sums = at::zeros({2}, at::kDouble);  // loss, images
    loader.start_epoch(epoch);
    for (saturate::DeviceBatch batch; feeder.next(batch);) {
      reducer.before_forward();
      const at::Tensor logits = network->forward(batch.images);
      // An epoch's last batch may have no images for this rank.
      const at::Tensor loss =
          batch.count() > 0 ? at::cross_entropy_loss(logits, batch.labels) : reducer.zero_loss();
      // The all-reduce sums: the loss weight is the local batch's share of the global batch.
      reducer.backward(loss * (double(batch.count()) / double(batch.global_batch)),
                       /*reduce=*/true);
      optimizer.step();
      // LibTorch's optimizer.zero_grad() cannot clear gradients that are in the reducer's buckets.
      for (at::Tensor& parameter : network->parameters()) parameter.mutable_grad().reset();
      sums[0].add_(loss.detach() * batch.count());
      sums[1].add_(batch.count());
    }
    group.sum(sums);
    if (group.rank() == 0)
      std::printf("epoch %u  loss %.3f  on %.0f images in %d processes\n", epoch,
                  (sums[0] / sums[1]).item<double>(), sums[1].item<double>(), group.world());
  }
  // Fails, naming the rank, unless the weights are the same bit for bit on all ranks.
  const double norm = network->parameters().back().norm().item<double>();
  group.require_same("network", std::to_string(norm) + "\n");
  return 0;
}

int main(int argc, char** argv) {
  try {
    const saturate::World world = saturate::this_world();
    if (world.size > 1) return train(world);
    saturate::LaunchOptions two;
    two.processes = 2;
    two.program = "/proc/self/exe";
    two.arguments.assign(argv + 1, argv + argc);
    return saturate::launch(two, [] { return 0; });
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
