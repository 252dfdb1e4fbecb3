// saturate env: what this build and this machine are, for a bug report.
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/native/DispatchStub.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "app/command.h"
#include "app/host.h"
#include "saturate/train_step.h"
#include "saturate/version.h"

namespace saturate {
namespace {

void row(const char* name, const std::string& value) {
  fmt::print("{:<14}{}\n", name, value);
}

std::string gpus() {
  if (!at::hasCUDA()) return "n/a (no NVIDIA driver, or a CPU set of LibTorch)";
  return fmt::format("{}", at::detail::getCUDAHooks().deviceCount());
}

int print_env() {
  const Host host = this_host();
  row("saturate", kVersion);
  row("libtorch", TORCH_VERSION);
  row("compiler", "g++ " __VERSION__);
#ifdef NDEBUG
  row("build", "release");
#else
  row("build", "debug: figures measured with it mean nothing");
#endif
  row("commit", build_commit());
  row("system", host.system);
  row("cpu", host.cpu);
  row("cores", fmt::format("{}", host.cores));
  row("simd", at::get_cpu_capability());
  row("bf16 on cpu", cpu_has_bf16() ? "native" : "emulated, slower than fp32");
  row("memory", fmt::format("{:.1f} GiB", double(host.memory_bytes) / (1 << 30)));
  row("gpus", gpus());
  return 0;
}

}  // namespace

void add_env(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("env", "Print versions and hardware, for a bug report");
  command->callback([&exit_code] { exit_code = print_env(); });
}

}  // namespace saturate
