#include "advise/stretch.h"

#include <ATen/ops/zeros.h>

namespace saturate {
namespace {

TrainResult now_of(Trainer& trainer) {
  if (trainer.recipe().train.device == "cuda") at::zeros({}, at::Device(at::kCUDA)).item();
  return trainer.so_far();
}

double cpu_s(const TrainResult& so_far) {
  return so_far.cores_used * so_far.wall_s;
}

}  // namespace

void Stretch::begin(Trainer& trainer) {
  begin_ = now_of(trainer);
  begin_ns_ = env_.now_ns();
}

StepTiming Stretch::timing(Trainer& trainer) const {
  const TrainResult now = now_of(trainer);
  StepTiming timing;
  timing.steps = now.steps - begin_.steps;
  timing.samples = now.samples - begin_.samples;
  timing.phases = now.phases - begin_.phases;
  timing.wall_s = timing.phases.total();
  timing.cpu_s = cpu_s(now) - cpu_s(begin_);
  return timing;
}

std::optional<StepTiming> time_steps(
    Env& env, Trainer& trainer, double seconds,
    const std::function<bool(int steps, double elapsed_s)>& is_settled) {
  Stretch stretch(env);
  stretch.begin(trainer);
  for (int steps = 0; !is_settled(steps, stretch.elapsed_s()); ++steps)
    if (!trainer.step()) return std::nullopt;
  stretch.begin(trainer);
  do {
    if (!trainer.step()) return std::nullopt;
  } while (stretch.elapsed_s() < seconds);
  return stretch.timing(trainer);
}

std::optional<StepTiming> time_steps(Env& env, Trainer& trainer, double seconds, int settle) {
  return time_steps(env, trainer, seconds, [settle](int steps, double) { return steps >= settle; });
}

StepTiming time_input(Env& env, Trainer& trainer, double seconds,
                      const std::function<bool()>& should_stop) {
  release_batch(trainer);
  for (int i = 0; i < kSettle; ++i) skip_batch(trainer);
  Stretch stretch(env);
  stretch.begin(trainer);
  int64_t batches = 0, images = 0;
  do {
    images += skip_batch(trainer);
    ++batches;
  } while (stretch.elapsed_s() < seconds && !should_stop());
  StepTiming timing = stretch.timing(trainer);
  timing.steps = batches;
  timing.samples = images;
  return timing;
}

}  // namespace saturate
