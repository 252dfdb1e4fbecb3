#include "trace/host.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/native/DispatchStub.h>
#include <cpuinfo.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/system_file.h"
#include "base/thread_pool.h"

namespace saturate {
namespace {

std::string cpu_name() {
  const std::string name = system_line("/proc/cpuinfo", "model name");
  return name.empty() ? "n/a" : name;
}

std::string gpus() {
  if (!at::hasCUDA()) return "n/a (no NVIDIA driver, or a CPU set of LibTorch)";
  return fmt::format("{}", gpu_count());
}

// The settings that make threads sleep between parallel regions, as libgomp reads them.
std::string openmp_waiting() {
  std::string text;
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
    if (const char* value = std::getenv(name))
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text.empty() ? "libgomp's default" : text;
}

const char* build_kind() {
#ifdef NDEBUG
  return "release";
#else
  return "debug: measurements are not meaningful";
#endif
}

}  // namespace

Host this_host() {
  utsname system;
  uname(&system);
  return {cpu_name(), std::string(system.sysname) + " " + system.release + " " + system.machine,
          available_cores(), int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)};
}

bool cpu_has_bf16() {
  return cpuinfo_initialize() && (cpuinfo_has_x86_avx512bf16() || cpuinfo_has_x86_amx_bf16());
}

int gpu_count() {
  return at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
}

std::vector<std::pair<std::string, std::string>> host_facts() {
  const Host host = this_host();
  return {{"saturate", SATURATE_VERSION},
          {"libtorch", TORCH_VERSION},
          {"compiler", "g++ " __VERSION__},
          {"build", build_kind()},
          {"commit", build_commit()},
          {"system", host.system},
          {"cpu", host.cpu},
          {"cores", fmt::format("{}", host.cores)},
          {"simd", at::get_cpu_capability()},
          {"openmp waits", openmp_waiting()},
          {"bf16 on cpu", cpu_has_bf16() ? "native" : "emulated, slower than fp32"},
          {"memory", fmt::format("{:.1f} GiB", double(host.memory_bytes) / (1 << 30))},
          {"gpus", gpus()}};
}

std::string host_json() {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : host_facts()) json[name] = value;
  return json.dump(2) + "\n";
}

}  // namespace saturate
