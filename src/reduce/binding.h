// CPU and GPU binding: each process of a machine gets some processors and a GPU near
// them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "saturate/data/world.h"

namespace saturate {

struct Cpu {
  int id = 0, core = 0, socket = 0;
};
// Divides `cpus` among the processes of a machine into lists of nearly equal size, with whole
// cores, and one socket's together if possible; returns that of `local_rank`. Returns all `cpus` if
// they are fewer than processes.
std::vector<int> cpus_of_rank(std::vector<Cpu> cpus, int local_rank, int local_size);

struct Gpu {
  std::string uuid;       // as in CUDA_VISIBLE_DEVICES; empty: unknown
  std::vector<int> near;  // processors of its NUMA node; empty: unknown
};
// The machine's NVIDIA GPUs in the order of their PCI addresses, read below `root` from /proc and
// /sys. Empty if the driver lists none.
std::vector<Gpu> gpus_of_machine(const std::string& root = "");

// A GPU for each process, as an index into `gpus`: the remaining one that is near most of the
// process's processors, or the first remaining one if none is near. REQUIRES: at least as many GPUs
// as processes.
std::vector<size_t> gpus_near(const std::vector<std::vector<int>>& cpus,
                              const std::vector<Gpu>& gpus);

// How the machine's GPUs are distributed.
struct GpuChoice {
  const char* given = nullptr;         // the present CUDA_VISIBLE_DEVICES, or null
  bool by_address = false;             // its numbers count GPUs by PCI address
  std::vector<Gpu> present;            // empty: unknown
  std::vector<std::vector<int>> cpus;  // of each process of the machine; empty: unknown
  // All processes of the machine have the same list, as with `saturate launch`; otherwise a single
  // GPU is assumed to be this process's own.
  bool one_list = false;
  // Processes may outnumber GPUs and share them: allowed with Gloo, never with NCCL.
  bool may_share = false;
};
// The value of CUDA_VISIBLE_DEVICES for a rank; empty if it is to stay unchanged. Fails with kUsage
// if processes outnumber GPUs and may not share them.
std::optional<std::string> visible_gpu(const World& world, const GpuChoice& choice);

// Binds this process, and threads it creates later, to its part of the allowed processors, unless
// something other than `saturate launch` has restricted them already. With `gpu` it also restricts
// the process to one of the visible GPUs, if there are several; `may_share` as in GpuChoice.
// REQUIRES: CUDA is not initialised yet.
void bind_process(const World& world, bool gpu, bool may_share = false);

}  // namespace saturate
