#include "saturate/world.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <tuple>

#include "base/visible_gpus.h"
#include "saturate/error.h"

namespace saturate {
namespace {

constexpr int kDefaultPort = 29500;  // torch's

// The names by which one kind of starter tells a place.
struct Dialect {
  const char *name, *rank, *size, *local_rank, *local_size;
  bool own_master;  // says where rank 0 is, for every number of machines
};

constexpr std::array<Dialect, 4> kDialects = {
    {{"torchrun's variables", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
     {"mpirun's variables", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", false},
     // SLURM_PROCID alone is set in a batch script too, which is one process.
     {"srun's variables", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
      "SLURM_STEP_TASKS_PER_NODE", false},
     {"mpiexec's variables", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false}}};

[[noreturn]] void fail_variable(const std::string& what, const char* name) {
  fail(ErrorKind::kUsage, what, std::string("environment variable ") + name,
       "Set all of a starter's variables or none; `saturate launch` sets them for you");
}

std::optional<int> number(const Lookup& lookup, const char* name, int low, int high) {
  const char* text = lookup(name);
  if (!text || !*text) return std::nullopt;
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < low || value > high)
    fail_variable(fmt::format("{} is \"{}\", not a number from {} to {}", name, text, low, high),
                  name);
  return value;
}

int required(const Lookup& lookup, const char* name, int low, int high, const char* because) {
  const auto value = number(lookup, name, low, high);
  if (!value) fail_variable(fmt::format("{} is missing, and {} is set", name, because), name);
  return *value;
}

std::string text_of(const Lookup& lookup, const char* name) {
  const char* text = lookup(name);
  return text ? text : "";
}

// srun writes "4(x2),3", where only the machine's own number would help.
std::optional<int> local_size(const Lookup& lookup, const Dialect& dialect) {
  if (text_of(lookup, dialect.local_size).find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return number(lookup, dialect.local_size, 1, 1 << 20);
}

void find_master(World& world, const Lookup& lookup, const Dialect& dialect) {
  world.master = text_of(lookup, "MASTER_ADDR");
  const bool one_machine = world.local_size == world.size;
  if (world.master.empty() && !dialect.own_master && one_machine) world.master = "127.0.0.1";
  if (world.master.empty())
    fail_variable(fmt::format("MASTER_ADDR is missing, and {} is set", dialect.size),
                  "MASTER_ADDR");
  const auto port = number(lookup, "MASTER_PORT", 1, 65535);
  if (!port && dialect.own_master)
    fail_variable(fmt::format("MASTER_PORT is missing, and {} is set", dialect.size),
                  "MASTER_PORT");
  world.port = port.value_or(kDefaultPort);
}

constexpr int kMost = 1 << 20;

World parse(const Lookup& lookup, const Dialect& dialect) {
  World world;
  world.told_by = dialect.name;
  world.size = required(lookup, dialect.size, 1, kMost, dialect.rank);
  world.rank = required(lookup, dialect.rank, 0, kMost, dialect.size);
  if (world.rank >= world.size)
    fail_variable(
        fmt::format("{} is {}, and {} only {}", dialect.rank, world.rank, dialect.size, world.size),
        dialect.rank);
  if (world.size == 1) {
    world.local_size = 1;
    return world;
  }
  world.local_rank = required(lookup, dialect.local_rank, 0, kMost, dialect.rank);
  world.local_size = local_size(lookup, dialect).value_or(0);
  if (world.local_size > 0 && world.local_rank >= world.local_size)
    fail_variable(fmt::format("{} is {}, and {} only {}", dialect.local_rank, world.local_rank,
                              dialect.local_size, world.local_size),
                  dialect.local_rank);
  find_master(world, lookup, dialect);
  world.store_elsewhere = text_of(lookup, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  world.attempt = number(lookup, "TORCHELASTIC_RESTART_COUNT", 0, kMost).value_or(0);
  return world;
}

int read_number(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int value = 0;
  return file >> value ? value : otherwise;
}

Cpu describe(int id) {
  const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", id);
  return {id, read_number(folder + "core_id", id), read_number(folder + "physical_package_id", 0)};
}

}  // namespace

World parse_world(const Lookup& lookup) {
  for (const Dialect& dialect : kDialects) {
    const bool rank = !text_of(lookup, dialect.rank).empty();
    const bool size = !text_of(lookup, dialect.size).empty();
    const bool srun = std::string_view(dialect.rank) == "SLURM_PROCID";
    if (srun ? size : rank || size) return parse(lookup, dialect);
  }
  return {};
}

World this_world() {
  return parse_world([](const char* name) { return std::getenv(name); });
}

std::vector<int> cpus_of_part(std::vector<Cpu> cpus, int part, int parts) {
  std::sort(cpus.begin(), cpus.end(), [](const Cpu& a, const Cpu& b) {
    return std::tie(a.socket, a.core, a.id) < std::tie(b.socket, b.core, b.id);
  });
  // Where a core's threads begin.
  std::vector<size_t> cores;
  for (size_t i = 0; i < cpus.size(); ++i)
    if (i == 0 || cpus[i].core != cpus[i - 1].core || cpus[i].socket != cpus[i - 1].socket)
      cores.push_back(i);
  std::vector<int> ids;
  const size_t count = size_t(parts), own = size_t(part);
  const bool whole_cores = cores.size() >= count, divisible = cpus.size() >= count;
  const size_t units = whole_cores ? cores.size() : cpus.size();
  const auto begin_of = [&](size_t index) {
    const size_t unit = units * index / count;
    if (!whole_cores) return unit;
    return unit < cores.size() ? cores[unit] : cpus.size();
  };
  const size_t first = divisible ? begin_of(own) : 0;
  const size_t last = divisible ? begin_of(own + 1) : cpus.size();
  for (size_t i = first; i < last; ++i) ids.push_back(cpus[i].id);
  return ids;
}

void bind_cpus(const World& world, bool inherited) {
  if (world.local_size < 2) return;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (!inherited && CPU_COUNT(&allowed) < sysconf(_SC_NPROCESSORS_ONLN)) return;
  std::vector<Cpu> cpus;
  for (int id = 0; id < CPU_SETSIZE; ++id)
    if (CPU_ISSET(id, &allowed)) cpus.push_back(describe(id));
  cpu_set_t own;
  CPU_ZERO(&own);
  for (int id : cpus_of_part(std::move(cpus), world.local_rank, world.local_size))
    CPU_SET(id, &own);
  sched_setaffinity(0, sizeof own, &own);
}

std::optional<std::string> visible_gpu(const World& world, const char* given, int present,
                                       bool shared_out) {
  std::vector<std::string> gpus;
  std::istringstream list(given ? given : "");
  for (std::string gpu; std::getline(list, gpu, ',') && gpu != "-1";) gpus.push_back(gpu);
  if (!given)
    for (int gpu = 0; gpu < present; ++gpu) gpus.push_back(std::to_string(gpu));
  const auto local = size_t(world.local_rank);
  if (gpus.empty()) return given ? std::nullopt : std::optional(std::to_string(local));
  if (gpus.size() == 1 && given && !shared_out) return std::nullopt;
  if (std::max(local + 1, size_t(world.local_size)) <= gpus.size()) return gpus[local];
  const std::string processes = world.local_size > 0 ? fmt::format("{}", world.local_size) : "more";
  fail(ErrorKind::kUsage,
       fmt::format("{} processes are too many for {} GPU{}: one each", processes, gpus.size(),
                   gpus.size() == 1 ? "" : "s"),
       fmt::format("rank {}", world.rank),
       "Start as many on a machine as it has GPUs, or leave them out by train.device=cpu, or by "
       "CUDA_VISIBLE_DEVICES= in the environment");
}

void bind_gpu(const World& world) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  if (world.size == 1) return;
  std::error_code none;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", none), end;
  const auto own = visible_gpu(world, std::getenv(kVisible), int(std::distance(gpus, end)),
                               std::getenv("SATURATE_LAUNCHED") != nullptr);
  if (own) setenv(kVisible, own->c_str(), 1);
}

}  // namespace saturate
