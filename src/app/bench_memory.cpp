// saturate bench memory: the peak memory of a deep chain against its depth, with and without
// gradient checkpointing.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "app/bench_report.h"
#include "app/command.h"
#include "saturate/data/env.h"
#include "saturate/gradient_checkpoint.h"
#include "saturate/memory.h"

namespace saturate {
namespace {

struct MemoryArguments {
  std::string json;
  std::vector<int> depths = {4, 9, 16, 25, 36, 49, 64, 81, 100};
  int repeats = 3, batch = 8, channels = 16, size = 32;
};

// relu(BatchNorm(convolution(x))), repeated `depth` times.
std::vector<Stage> make_chain(int depth, int64_t channels) {
  std::vector<Stage> stages;
  for (int i = 0; i < depth; ++i) {
    const at::Tensor filter = at::randn({channels, channels, 3, 3}).mul_(0.1).requires_grad_();
    const at::Tensor weight = at::ones({channels}).requires_grad_();
    const at::Tensor bias = at::zeros({channels}).requires_grad_();
    const at::Tensor mean = at::zeros({channels}), variance = at::ones({channels});
    const auto forward = [=](const at::Tensor& x) {
      const at::Tensor y = at::conv2d(x, filter, {}, 1, 1);
      return at::batch_norm(y, weight, bias, mean, variance, /*training=*/true, 0.1, 1e-5,
                            /*cudnn_enabled=*/false)
          .relu_();
    };
    stages.push_back({forward, {mean, variance}});
  }
  return stages;
}

struct Measured {
  double mib, ms;
};

Measured measure(Env& env, const std::vector<Stage>& stages, int64_t segments,
                 const at::Tensor& images) {
  TensorMemory& memory = tensor_memory(at::kCPU);
  const int64_t before = memory.live_bytes();
  memory.take_peak();
  const int64_t begin = env.now_ns();
  checkpoint_sequential(stages, segments, images).sum().backward();
  const double ms = double(env.now_ns() - begin) * 1e-6;
  return {double(memory.take_peak() - before) / (1 << 20), ms};
}

int bench_memory(const MemoryArguments& arguments) {
  require_release_build();
  tensor_memory(at::kCPU);  // counts from here on
  Env& env = Env::posix();
  at::manual_seed(0);
  const at::Tensor images =
      at::randn({arguments.batch, arguments.channels, arguments.size, arguments.size})
          .contiguous(at::MemoryFormat::ChannelsLast);
  BenchReport report{"memory", {}};
  for (const int depth : arguments.depths) {
    const auto stages = make_chain(depth, arguments.channels);
    measure(env, stages, 0, images);  // allocates the gradients, which then stay
    for (const bool segmented : {false, true}) {
      const int64_t segments = segmented ? automatic_segments(stages.size()) : 0;
      BenchRow row;
      row.name = fmt::format("depth={} checkpointing={}", depth, segmented ? "sqrt" : "off");
      row.unit = "MiB";
      std::vector<double> ms;
      for (int i = 0; i < arguments.repeats; ++i) {
        const Measured measured = measure(env, stages, segments, images);
        row.values.push_back(measured.mib);
        ms.push_back(measured.ms);
      }
      row.keys = {{"depth", depth}, {"segments", segments}, {"ms_per_step", median_of(ms)}};
      report.rows.push_back(std::move(row));
    }
  }
  return publish(report, arguments.json);
}

}  // namespace

void add_bench_memory(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<MemoryArguments>(
      bench, exit_code, "memory",
      "Peak memory of a deep chain on the CPU, without and with gradient checkpointing",
      bench_memory);
  add_number(command, "--depths", arguments.depths, 1, 10000, "Stages of the chain, as 16,64")
      ->delimiter(',');
  add_number(command, "--batch", arguments.batch, 1, 65536, "Images");
  add_number(command, "--repeats", arguments.repeats, 1, 1000, "Measurements of each variant");
  add_json_option(command, arguments.json);
}

}  // namespace saturate
