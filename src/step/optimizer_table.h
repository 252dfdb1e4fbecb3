// The optimizers, one row each: ROW(NAME, one line for `saturate list`, traits...), made by
// make_NAME(). The rules of recipes are compiled without torch and read the traits alone;
// optimizers.cpp adds the factories.
#pragma once

#define SATURATE_OPTIMIZERS(ROW)                                                                \
  ROW(sgd, "SGD with (Nesterov) momentum, fused", .has_momentum = true,                         \
      .nesterov_needs_momentum = true, .fused = FusedUpdate::kSgd)                              \
  ROW(adam, "Adam with an L2 penalty, fused", .is_adaptive = true, .fused = FusedUpdate::kAdam) \
  ROW(adamw, "Adam with decoupled weight decay, fused", .is_adaptive = true,                    \
      .fused = FusedUpdate::kAdamW)                                                             \
  ROW(lars, "SGD with a rate per layer, for very large batches", .has_momentum = true)          \
  ROW(lamb,                                                                                     \
      "AdamW with a rate per layer, for very large batches; timm's clips: train.clip_norm=1",   \
      .is_adaptive = true)                                                                      \
  ROW(rmsprop, "gradients divided by their root mean square", .has_momentum = true,             \
      .is_adaptive = true)                                                                      \
  ROW(muon, "orthogonalised momentum for matrices and filters, AdamW for the rest",             \
      .has_momentum = true, .averages_momentum = true)
