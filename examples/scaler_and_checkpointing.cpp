// saturate's gradient checkpointing and GradScaler in a custom LibTorch loop. Checkpointing keeps
// only some activations of a deep network for backward, and recomputes the others. The scaler is
// torch.amp.GradScaler, but the host never waits for the device. In fp32, as here, it changes only
// the loss scale; under autocast to fp16 it keeps small gradients from becoming 0.
#include <torch/nn.h>

#include <cstdio>

#include "saturate/grad_scaler.h"
#include "saturate/gradient_checkpoint.h"
#include "saturate/optimizer.h"

namespace nn = torch::nn;

nn::Sequential make_network(int64_t width, int depth) {
  nn::Sequential network;
  for (int i = 0; i < depth; ++i) {
    network->push_back(nn::Linear(width, width));
    network->push_back(nn::GELU());
  }
  network->push_back(nn::Linear(width, 1));
  return network;
}

int main() {
  torch::manual_seed(1);
  at::set_num_threads(1);              // enough for such small matrices
  const at::Device device = at::kCPU;  // or at::kCUDA
  nn::Sequential network = make_network(64, 8);
  network->to(device);
  const at::Tensor inputs = at::randn({256, 64}, device);
  const at::Tensor targets = at::linear(inputs, at::randn({1, 64}, device)).sin();

  // The modules as stages; all but the last segment's run again in backward.
  const std::vector<saturate::Stage> stages = saturate::stages_of(*network);
  const int64_t segments = saturate::automatic_segments(stages.size());

  // This optimizer takes the scaler's found_inf. With torch::optim, write
  // `if (found_inf.item<float>() == 0) optimizer.step();`, which waits for the device.
  std::vector<saturate::NamedTensor> named;
  for (const auto& item : network->named_parameters()) named.push_back({item.key(), item.value()});
  saturate::OptimizerOptions adam;
  adam.name = "adamw";
  const auto optimizer =
      saturate::make_optimizer(adam, saturate::make_parameter_groups(adam, named));
  saturate::GradScaler scaler({.initial_scale = 65536, .interval = 100}, device);

  std::printf("%zu stages in %lld segments\n", stages.size(), static_cast<long long>(segments));
  for (int step = 0; step <= 200; ++step) {
    const at::Tensor outputs = saturate::checkpoint_sequential(stages, segments, inputs);
    const at::Tensor loss = at::mse_loss(outputs, targets);
    scaler.scale(loss).backward();

    const std::vector<at::Tensor> gradients = optimizer->gradients();
    const at::Tensor found_inf = scaler.unscale(gradients);
    saturate::clip_gradients(gradients, 1.0);
    optimizer->step(/*lr=*/0.002, found_inf);  // skipped if a gradient overflowed
    scaler.update();
    optimizer->zero_grad();
    if (step % 50 == 0)
      std::printf("step %3d  loss %.3e  scale %.0f\n", step, loss.item<double>(), scaler.value());
  }
}
