#include "saturate/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>

#include "base/printable.h"
#include "reduce/backends.h"
#include "reduce/heartbeat.h"
#include "reduce/rendezvous.h"
#include "reduce/sockets.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using std::chrono::milliseconds;

constexpr const char* kFailedKey = "failed";
constexpr std::chrono::seconds kStoreAnswers{3};
constexpr int64_t kBroadcastBytes = int64_t{250} << 20;  // per broadcast, as Python's DDP

// Threads created in its lifetime block SIGPIPE: the store's and Gloo's write to sockets of
// processes that may have ended, which would silently kill this process.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0)
      while (sigtimedwait(&pipe_, nullptr, &now) > 0) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
};

// Without the full stop.
std::string brief_reason(const std::exception& error) {
  std::string text = first_line(error.what());
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

// Connects to all other ranks, any of which may fail meanwhile.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const World& world, milliseconds timeout) {
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(
      address_towards(world.master, world.port, spans_machines(world))));
  try {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", store), world.rank, world.size, options);
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

// Queries the store, for a few seconds at most.
std::string ask(const c10::intrusive_ptr<c10d::Store>& store,
                const std::function<std::string(c10d::Store&)>& question) {
  if (!store) return {};
  try {
    return result_within<std::string>(kStoreAnswers, [=] { return question(*store); }).value_or("");
  } catch (const std::exception&) {
    return {};  // rank 0, which runs the store, has ended
  }
}

// The first failure reported by any rank; empty if none.
std::string first_failure(c10d::Store& store) {
  if (!store.check({kFailedKey})) return {};
  const auto bytes = store.get(kFailedKey);
  return {bytes.begin(), bytes.end()};
}

// "rank 1", "ranks 1, 3 and 4 more"
std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 8;
  const size_t named = std::min(ranks.size(), kMostNamed);
  const std::string text = fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "",
                                       fmt::join(ranks.data(), ranks.data() + named, ", "));
  return named == ranks.size() ? text : fmt::format("{} and {} more", text, ranks.size() - named);
}

// The first lines in which two texts differ; "nothing" for a text that has ended.
std::pair<std::string, std::string> first_difference(const std::string& one,
                                                     const std::string& other) {
  std::istringstream lines(one), others(other);
  std::string line, other_line;
  do {
    if (!std::getline(lines, line)) line = "nothing";
    if (!std::getline(others, other_line)) other_line = "nothing";
  } while (line == other_line && (lines || others));
  return {line, other_line};
}

}  // namespace

struct Group::State {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  bool failed = false;
};

Group::Group(const World& world, const DistributedOptions& options, const at::Device& device)
    : world_(world), device_(device), state_(std::make_unique<State>()) {
  const milliseconds timeout(int64_t(options.timeout_s * 1e3));
  const WithoutSigpipe without_sigpipe;
  guard("connecting to the other processes", [&] {
    state_->store = rendezvous(world, timeout);
    auto& group = state_->group = c10::make_intrusive<c10d::ProcessGroup>(
        c10::make_intrusive<c10d::PrefixStore>("group", state_->store), world.rank, world.size);
    const auto gloo = make_gloo(state_->store, world, timeout);
    using Type = c10d::ProcessGroup::BackendType;
    const auto on_cpu = with_shared_memory(state_->store, gloo, world, timeout,
                                           options.backend != CollectiveBackend::kGloo);
    group->setBackend(c10::DeviceType::CPU, Type::GLOO, on_cpu);
    group->setDefaultBackend(Type::GLOO);
    if (!device.is_cuda()) return;
    if (options.backend != CollectiveBackend::kGloo &&
        (has_nccl() || options.backend == CollectiveBackend::kNccl)) {
      group->setBoundDeviceId(device);  // setBackend() sets the backend's device to the group's
      group->setBackend(c10::DeviceType::CUDA, Type::NCCL,
                        make_nccl(state_->store, world, timeout, device));
    } else {
      group->setBackend(c10::DeviceType::CUDA, Type::GLOO, on_cpu);
    }
  });
  note_group(world, state_->store);
}

// NCCL has to be shut down explicitly: gracefully, which waits for the other ranks, or by aborting,
// which guard() has done.
Group::~Group() {
  if (!device_.is_cuda() || state_->failed) return;
  try {
    state_->group->shutdown();
  } catch (const std::exception&) {
    // Another process has ended; its failure is already reported.
  }
}

std::string Group::name() const {
  return fmt::format("rank {} of {}", rank(), world());
}

std::string Group::backend_on(const at::Device& device) const {
  return state_->group->getBackend(device.type())->getBackendName();
}

c10d::ProcessGroup& Group::handle() {
  return *state_->group;
}

void Group::report_failure(const std::string& message) noexcept {
  try {
    const std::string text = fmt::format("rank {}: {}", rank(), message);
    ask(state_->store, [text](c10d::Store& store) {
      store.compareSet(kFailedKey, {}, std::vector<uint8_t>(text.begin(), text.end()));
      return std::string();
    });
  } catch (const std::exception&) {
    // Out of memory: the other ranks detect the failure through a timeout.
  }
}

void Group::guard(const char* doing, const std::function<void()>& body) {
  std::string reason;
  try {
    body();
    return;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // Out of memory and a bad shape are torch's other errors: not caused by other ranks.
    if (dynamic_cast<const c10::Error*>(&error) && !dynamic_cast<const c10::DistError*>(&error))
      throw;
    reason = brief_reason(error);
  }
  state_->failed = true;
  report_lost_peer();
  const std::string first = ask(state_->store, first_failure);
  // NCCL's kernels on the step's stream wait for the lost rank, and destructors that the exception
  // runs would wait for that stream.
  if (device_.is_cuda() && state_->group) {
    try {
      state_->group->abort();
    } catch (const std::exception&) {
      // The lost rank is reported instead.
    }
  }
  if (!first.empty())
    fail(ErrorKind::kRun, fmt::format("another process failed; {}", first), name(),
         "Read that process's error");
  fail(ErrorKind::kRun,
       fmt::format("another process ended or did not respond in time while {}: {}", doing, reason),
       name(),
       "Find the rank that failed first; if none did, raise distributed.timeout_s; resume with "
       "--resume=auto");
}

void Group::broadcast(const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;  // parameters are written in place
  guard("sending rank 0's weights", [&] {
    const WaitingForOthers waiting;
    c10d::broadcast_coalesced(state_->group, tensors, size_t(kBroadcastBytes), 0);
  });
}

void Group::broadcast(const at::Tensor& tensor, int from) {
  const c10::NoGradGuard no_grad;
  guard("sending tensors", [&] {
    const WaitingForOthers waiting;
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    state_->group->broadcast(tensors, options)->wait();
  });
}

void Group::sum(const at::Tensor& tensor) {
  guard("summing over the processes", [&] {
    const WaitingForOthers waiting;
    std::vector<at::Tensor> tensors = {tensor};
    state_->group->allreduce(tensors)->wait();
  });
}

void Group::max(const at::Tensor& tensor) {
  start_max(tensor)();
}

std::function<void()> Group::start_max(const at::Tensor& tensor) {
  c10::intrusive_ptr<c10d::Work> work;
  guard("agreeing on a value", [&] {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    work = state_->group->allreduce(tensors, options);
  });
  return [this, work, tensor] {
    guard("agreeing on a value", [&] {
      const WaitingForOthers waiting;
      work->wait();
    });
  };
}

at::Tensor Group::gather(const at::Tensor& row) {
  at::Tensor rows = at::zeros({world(), row.numel()}, row.options());
  rows.select(0, rank()).copy_(row.flatten());
  sum(rows);  // each row holds one rank's values, and zeros elsewhere
  return rows;
}

std::vector<std::string> Group::texts(const std::string& own) {
  const at::Tensor sizes = gather(at::full({1}, int64_t(own.size()), at::kLong));
  std::vector<std::string> all;
  for (int from = 0; from < world(); ++from) {
    const int64_t size = sizes.const_data_ptr<int64_t>()[from];
    at::Tensor bytes = at::empty({std::max<int64_t>(size, 1)}, at::kByte);
    if (from == rank()) std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
    broadcast(bytes, from);
    all.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), size_t(size));
  }
  return all;
}

std::string Group::text_of_first(const std::string& own) {
  return texts(rank() == 0 ? own : "")[0];
}

bool Group::any(bool own) {
  const at::Tensor flag = at::full({1}, own ? 1 : 0, at::kInt);
  max(flag);
  return flag.const_data_ptr<int>()[0] != 0;
}

bool Group::first_says(bool own) {
  return any(rank() == 0 && own);
}

void Group::require_same(const std::string& what, const std::string& text) {
  const auto all = texts(text);
  std::vector<int> others;
  for (int other = 1; other < world(); ++other)
    if (all[size_t(other)] != all[0]) others.push_back(other);
  if (others.empty()) return;
  const std::string where = ranks_text(others);
  const auto [ours, theirs] = first_difference(all[0], all[size_t(others[0])]);
  fail(ErrorKind::kUsage,
       fmt::format("the {} of {} differs from rank 0's: {} has {}, not {}", what, where,
                   others.size() > 1 ? fmt::format("rank {}", others[0]) : "it", theirs, ours),
       where, "Start every rank with the same command on the same data");
}

}  // namespace saturate
