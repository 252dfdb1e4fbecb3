#include "reduce/binding.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <tuple>

#include "base/system_file.h"
#include "base/text.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

Cpu describe(int id) {
  const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", id);
  return {id, parsed_number<int>(system_line(folder + "core_id")).value_or(id),
          parsed_number<int>(system_line(folder + "physical_package_id")).value_or(0)};
}

// Parses "0-3,8" as the kernel writes it; empty if malformed.
std::vector<int> cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream ranges(text);
  int first = 0, last = 0;
  while (ranges >> first) {
    last = first;
    if (ranges.peek() == '-' && !(ranges.ignore() >> last)) return {};
    if (first < 0 || last < first || last >= CPU_SETSIZE) return {};
    for (int id = first; id <= last; ++id) cpus.push_back(id);
    if (ranges.peek() == ',') ranges.ignore();
  }
  return cpus;
}

size_t shared_by(const std::vector<int>& cpus, const std::vector<int>& near) {
  return size_t(std::ranges::count_if(
      cpus, [&](int id) { return std::ranges::find(near, id) != near.end(); }));
}

// The GPU of that name in CUDA_VISIBLE_DEVICES.
Gpu gpu_of(const std::string& name, const GpuChoice& choice) {
  for (size_t i = 0; i < choice.present.size(); ++i) {
    const Gpu& gpu = choice.present[i];
    if (name.starts_with("GPU-") ? gpu.uuid.starts_with(name)
                                 : choice.by_address && name == std::to_string(i))
      return gpu;
  }
  return {};
}

// The GPUs visible to processes, named as in CUDA_VISIBLE_DEVICES: up to -1, as CUDA reads it.
std::vector<std::string> names_of(const GpuChoice& choice) {
  std::vector<std::string> names;
  std::istringstream list(choice.given ? choice.given : "");
  for (std::string name; std::getline(list, name, ',') && name != "-1";) names.push_back(name);
  if (choice.given) return names;
  for (const Gpu& gpu : choice.present)
    names.push_back(gpu.uuid.empty() ? std::to_string(names.size()) : gpu.uuid);
  return names;
}

// The processors of each process of this machine; empty if this process must not bind.
std::vector<std::vector<int>> bind_cpus(const World& world, bool launched) {
  if (world.local_size < 1) return {};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  if (!launched && CPU_COUNT(&allowed) < sysconf(_SC_NPROCESSORS_ONLN)) return {};
  std::vector<Cpu> cpus;
  for (int id = 0; id < CPU_SETSIZE; ++id)
    if (CPU_ISSET(id, &allowed)) cpus.push_back(describe(id));
  std::vector<std::vector<int>> of_ranks;
  of_ranks.reserve(size_t(world.local_size));
  for (int rank = 0; rank < world.local_size; ++rank)
    of_ranks.push_back(cpus_of_rank(cpus, rank, world.local_size));
  cpu_set_t own;
  CPU_ZERO(&own);
  for (int id : of_ranks[size_t(world.local_rank)]) CPU_SET(id, &own);
  sched_setaffinity(0, sizeof own, &own);
  return of_ranks;
}

}  // namespace

std::vector<int> cpus_of_rank(std::vector<Cpu> cpus, int local_rank, int local_size) {
  std::ranges::sort(cpus, {},
                    [](const Cpu& cpu) { return std::tie(cpu.socket, cpu.core, cpu.id); });
  const size_t count = size_t(local_size), own = size_t(local_rank);
  std::vector<size_t> cores, threads;  // where each begins in `cpus`
  for (size_t i = 0; i < cpus.size(); ++i) {
    threads.push_back(i);
    if (i == 0 || cpus[i].core != cpus[i - 1].core || cpus[i].socket != cpus[i - 1].socket)
      cores.push_back(i);
  }
  std::vector<size_t>& units = cores.size() >= count ? cores : threads;
  const bool divisible = units.size() >= count;
  const size_t first = divisible ? units.size() * own / count : 0;
  const size_t last = divisible ? units.size() * (own + 1) / count : units.size();
  units.push_back(cpus.size());
  std::vector<int> ids;
  for (size_t i = units[first]; i < units[last]; ++i) ids.push_back(cpus[i].id);
  return ids;
}

std::vector<Gpu> gpus_of_machine(const std::string& root) {
  std::error_code none;
  std::vector<std::string> addresses;
  for (const auto& entry :
       std::filesystem::directory_iterator(root + "/proc/driver/nvidia/gpus", none))
    addresses.push_back(entry.path().filename());
  std::sort(addresses.begin(), addresses.end());
  std::vector<Gpu> gpus;
  for (const std::string& address : addresses) {
    const std::string about = root + "/proc/driver/nvidia/gpus/" + address + "/information";
    // A container may list all of its host's, and have only some.
    const std::string minor = system_line(about, "Device Minor");
    if (!minor.empty() && !std::filesystem::exists(root + "/dev/nvidia" + minor, none)) continue;
    const std::string near = root + "/sys/bus/pci/devices/" + address + "/local_cpulist";
    gpus.push_back({system_line(about, "GPU UUID"), cpu_list(system_line(near))});
  }
  return gpus;
}

std::vector<size_t> gpus_near(const std::vector<std::vector<int>>& cpus,
                              const std::vector<Gpu>& gpus) {
  constexpr size_t kNone = size_t(-1);
  std::vector<size_t> chosen(cpus.size(), kNone);
  std::vector<bool> taken(gpus.size());
  for (const bool must_be_near : {true, false}) {
    for (size_t process = 0; process < cpus.size(); ++process) {
      if (chosen[process] != kNone) continue;
      size_t most = 0, best = kNone;
      for (size_t gpu = 0; gpu < gpus.size(); ++gpu) {
        const size_t shared = shared_by(cpus[process], gpus[gpu].near);
        if (taken[gpu] || (best != kNone && shared <= most)) continue;
        most = shared;
        best = gpu;
      }
      if (best == kNone || (must_be_near && most == 0)) continue;
      chosen[process] = best;
      taken[best] = true;
    }
  }
  return chosen;
}

std::optional<std::string> visible_gpu(const World& world, const GpuChoice& choice) {
  std::vector<std::string> names = names_of(choice);
  const auto local = size_t(world.local_rank);
  if (names.empty()) return choice.given ? std::nullopt : std::optional(std::to_string(local));
  if (names.size() == 1 && choice.given && !choice.one_list) return std::nullopt;
  const size_t processes = std::max(local + 1, size_t(world.local_size)), gpus = names.size();
  while (choice.may_share && names.size() < processes) names.push_back(names[names.size() - gpus]);
  if (processes <= names.size()) {
    if (choice.cpus.empty()) return names[local];
    std::vector<Gpu> named;
    named.reserve(names.size());
    for (const std::string& name : names) named.push_back(gpu_of(name, choice));
    return names[gpus_near(choice.cpus, named)[local]];
  }
  const std::string count = world.local_size > 0 ? fmt::format("{}", world.local_size) : "more";
  fail(ErrorKind::kUsage,
       fmt::format("{} processes for {} GPU{}: each needs a separate one", count, gpus,
                   gpus == 1 ? "" : "s"),
       fmt::format("rank {}", world.rank),
       "Start as many processes as GPUs on each machine, share GPUs with distributed.backend=gloo, "
       "or use no GPU with train.device=cpu or CUDA_VISIBLE_DEVICES= in the environment");
}

void bind_process(const World& world, bool gpu, bool may_share) {
  if (world.size == 1) return;
  const bool launched = std::getenv("SATURATE_LAUNCHED") != nullptr;
  auto cpus = bind_cpus(world, launched);
  if (!gpu) return;
  const char* const order = std::getenv("CUDA_DEVICE_ORDER");
  const auto own =
      visible_gpu(world, {.given = std::getenv(kVisible),
                          .by_address = order && std::string_view(order) == "PCI_BUS_ID",
                          .present = gpus_of_machine(),
                          .cpus = std::move(cpus),
                          .one_list = launched,
                          .may_share = may_share});
  if (own) setenv(kVisible, own->c_str(), 1);
}

}  // namespace saturate
