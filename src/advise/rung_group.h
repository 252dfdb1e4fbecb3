// A ladder that several processes run together (saturate launch ... -- ladder): the first decides
// what is measured when, and each starts its own process for rungs that train in several. A rung of
// one process is the first's affair; the others wait, and leave it the machine.
//
//   first:  {"do": "start" | "measure" | "wait" | "end", "rung", "processes", ...}, to all
//   each:   starts or measures its process of the rung, and tells all what came of it
#pragma once

#include <memory>

#include "advise/ladder.h"
#include "saturate/group.h"

namespace saturate {

// The first one's. Lets the others go at its end. Calls of start() and measure() must come within
// the group's time limit of each other. `group` must outlive it.
std::unique_ptr<RungMeasurer> make_group_measurer(Env& env, const Ladder& ladder,
                                                  const ProcessMeasurerOptions& options,
                                                  Group& group);

// The work of every other process: its part, until the first ends it or is gone, which is a
// failure.
void help_measuring(Env& env, const ProcessMeasurerOptions& options, Group& group);

}  // namespace saturate
