// Where the processes of one machine run: each on its part of the processors, with a GPU near them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "saturate/world.h"

namespace saturate {

struct Cpu {
  int id = 0, core = 0, socket = 0;
};
// Divides `cpus` into `parts` lists, as equal as can be, cores whole and those of one socket
// together where that goes; gives the one of `part`. All of `cpus` where they are fewer than parts.
std::vector<int> cpus_of_part(std::vector<Cpu> cpus, int part, int parts);

struct GpuPlace {
  std::string uuid;       // as CUDA_VISIBLE_DEVICES takes it; empty: unknown
  std::vector<int> near;  // processors of its NUMA node; empty: unknown
};
// The machine's NVIDIA GPUs in the order of their PCI addresses, read below `root` from /proc and
// /sys. Empty where the driver shows none.
std::vector<GpuPlace> gpus_of_machine(const std::string& root = "");

// A GPU for each process, by its number in `gpus`: one that is near more of the process's
// processors than the others that are left, or, where none is near, the first that is left.
// REQUIRES: as many GPUs as processes.
std::vector<size_t> gpus_near(const std::vector<std::vector<int>>& cpus,
                              const std::vector<GpuPlace>& gpus);

// How the machine's GPUs are shared out.
struct GpuChoice {
  const char* given = nullptr;         // CUDA_VISIBLE_DEVICES so far, or null
  bool by_address = false;             // whose numbers count GPUs by their PCI addresses
  std::vector<GpuPlace> present;       // empty: unknown
  std::vector<std::vector<int>> cpus;  // of each process of the machine; empty: unknown
  // All processes of the machine were given the same, as `saturate launch` does; else one GPU is
  // taken to be the process's own.
  bool shared_out = false;
  // Processes may be more than the GPUs, and take turns on them: Gloo's may, NCCL's never.
  bool takes_turns = false;
};
// What CUDA_VISIBLE_DEVICES is to be for a rank; nothing where it is to stay as it is. Fails with
// kUsage where the processes are more than the GPUs and do not take turns.
std::optional<std::string> visible_gpu(const World& world, const GpuChoice& choice);

// Binds this process, and the threads that it makes from here on, to its part of the processors
// that it may use, unless somebody other than `saturate launch` has taken some of the machine's
// away from it. With `gpu` it is left one of the GPUs that it may see, unless it sees no more than
// one already; `takes_turns` as GpuChoice's. REQUIRES: nothing has asked for a GPU yet.
void bind_process(const World& world, bool gpu, bool takes_turns = false);

}  // namespace saturate
