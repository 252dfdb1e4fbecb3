// The state of torch's random numbers on each rank, from which dropout draws.
#pragma once

#include <cstdint>
#include <vector>

#include "saturate/model.h"

namespace saturate {

class Group;

// Different for each rank, and after each resume, so that dropout's masks differ.
uint64_t seed_of_rank(uint64_t seed, int rank, int64_t step);

// States of the CPU's and the device's generator by name: "cpu", and "cpu.1" of rank 1. Collective
// if `group` is not null.
std::vector<NamedTensor> random_states(Group* group, const at::Device& device);
// Restores this rank's of the states that random_states() returned; a rank that the saved run did
// not have begins with seed_of_rank().
void load_random_states(const std::vector<NamedTensor>& states, Group* group,
                        const at::Device& device, uint64_t seed, int64_t step);

}  // namespace saturate
