// ZeRO stage 1 (https://arxiv.org/abs/1910.02054): each process keeps the optimizer state of some
// parameters, updates these, and broadcasts them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "saturate/group.h"
#include "saturate/optimizer.h"

namespace saturate {

using OwnOptimizer = std::function<std::unique_ptr<Optimizer>(std::vector<ParameterGroup>)>;

// An optimizer over all of `groups`, whose parameters are divided among processes with about as
// many values each. `make` creates the optimizer of a process's own parameters. step(), state() and
// load_state() are collective: state() covers all parameters, on every rank, with the names of an
// unsharded optimizer, so that any number of processes can load it. `group` must outlive it.
std::unique_ptr<Optimizer> make_sharded_optimizer(Group& group, std::vector<ParameterGroup> groups,
                                                  const OwnOptimizer& make);

// The rank that owns each parameter, in the order of `groups`: the largest are assigned first, each
// to the rank with the fewest values so far.
std::vector<int> owners_of(const std::vector<ParameterGroup>& groups, int world);

}  // namespace saturate
