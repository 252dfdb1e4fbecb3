// saturate bench allreduce: the cost of an all-reduce.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/bench_report.h"
#include "app/command.h"
#include "reduce/backends.h"
#include "reduce/binding.h"
#include "run/setup.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "saturate/launcher.h"

namespace saturate {
namespace {

struct AllreduceArguments {
  int processes = 2, repeats = 7;
  std::vector<double> kib = {4, 64, 1024, 16384, 65536};
  double seconds = 0.2;  // minimum per repetition
  std::string json;
};

// Restarts itself as several processes, with the same options.
int launch_itself(const AllreduceArguments& arguments) {
  LaunchOptions options;
  options.processes = arguments.processes;
  options.program = "/proc/self/exe";
  options.arguments = {"bench",     "allreduce",
                       "--kib",     fmt::format("{}", fmt::join(arguments.kib, ",")),
                       "--repeats", std::to_string(arguments.repeats),
                       "--seconds", fmt::format("{}", arguments.seconds)};
  if (!arguments.json.empty())
    options.arguments.insert(options.arguments.end(), {"--json", arguments.json});
  return launch(options, [] { return 0; });
}

// On a GPU the all-reduce is only enqueued so far.
void wait_for(const at::Tensor& tensor) {
  if (tensor.is_cuda()) tensor.select(0, 0).item<float>();
}

// Microseconds per all-reduce of the slowest rank: all ranks make as many as rank 0 needs for
// `seconds`.
double measure(Env& env, Group& group, const at::Tensor& tensor, int64_t count) {
  group.any(false);  // start together
  const int64_t begin = env.now_ns();
  for (int64_t i = 0; i < count; ++i) group.sum(tensor);
  wait_for(tensor);
  const at::Tensor took =
      at::full({1}, double(env.now_ns() - begin) * 1e-3 / double(count), at::kDouble);
  group.max(took);
  return took.item<double>();
}

// The device that holds a tensor, and whether the tensor is in shared memory.
struct Placement {
  at::Device device;
  bool shared_memory = false, in_place = false;
};

std::vector<Placement> placements(Group& group, const at::Device& best) {
  std::vector<Placement> all;
  if (use_shared_memory(group, true)) all = {{at::kCPU, true, true}, {at::kCPU, true}};
  all.push_back({at::kCPU});
  if (best.is_cuda()) all.push_back({best});
  return all;
}

BenchRow measure_size(Env& env, Group& group, const Placement& placed, int64_t bytes,
                      const AllreduceArguments& arguments) {
  use_shared_memory(group, placed.shared_memory);
  const std::string backend =
      group.backend_on(placed.device) + (placed.in_place ? " in place" : "");
  // Zeros, so that sums stay finite.
  const at::Tensor tensor =
      at::zeros({std::max<int64_t>(1, bytes / 4)}, at::device(placed.device).dtype(at::kFloat));
  if (placed.in_place) share_memory_of(group, tensor);
  const double once = measure(env, group, tensor, 3);  // also the warm-up
  const auto count = std::max<int64_t>(1, std::llround(arguments.seconds * 1e6 / once));
  BenchRow row;
  row.name = fmt::format("{} {:g} KiB", backend, double(bytes) / 1024);
  row.unit = "us";
  for (int i = 0; i < arguments.repeats; ++i)
    row.values.push_back(measure(env, group, tensor, count));
  const double gb_per_s = double(bytes) / median_of(row.values) * 1e-3;
  const int world = group.world();
  row.keys = {{"backend", backend},
              {"bytes", bytes},
              {"world", world},
              {"algorithm_gb_per_s", gb_per_s},
              {"bus_gb_per_s", gb_per_s * 2 * (world - 1) / world}};
  return row;
}

void print_table(const BenchReport& report) {
  fmt::print("{:<24} {:>12} {:>12} {:>12} {:>14} {:>10}\n", "allreduce", "median, us", "min", "max",
             "algorithm GB/s", "bus GB/s");
  for (const BenchRow& row : report.rows) {
    const auto [least, most] = std::minmax_element(row.values.begin(), row.values.end());
    fmt::print("{:<24} {:>12.1f} {:>12.1f} {:>12.1f} {:>14.3f} {:>10.3f}\n", row.name,
               median_of(row.values), *least, *most, row.keys["algorithm_gb_per_s"].get<double>(),
               row.keys["bus_gb_per_s"].get<double>());
  }
}

int bench_allreduce(const AllreduceArguments& arguments) {
  require_release_build();
  const World world = this_world();
  if (world.size == 1) return launch_itself(arguments);
  Env& env = Env::posix();
  const auto gpus = gpus_of_machine();  // where the system lists them
  const bool for_each = gpus.empty() || std::ssize(gpus) >= world.local_size;
  bind_process(world, for_each);
  BenchReport report{"allreduce", {}};
  const at::Device best = resolve_device(for_each ? "auto" : "cpu");
  silence_libtorch();
  Group group(world, {}, best);
  for (const Placement& placed : placements(group, best))
    for (double kib : arguments.kib)
      report.rows.push_back(measure_size(env, group, placed, int64_t(kib * 1024), arguments));
  if (world.rank != 0) return 0;
  return publish(report, arguments.json, print_table);
}

}  // namespace

void add_bench_allreduce(CLI::App& bench, int& exit_code) {
  const auto [command, arguments] = add_command<AllreduceArguments>(
      bench, exit_code, "allreduce", "Latency and bandwidth of all-reduce, by size and backend",
      bench_allreduce);
  add_number(command, "--processes", arguments.processes, 2, 4096,
             "Processes to start here; none under torchrun, mpirun or srun");
  add_number(command, "--kib", arguments.kib, 0.004, 4e6, "Sizes, KiB, as 4,1024")->delimiter(',');
  add_number(command, "--repeats", arguments.repeats, 1, 1000, "Measurements of each size");
  add_number(command, "--seconds", arguments.seconds, 0.001, 3600.0,
             "Minimum length of one measurement");
  add_json_option(command, arguments.json);
}

}  // namespace saturate
