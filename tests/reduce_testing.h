// Several ranks as threads of one process: each has its own group, model and step.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "reduce/sockets.h"
#include "saturate/group.h"

namespace saturate::testing {

// Calls body(world) on a thread for each rank, and rethrows the first failure by rank.
inline void run_worlds(int count, const std::function<void(const World&)>& body) {
  // torch's flight recorder exists once per process, and records only one rank's thread at a time.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const int listening = listen_at("127.0.0.1", 0);
  setenv("SATURATE_LISTEN_FD", std::to_string(listening).c_str(), 1);  // rank 0's from here on
  const int port = port_of(listening);
  std::vector<std::exception_ptr> failures(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      World world;
      world.rank = rank;
      world.size = count;
      world.master = "127.0.0.1";
      world.port = port;
      try {
        body(world);
      } catch (...) {
        failures[size_t(rank)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// The same with body(group). On GPUs each rank uses the GPU with its number.
inline void run_ranks(int count, const std::function<void(Group&)>& body,
                      const DistributedOptions& options = {}, at::DeviceType type = at::kCPU) {
  run_worlds(count, [&](const World& world) {
    Group group(world, options, type == at::kCPU ? type : at::Device(type, int8_t(world.rank)));
    body(group);
  });
}

}  // namespace saturate::testing
