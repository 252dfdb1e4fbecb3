#include "saturate/data/world.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "base/text.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr int kDefaultPort = 29500;  // torch's
constexpr int kMost = 1 << 20;       // processes

// The variables by which one launcher announces ranks.
struct Dialect {
  const char *name, *rank, *size, *local_rank, *local_size;
  bool own_master;  // it sets MASTER_ADDR, for any number of machines
};

constexpr std::array<Dialect, 4> kDialects = {
    {{"torchrun's variables", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
     {"mpirun's variables", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", false},
     // SLURM_PROCID is also set in a batch script, which is one process.
     {"srun's variables", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
      "SLURM_STEP_TASKS_PER_NODE", false},
     {"mpiexec's variables", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false}}};

[[noreturn]] void fail_variable(const std::string& what, const char* name) {
  fail(ErrorKind::kUsage, what, std::string("environment variable ") + name,
       "Set all of a launcher's variables or none; `saturate launch` sets them for you");
}

std::optional<int> number(const Lookup& lookup, const char* name, int low, int high) {
  const char* text = lookup(name);
  if (!text || !*text) return std::nullopt;
  const auto value = parsed_number<int>(text);
  if (!value || *value < low || *value > high)
    fail_variable(fmt::format("{} is \"{}\", not a number from {} to {}", name, text, low, high),
                  name);
  return value;
}

[[noreturn]] void fail_missing(const char* name, const char* other) {
  fail_variable(fmt::format("{} is missing, and {} is set", name, other), name);
}

int required(const Lookup& lookup, const char* name, int low, int high, const char* other) {
  const auto value = number(lookup, name, low, high);
  if (!value) fail_missing(name, other);
  return *value;
}

// A rank among processes whose number is known.
void require_rank(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank >= size)
    fail_variable(fmt::format("{} is {}, and {} only {}", rank_name, rank, size_name, size),
                  rank_name);
}

std::string text_of(const Lookup& lookup, const char* name) {
  const char* text = lookup(name);
  return text ? text : "";
}

// srun writes "4(x2),3", which does not say which entry is this machine's.
std::optional<int> local_size(const Lookup& lookup, const Dialect& dialect) {
  if (text_of(lookup, dialect.local_size).find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return number(lookup, dialect.local_size, 1, kMost);
}

void find_master(World& world, const Lookup& lookup, const Dialect& dialect) {
  world.master = text_of(lookup, "MASTER_ADDR");
  const bool one_machine = world.local_size == world.size;
  if (world.master.empty() && !dialect.own_master && one_machine) world.master = "127.0.0.1";
  if (world.master.empty()) fail_missing("MASTER_ADDR", dialect.size);
  const auto port = number(lookup, "MASTER_PORT", 1, 65535);
  if (!port && dialect.own_master) fail_missing("MASTER_PORT", dialect.size);
  world.port = port.value_or(kDefaultPort);
}

World parse(const Lookup& lookup, const Dialect& dialect) {
  World world;
  world.told_by = dialect.name;
  world.size = required(lookup, dialect.size, 1, kMost, dialect.rank);
  world.rank = required(lookup, dialect.rank, 0, kMost, dialect.size);
  require_rank(dialect.rank, world.rank, dialect.size, world.size);
  world.attempt = number(lookup, "TORCHELASTIC_RESTART_COUNT", 0, kMost).value_or(0);
  if (world.size == 1) {
    world.local_size = 1;
    return world;
  }
  // Kubernetes' PyTorchJob starts one process per machine, and sets neither variable.
  const bool is_alone = dialect.own_master && text_of(lookup, dialect.local_rank).empty() &&
                        text_of(lookup, dialect.local_size).empty();
  if (!is_alone) world.local_rank = required(lookup, dialect.local_rank, 0, kMost, dialect.rank);
  world.local_size = local_size(lookup, dialect).value_or(0);
  if (world.local_size > 0)
    require_rank(dialect.local_rank, world.local_rank, dialect.local_size, world.local_size);
  find_master(world, lookup, dialect);
  world.store_elsewhere = text_of(lookup, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  return world;
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

}  // namespace saturate
