// ZeRO's first stage (https://arxiv.org/abs/1910.02054): each process keeps the state of some of
// the parameters and updates those, and then all take them over from it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "saturate/group.h"
#include "saturate/optimizer.h"

namespace saturate {

using OwnOptimizer = std::function<std::unique_ptr<Optimizer>(std::vector<ParameterGroup>)>;

// An optimizer over all of `groups`, of whose parameters each process has about as many values.
// `make` makes that of the process's own. step(), state() and load_state() are collective:
// state() is that of all parameters, on every rank, named as `make`'s own optimizer over all of
// them names it, so that any number of processes can load it. `group` must outlive it.
std::unique_ptr<Optimizer> make_sharded_optimizer(Group& group, std::vector<ParameterGroup> groups,
                                                  const OwnOptimizer& make);

// The rank that owns each parameter, in the order of `groups`: the largest are dealt out first,
// each to the rank that has the fewest values so far.
std::vector<int> owners_of(const std::vector<ParameterGroup>& groups, int world);

}  // namespace saturate
