#include "reduce/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "reduce/heartbeat.h"
#include "reduce/sockets.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kStoreSpare{10};  // added to timeouts that the store itself enforces

// One rank of one start of a program. Ranks may be threads of one process, as in tests.
using RankOfStart = std::tuple<std::string, int, int, int, int>;

RankOfStart rank_of_start(const World& world) {
  return {world.master, world.port, world.attempt, world.size, world.rank};
}

Mutex groups_mutex;
std::map<RankOfStart, int> groups_made GUARDED_BY(groups_mutex);
// The store that rank 0 served last. It listens until the process ends, as another rank may connect
// to it for its next group before rank 0 does.
c10::intrusive_ptr<c10d::Store> served_store GUARDED_BY(groups_mutex);
std::pair<std::string, int> served_at GUARDED_BY(groups_mutex);

bool serves_itself(const World& world) {
  return world.rank == 0 && !world.store_elsewhere;
}

bool serves_already(const World& world) {
  const MutexLock lock(groups_mutex);
  return served_store && served_at == std::pair(world.master, world.port);
}

void stop_serving() {
  const MutexLock lock(groups_mutex);
  served_store.reset();
}

// The number of this rank's next group, which is the same on all ranks.
int next_group(const World& world) {
  const MutexLock lock(groups_mutex);
  const auto made = groups_made.find(rank_of_start(world));
  return made == groups_made.end() ? 0 : made->second;
}

// The launcher may have opened the socket, to reserve the port.
int listening_socket(const World& world) {
  if (const char* inherited = std::getenv("SATURATE_LISTEN_FD")) {
    const int descriptor = std::atoi(inherited);
    unsetenv("SATURATE_LISTEN_FD");  // it is used once
    if (port_of(descriptor) == world.port) return descriptor;
  }
  return listen_at(world.master, world.port, spans_machines(world));
}

c10::intrusive_ptr<c10d::Store> connect_to_store(const World& world, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = uint16_t(world.port);
  options.isServer = serves_itself(world) && !serves_already(world);
  if (options.isServer) options.masterListenFd = listening_socket(world);
  options.waitWorkers = false;
  options.timeout = timeout;
  const auto store = c10::make_intrusive<c10d::TCPStore>(world.master, options);
  return c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("saturate/{}/{}", world.attempt, next_group(world)), store);
}

// Waits for all ranks and reports those that did not connect.
void wait_for_all(c10d::Store& store, const World& world, milliseconds timeout) {
  const auto key = [](int rank) { return fmt::format("here/{}", rank); };
  store.set(key(world.rank), std::vector<uint8_t>{1});
  std::vector<std::string> keys;
  for (int rank = 0; rank < world.size; ++rank) keys.push_back(key(rank));
  try {
    store.wait(keys, timeout);
    return;
  } catch (const std::exception&) {
    // The missing ranks are named below.
  }
  report_lost_peer();
  std::vector<int> missing;
  for (int rank = 0; rank < world.size; ++rank)
    if (!store.check({key(rank)})) missing.push_back(rank);
  fail(ErrorKind::kRun,
       fmt::format("rank {} of {} did not connect within {:g} s", fmt::join(missing, ", "),
                   world.size, double(timeout.count()) * 1e-3),
       fmt::format("{}:{}", world.master, world.port),
       "Check that rank's output, or raise distributed.timeout_s");
}

// The result of a call to the store. The store enforces `timeout` if nobody listens or connects;
// where a listener never responds it would wait forever.
template <class Result>
Result answered(const World& world, milliseconds timeout, const std::function<Result()>& call) {
  if (auto result = result_within(timeout + kStoreSpare, call)) return *std::move(result);
  report_lost_peer();
  fail(ErrorKind::kRun,
       fmt::format("the rendezvous server did not respond within {:g} s",
                   double(timeout.count()) * 1e-3),
       fmt::format("{}:{}", world.master, world.port),
       "Check that rank 0 runs there and that no other program uses the port");
}

}  // namespace

c10::intrusive_ptr<c10d::Store> rendezvous(const World& world, milliseconds timeout) {
  using Store = c10::intrusive_ptr<c10d::Store>;
  const auto store = answered<Store>(world, timeout,
                                     [world, timeout] { return connect_to_store(world, timeout); });
  return answered<Store>(world, timeout, [world, timeout, store] {
    wait_for_all(*store, world, timeout);
    return store;
  });
}

void note_group(const World& world, const c10::intrusive_ptr<c10d::Store>& store) {
  c10::intrusive_ptr<c10d::Store> former;  // ends after the lock
  const MutexLock lock(groups_mutex);
  ++groups_made[rank_of_start(world)];
  const std::pair at(world.master, world.port);
  if (!serves_itself(world) || (served_store && served_at == at)) return;
  former = std::exchange(served_store, store);
  served_at = at;
  // Registered after a store was made, this runs before the end of what stores share.
  [[maybe_unused]] static const int registered = std::atexit(stop_serving);
}

}  // namespace saturate
