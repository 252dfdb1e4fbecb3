// The ranks' first contact, through a store: rank 0's own, or its launcher's.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "saturate/data/world.h"

namespace c10d {
class Store;
}

namespace saturate {

// Waits for all of `world`, and reports those that did not connect. The keys of the store are those
// of one group: a process may make several groups of the same ranks, all ranks in the same order.
c10::intrusive_ptr<c10d::Store> rendezvous(const World& world, std::chrono::milliseconds timeout);
// To be called when a group with that store is made: this rank's next one is another. A group that
// could not be made is not counted, so that the same one can be tried again.
void note_group(const World& world, const c10::intrusive_ptr<c10d::Store>& store);

// The result of a call that may hang, for example when the network drops packets; empty after
// `limit`: the call is then left to a thread that lives until the process ends.
template <class Result>
std::optional<Result> result_within(std::chrono::milliseconds limit,
                                    const std::function<Result()>& call) {
  std::packaged_task<Result()> task(call);
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace saturate
