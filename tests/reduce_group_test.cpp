// Rendezvous, collectives, and their failures.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "reduce/backends.h"
#include "reduce/heartbeat.h"
#include "tests/data_testing.h"
#include "tests/formula.h"
#include "tests/reduce_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::run_ranks;

// For events that occur long before half of it, even on the slowest machine.
DistributedOptions long_timeout() {
  DistributedOptions options;
  options.timeout_s = 240;
  return options;
}

TEST(Group, AllReducesGathersAndSendsMessages) {
  run_ranks(3, [](Group& group) {
    const double rank = group.rank();
    const at::Tensor sum = at::tensor({rank, 1.0}, at::kDouble);
    group.sum(sum);
    EXPECT_TRUE(at::equal(sum, at::tensor({3.0, 3.0}, at::kDouble)));
    const at::Tensor most = at::full({1}, rank, at::kDouble);
    group.max(most);
    EXPECT_EQ(most.item<double>(), 2);
    const at::Tensor rows = group.gather(at::full({2}, rank, at::kDouble));
    EXPECT_TRUE(at::equal(rows, at::tensor({0., 0., 1., 1., 2., 2.}, at::kDouble).view({3, 2})));
    const std::vector<at::Tensor> tensors = {at::full({4}, rank), at::full({2}, int64_t(rank))};
    group.broadcast(tensors);
    for (const auto& tensor : tensors) EXPECT_EQ(tensor.abs().sum().item<double>(), 0);
    const at::Tensor of_two = at::full({2}, rank);
    group.broadcast(of_two, 2);
    EXPECT_EQ(of_two[0].item<double>(), 2);
    const auto texts = group.texts(std::string(size_t(group.rank()), 'x'));
    EXPECT_EQ(texts, (std::vector<std::string>{"", "x", "xx"}));
    EXPECT_EQ(group.text_of_first(group.rank() == 0 ? "zero" : "other"), "zero");
    EXPECT_TRUE(group.any(group.rank() == 1));
    EXPECT_FALSE(group.any(false));
    EXPECT_FALSE(group.first_says(group.rank() == 1));
  });
}

// As a program that makes one for each training: one ends before the next begins, or after it. Rank
// 1 may be ahead.
TEST(Group, SeveralOfTheSameRanksAreSeparate) {
  testing::run_worlds(2, [](const World& world) {
    std::unique_ptr<Group> before;
    for (int i = 0; i < 4; ++i) {
      if (i % 2 == 0) before.reset();
      auto group = std::make_unique<Group>(world, long_timeout(), at::kCPU);
      const at::Tensor sum = at::full({1}, double(i + world.rank), at::kDouble);
      group->sum(sum);
      EXPECT_EQ(sum.item<double>(), 2 * i + 1);
      before = std::move(group);
    }
  });
}

TEST(Group, NamesTheDifferingRankAndFieldOnEveryRank) {
  run_ranks(3, [](Group& group) {
    group.require_same("recipe", "a = 1\nb = 2\n");
    const std::string own = group.rank() == 2 ? "a = 1\nb = 3\n" : "a = 1\nb = 2\n";
    const Error error = error_of([&] { group.require_same("recipe", own); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(error.reason(),
              "the recipe of rank 2 differs from rank 0's: it has b = 3, not b = 2");
    const Error both = error_of([&] { group.require_same("run", group.rank() == 0 ? "" : "a\n"); });
    EXPECT_EQ(both.reason(),
              "the run of ranks 1, 2 differs from rank 0's: rank 1 has a, not nothing");
  });
}

TEST(Group, AMissingRankIsNamedInTime) {
  World world;
  world.size = 2;
  world.master = "127.0.0.1";
  const int listening = listen_at(world.master, 0);
  world.port = port_of(listening);
  setenv("SATURATE_LISTEN_FD", std::to_string(listening).c_str(), 1);
  DistributedOptions options;
  options.timeout_s = 3;
  const Error error = error_of([&] { Group(world, options, at::kCPU); });
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_EQ(error.reason(), "rank 1 of 2 did not connect within 3 s");
}

// It accepts connections like any listening socket, but never responds.
TEST(Group, AMasterThatNeverRespondsIsNamedInTime) {
  World world;
  world.rank = 1;
  world.size = 2;
  world.master = "127.0.0.1";
  const int listening = listen_at(world.master, 0);
  world.port = port_of(listening);
  DistributedOptions options;
  options.timeout_s = 2;
  const auto begin = std::chrono::steady_clock::now();
  const Error error = error_of([&] { Group(world, options, at::kCPU); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_EQ(error.reason(), "the rendezvous server did not respond within 2 s");
  EXPECT_EQ(error.where(), "127.0.0.1:" + std::to_string(world.port));
  close(listening);
}

TEST(Group, ARankThatWaitsForOthersReportsIt) {
  run_ranks(2, [](Group& group) {
    group.any(false);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    if (group.rank() == 1)
      while (!waits_for_others() && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(group.rank() == 0 || waits_for_others());
    const at::Tensor tensor = at::full({1}, 1.0);
    group.sum(tensor);
  });
  EXPECT_FALSE(waits_for_others());
}

TEST(Nccl, StaysOnThisMachineIfAllRanksAre) {
  const auto unset = [](const char*) -> const char* { return nullptr; };
  World world;
  world.size = world.local_size = 4;
  EXPECT_STREQ(nccl_interface(world, unset), "lo");
  EXPECT_EQ(nccl_interface(world, [](const char*) { return "eth0"; }), nullptr);
  world.local_size = 2;
  EXPECT_EQ(nccl_interface(world, unset), nullptr);
  world.local_size = 0;
  EXPECT_EQ(nccl_interface(world, unset), nullptr) << "unknown";
}

TEST(Group, AFailedRankIsNamedByTheOthers) {
  std::string said;
  run_ranks(
      2,
      [&](Group& group) {
        if (group.rank() == 1) {
          group.report_failure("its disk is full");
          return;
        }
        const at::Tensor tensor = at::full({1}, 1.0);
        said = error_of([&] { group.sum(tensor); }).reason();
      },
      long_timeout());
  EXPECT_EQ(said, "another process failed; rank 1: its disk is full");
}

TEST(Group, AVanishedRankIsAnErrorInTime) {
  const auto begin = std::chrono::steady_clock::now();
  run_ranks(
      2,
      [&](Group& group) {
        if (group.rank() == 0) return;
        const at::Tensor tensor = at::full({1}, 1.0);
        const Error error = error_of([&] { group.sum(tensor); });
        EXPECT_EQ(error.exit_code(), 4);
        EXPECT_NE(error.reason().find("another process ended"), std::string::npos);
        EXPECT_EQ(error.where(), "rank 1 of 2");
      },
      long_timeout());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));
}

// In NCCL's place.
class CountedAborts : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "counted"; }
  void abort() override { ++aborts; }
  int aborts = 0;
};

TEST(Group, ALostRankAbortsTheWorkOnAGpuBeforeUnwinding) {
  DistributedOptions options = long_timeout();
  options.backend = CollectiveBackend::kGloo;
  testing::run_worlds(2, [&](const World& world) {
    const auto on_gpu = c10::make_intrusive<CountedAborts>(world.rank, world.size);
    Group group(world, options, at::Device(at::kCUDA, 0));
    group.handle().setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::CUSTOM,
                              on_gpu);
    const Error error =
        error_of([&] { group.guard("waiting", [] { throw std::runtime_error("no reply"); }); });
    EXPECT_NE(error.reason().find("while waiting: no reply"), std::string::npos) << error.reason();
    EXPECT_EQ(on_gpu->aborts, 1);
  });
}

TEST(Group, AStalledRankIsNamedInTime) {
  DistributedOptions options;
  options.timeout_s = 4;
  for (const auto backend : {CollectiveBackend::kAuto, CollectiveBackend::kGloo}) {
    options.backend = backend;
    std::promise<void> named;
    const std::shared_future<void> has_been_named = named.get_future();
    run_ranks(
        2,
        [&](Group& group) {
          group.any(false);
          if (group.rank() == 1) {
            has_been_named.wait_for(std::chrono::seconds(120));
            return;
          }
          const at::Tensor tensor = at::full({1}, 1.0);
          const std::string said = error_of([&] { group.sum(tensor); }).reason();
          named.set_value();
          EXPECT_NE(said.find("did not respond in time while summing over the processes: "),
                    std::string::npos)
              << said;
          if (group.backend_on(at::kCPU) == "shm") {
            EXPECT_TRUE(said.ends_with(": rank 1 did not arrive within 4 s")) << said;
          }
        },
        options);
  }
}

// [each type and size] on rank 0, after an all-reduce in place if `in_place`.
std::vector<at::Tensor> sums_over(int world, CollectiveBackend backend, bool in_place) {
  DistributedOptions options;
  options.backend = backend;
  std::vector<at::Tensor> sums;
  run_ranks(
      world,
      [&](Group& group) {
        EXPECT_EQ(group.backend_on(at::kCPU), backend == CollectiveBackend::kGloo ? "gloo" : "shm");
        for (const at::ScalarType type :
             {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong}) {
          for (int64_t size : {1, 7, 300001}) {  // the last is more than fits at once
            const at::Tensor tensor =
                (testing::symmetric("sum", {size}, 50) * double(group.rank() + 1)).to(type);
            if (in_place) share_memory_of(group, tensor);
            group.sum(tensor);
            group.max(tensor);  // equal on all ranks, so that it changes nothing
            if (group.rank() == 0) sums.push_back(tensor);
          }
        }
      },
      options);
  return sums;  // some outlive the group that owns their memory
}

TEST(Group, SharedMemoryAllReducesEqualGloos) {
  for (const int world : {2, 4}) {
    const auto expected = sums_over(world, CollectiveBackend::kGloo, false);
    for (const bool in_place : {false, true}) {
      const auto sums = sums_over(world, CollectiveBackend::kAuto, in_place);
      ASSERT_EQ(sums.size(), expected.size());
      for (size_t i = 0; i < sums.size(); ++i) {
        SCOPED_TRACE(std::to_string(world) + " ranks, " + sums[i].toString());
        if (world == 2 || !sums[i].is_floating_point()) {
          EXPECT_TRUE(at::equal(sums[i], expected[i]));
          continue;
        }
        // A different order of additions; halves are rounded once, but by Gloo each time.
        const bool half = sums[i].element_size() == 2;
        EXPECT_TRUE(at::allclose(sums[i].to(at::kDouble), expected[i].to(at::kDouble),
                                 half ? 3e-2 : 1e-6, half ? 1 : 1e-5));
      }
    }
  }
}

TEST(Group, ManyAllReducesInFlightCompleteInOrder) {
  run_ranks(3, [](Group& group) {
    std::vector<at::Tensor> tensors;
    std::vector<std::function<void()>> started;
    for (int i = 0; i < 200; ++i) {
      tensors.push_back(at::full({i + 1}, int64_t(i + group.rank()), at::kLong));
      started.push_back(group.start_max(tensors.back()));
    }
    for (int i = 0; i < 200; ++i) {
      started[size_t(i)]();
      EXPECT_TRUE(at::equal(tensors[size_t(i)], at::full({i + 1}, int64_t(i + 2), at::kLong)));
    }
  });
}

// Names of this process's threads, and whether a SIGPIPE would end the process there.
std::map<std::string, bool> threads_and_sigpipe() {
  std::map<std::string, bool> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::istringstream status(testing::read_text(entry.path() / "status"));
    for (std::string word; status >> word;)
      if (word == "SigBlk:" && status >> word)
        found[entry.path().filename()] = (std::stoull(word, nullptr, 16) >> (SIGPIPE - 1) & 1) == 0;
  }
  return found;
}

// The store's thread writes to ranks that may be gone by then, and so do Gloo's.
TEST(Group, AWriteToAnEndedRankDoesNotEndTheProcess) {
  const auto before = threads_and_sigpipe();
  std::map<std::string, bool> during;
  run_ranks(2, [&](Group& group) {
    group.any(false);  // both exist
    if (group.rank() == 0) during = threads_and_sigpipe();
    group.any(false);
    EXPECT_EQ(group.backend_on(at::kCPU), "shm");
  });
  int made = 0, endangered = 0;
  for (const auto& [thread, by_sigpipe] : during) {
    if (before.contains(thread)) continue;
    ++made;
    endangered += by_sigpipe;
  }
  EXPECT_GE(made, 5) << "the ranks' own, the store's and Gloo's";
  EXPECT_EQ(endangered, 2) << "only the ranks' own";
}

TEST(Listening, ListensOnlyAtTheGivenAddress) {
  const int listening = listen_at("127.0.0.1", 0);
  const auto connects = [&](uint32_t host) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(host);
    address.sin_port = htons(uint16_t(port_of(listening)));
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    const bool connected =
        connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(client);
    return connected;
  };
  EXPECT_TRUE(connects(INADDR_LOOPBACK));
  EXPECT_FALSE(connects(INADDR_LOOPBACK + 1)) << "127.0.0.2 is this machine too";
  EXPECT_NE(error_of([&] { listen_at("127.0.0.1", port_of(listening)); }).reason().find("in use"),
            std::string::npos);
  close(listening);
  EXPECT_NE(error_of([] { listen_at("192.0.2.1", 0); }).reason().find("cannot listen"),
            std::string::npos)
      << "a documentation address (RFC 5737)";
  EXPECT_EQ(address_towards("127.0.0.1", 80), "127.0.0.1");
}

TEST(Listening, RefusesANameOfLoopbackIfOtherMachinesConnect) {
  const Error error = error_of([] { listen_at("localhost", 0, true); });
  EXPECT_EQ(error.kind(), ErrorKind::kUsage);
  EXPECT_NE(error.reason().find("cannot reach \"localhost\", which is "), std::string::npos)
      << error.reason();
  EXPECT_NE(error.remedy().find("/etc/hosts"), std::string::npos);
  close(listen_at("localhost", 0));
  close(listen_at("127.0.0.1", 0, true));  // in digits
  EXPECT_EQ(address_towards("127.0.0.1", 80, true), "127.0.0.1");
}

TEST(Listening, IsForOtherMachinesUnlessThereAreKnownToBeNone) {
  World world;
  world.size = 4;
  world.master = "localhost";
  EXPECT_FALSE(spans_machines(world));
  world.master = "node0";
  EXPECT_TRUE(spans_machines(world));
  world.local_size = 2;
  EXPECT_TRUE(spans_machines(world));
  world.local_size = 4;
  EXPECT_FALSE(spans_machines(world));
}

}  // namespace
}  // namespace saturate
