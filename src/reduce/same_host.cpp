#include <ATen/ops/full.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "base/thread_pool.h"
#include "reduce/backends.h"
#include "reduce/shared_memory.h"
#include "reduce/shared_sum.h"

namespace saturate {
namespace {

using std::chrono::milliseconds;

constexpr const char* kAddressKey = "shared_memory";
// Address space for each rank's blocks; memory is committed when written.
constexpr size_t kArena = size_t{8} << 30;

template <class Value>
struct Larger {
  Value operator()(Value a, Value b) const { return a < b ? b : a; }
};

template <class T, class Wide = T>
Combination sum_or_max(at::ScalarType type, c10d::ReduceOp::RedOpType operation) {
  return {uint32_t(type) << 8 | uint32_t(operation), sizeof(T),
          operation == c10d::ReduceOp::SUM ? combine_parts<T, Wide, std::plus<Wide>>
                                           : combine_parts<T, Wide, Larger<Wide>>};
}

// Empty: handled by Gloo.
std::optional<Combination> combination_of(const at::Tensor& tensor, c10d::ReduceOp::RedOpType how) {
  if (how != c10d::ReduceOp::SUM && how != c10d::ReduceOp::MAX) return std::nullopt;
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || !tensor.is_contiguous())
    return std::nullopt;
  const at::ScalarType type = tensor.scalar_type();
  switch (type) {
    case at::kFloat:
      return sum_or_max<float>(type, how);
    case at::kDouble:
      return sum_or_max<double>(type, how);
    case at::kBFloat16:
      return sum_or_max<c10::BFloat16, float>(type, how);
    case at::kHalf:
      return sum_or_max<c10::Half, float>(type, how);
    case at::kInt:
      return sum_or_max<int32_t>(type, how);
    case at::kLong:
      return sum_or_max<int64_t>(type, how);
    default:
      return std::nullopt;
  }
}

class SumWork : public c10d::Work {
 public:
  explicit SumWork(std::vector<at::Tensor> tensors)
      : Work(-1, c10d::OpType::ALLREDUCE),
        tensors_(std::move(tensors)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  void run(SharedSum& sum, const Combination& how) {
    std::exception_ptr failure;
    try {
      sum.combine(tensors_[0].mutable_data_ptr(), tensors_[0].nbytes(), how);
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure)
      future_->setError(failure);
    else
      future_->markCompleted(c10::IValue(tensors_));
    finish(failure);
  }

  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// State needed by tensors in its memory, which may outlive the group.
struct SharedSums {
  SharedSums(std::shared_ptr<SharedMemory> of, const World& world, milliseconds timeout)
      : memory(std::move(of)),
        sum(
            {memory->data(), world.rank, world.size, kArena},
            [this](int rank) { return memory->has(rank); }, timeout) {}
  const std::shared_ptr<SharedMemory> memory;
  SharedSum sum;
};

class SameHost : public c10d::Backend {
  using Tensors = std::vector<at::Tensor>;
  using Work = c10::intrusive_ptr<c10d::Work>;

 public:
  SameHost(c10::intrusive_ptr<c10d::Backend> gloo, std::shared_ptr<SharedMemory> memory,
           const World& world, milliseconds timeout)
      : Backend(world.rank, world.size),
        gloo_(std::move(gloo)),
        shared_(std::make_shared<SharedSums>(std::move(memory), world, timeout)),
        thread_(1, "shared-sums") {}

  ~SameHost() override {
    shared_->sum.stop();
    thread_.wait_idle();
    shared_->memory->leave();
    shared_->sum.wake_others();
  }

  const std::string getBackendName() const override {
    return use_ ? "shm" : gloo_->getBackendName();
  }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    std::optional<Combination> how;
    if (use_ && tensors.size() == 1) how = combination_of(tensors[0], options.reduceOp);
    if (!how) return gloo_->allreduce(tensors, options);
    auto work = c10::make_intrusive<SumWork>(tensors);
    thread_.submit([this, work, how = *how] { work->run(shared_->sum, how); });
    return work;
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return gloo_->broadcast(tensors, options);
  }
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return gloo_->reduce(tensors, options);
  }
  Work allgather(std::vector<Tensors>& out, Tensors& in,
                 const c10d::AllgatherOptions& options) override {
    return gloo_->allgather(out, in, options);
  }
  Work gather(std::vector<Tensors>& out, Tensors& in, const c10d::GatherOptions& options) override {
    return gloo_->gather(out, in, options);
  }
  Work scatter(Tensors& out, std::vector<Tensors>& in,
               const c10d::ScatterOptions& options) override {
    return gloo_->scatter(out, in, options);
  }
  Work send(Tensors& tensors, int to, int tag) override { return gloo_->send(tensors, to, tag); }
  Work recv(Tensors& tensors, int from, int tag) override {
    return gloo_->recv(tensors, from, tag);
  }
  Work barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }

  void share(const at::Tensor& tensor) {
    SharedArena& arena = shared_->sum.arena();
    const c10::Storage& storage = tensor.storage();
    const size_t bytes = storage.nbytes();
    if (!use_ || !tensor.is_cpu() || bytes == 0 || tensor.nbytes() != bytes ||
        arena.holds(storage.data()))
      return;
    std::byte* const moved = arena.take(bytes);
    if (!moved) return;
    std::memcpy(moved, storage.data(), bytes);
    // Frees the storage's previous memory.
    const auto release = [owner = shared_](void* block) {
      owner->sum.arena().release(static_cast<std::byte*>(block));
    };
    storage.set_data_ptr(c10::InefficientStdFunctionContext::makeDataPtr(moved, release, at::kCPU));
  }

  void use(bool whether) { use_ = whether; }

 private:
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const std::shared_ptr<SharedSums> shared_;
  bool use_ = true;
  ThreadPool thread_;  // one: all-reduces must keep the order of calls
};

// Rank 0's shared memory, or null. Collective.
std::shared_ptr<SharedMemory> join_memory(c10d::Store& store, const World& world, bool wanted) {
  std::shared_ptr<SharedMemory> memory;
  const bool one_machine = world.local_size == 0 || world.local_size == world.size;
  if (world.rank == 0) {
    if (wanted && one_machine && world.size <= SharedSum::kMostRanks)
      memory = SharedMemory::create(SharedSum::bytes_for(world.size, kArena), world.rank);
    const std::string address = memory ? memory->address() : "";
    store.set(kAddressKey, std::vector<uint8_t>(address.begin(), address.end()));
  } else if (wanted) {
    const auto address = store.get(kAddressKey);
    memory = SharedMemory::join({address.begin(), address.end()}, world.rank);
  }
  return memory;
}

SameHost* same_host(Group& group) {
  return dynamic_cast<SameHost*>(group.handle().getBackend(c10::DeviceType::CPU).get());
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> with_shared_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const c10::intrusive_ptr<c10d::Backend>& gloo,
                                                     const World& world, milliseconds timeout,
                                                     bool wanted) {
  auto memory = join_memory(*store, world, wanted);
  // No rank may continue, and end, before all are connected; all get the memory or none.
  std::vector<at::Tensor> without = {at::full({1}, memory ? 0.0 : 1.0)};
  gloo->allreduce(without, c10d::AllreduceOptions())->wait();
  if (without[0].item<float>() != 0) return gloo;
  return c10::make_intrusive<SameHost>(gloo, std::move(memory), world, timeout);
}

void share_memory_of(Group& group, const at::Tensor& tensor) {
  if (SameHost* const host = same_host(group)) host->share(tensor);
}

bool use_shared_memory(Group& group, bool use) {
  SameHost* const host = same_host(group);
  if (host) host->use(use);
  return host != nullptr;
}

}  // namespace saturate
