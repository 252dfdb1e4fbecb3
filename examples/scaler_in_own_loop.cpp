// saturate's GradScaler in a LibTorch loop of one's own: torch.amp.GradScaler's decisions, without
// the host ever waiting for the device. In fp32, as here, it changes nothing but the loss's scale;
// under autocast to fp16 it keeps small gradients from becoming 0.
#include <torch/nn.h>

#include <cstdio>

#include "saturate/grad_scaler.h"
#include "saturate/gradients.h"

int main() {
  torch::manual_seed(1);
  const at::Device device = at::kCPU;  // at::kCUDA where there is a GPU
  torch::nn::Linear layer(64, 1);
  const at::Tensor inputs = at::randn({256, 64});
  const at::Tensor targets = at::linear(inputs, at::randn({1, 64}));

  saturate::GradScaler scaler({.initial_scale = 65536, .interval = 100}, device);
  for (int step = 0; step < 200; ++step) {
    const at::Tensor loss = at::mse_loss(layer->forward(inputs), targets);
    scaler.scale(loss).backward();

    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : layer->parameters()) gradients.push_back(parameter.grad());
    const at::Tensor found_inf = scaler.unscale(gradients);
    saturate::clip_gradients(gradients, 1.0);

    // The fused operators take found_inf, and leave a step out where a gradient overflowed.
    std::vector<at::Tensor> parameters = layer->parameters(), no_momenta;
    {
      const torch::NoGradGuard no_grad;
      at::_fused_sgd_(parameters, gradients, no_momenta, /*weight_decay=*/0, /*momentum=*/0,
                      /*lr=*/0.1, /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                      /*is_first_step=*/true, /*grad_scale=*/{}, found_inf);
    }
    scaler.update();
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    if (step % 50 == 0)
      std::printf("step %3d  loss %.3e  scale %.0f\n", step, loss.item<double>(), scaler.value());
  }
  std::printf("scale at the end: %.0f\n", scaler.value());
}
