#include "run/rank_random.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <fmt/format.h>

#include "saturate/group.h"

namespace saturate {

uint64_t seed_of_rank(uint64_t seed, int rank, int64_t step) {
  return seed + uint64_t(rank) * 0x9E3779B97F4A7C15u + uint64_t(step);
}

std::vector<NamedTensor> random_states(Group* group, const at::Device& device) {
  std::vector<NamedTensor> states;
  const auto add = [&](const std::string& name, const at::Device& of) {
    const at::Tensor own = at::globalContext().defaultGenerator(of).get_state();
    const at::Tensor all = group ? group->gather(own) : own.unsqueeze(0);
    for (int64_t rank = 0; rank < all.size(0); ++rank)
      states.push_back({rank == 0 ? name : fmt::format("{}.{}", name, rank), all[rank].clone()});
  };
  add("cpu", at::kCPU);
  if (device.is_cuda()) add("cuda", device);
  return states;
}

void load_random_states(const std::vector<NamedTensor>& states, Group* group,
                        const at::Device& device, uint64_t seed, int64_t step) {
  const int rank = group ? group->rank() : 0;
  if (rank > 0) at::manual_seed(seed_of_rank(seed, rank, step));
  const std::string suffix = rank == 0 ? "" : fmt::format(".{}", rank);
  for (const at::Device& from : {at::Device(at::kCPU), device})
    for (const auto& [name, state] : states)
      if (name == (from.is_cuda() ? "cuda" : "cpu") + suffix) {
        at::Generator generator = at::globalContext().defaultGenerator(from);
        generator.set_state(state);
      }
}

}  // namespace saturate
