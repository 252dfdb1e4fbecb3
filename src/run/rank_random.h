// The state of torch's random numbers in each process of a run, which dropout draws from.
#pragma once

#include <cstdint>
#include <vector>

#include "saturate/model.h"

namespace saturate {

class Group;

// Another for each rank, and after each resume: masks of dropout are not to be alike.
uint64_t seed_of_rank(uint64_t seed, int rank, int64_t step);

// States of the CPU's and the device's generator by name: "cpu", and "cpu.1" of rank 1. Collective
// where `group` is not null.
std::vector<NamedTensor> random_states(Group* group, const at::Device& device);
// Takes this rank's of what random_states() gave; a rank that the saved run did not have begins
// with seed_of_rank().
void load_random_states(const std::vector<NamedTensor>& states, Group* group,
                        const at::Device& device, uint64_t seed, int64_t step);

}  // namespace saturate
