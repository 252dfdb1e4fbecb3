#include "saturate/memory.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/cgroup.h"
#include "base/mutex.h"
#include "trace/cuda_calls.h"
#include "trace/kept_blocks.h"

namespace saturate {
namespace {

// Bytes of the machine, or of a control group (a container, or a job) that may use less.
int64_t host_memory() {
  const auto machine = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  return int64_t(std::min(machine, cgroup_memory().limit));
}

// Kept blocks are not freed, so AddressSanitizer cannot detect their use after free.
#if SATURATE_ASAN
constexpr bool kFindsUseAfterFree = true;
#else
constexpr bool kFindsUseAfterFree = false;
#endif

// Counts allocations of torch's allocator, and keeps large blocks on request. Pointers are that
// allocator's own, so memory allocated before this was installed can be freed through it, and vice
// versa.
class CountingAllocator : public c10::Allocator, public TensorMemory {
 public:
  explicit CountingAllocator(c10::Allocator& allocator) : allocator_(allocator) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return allocator_.allocate(0);
    reserve(int64_t(bytes));
    const bool large = bytes >= KeptBlocks::kLeastBytes;
    void* data = large ? kept_.take(bytes) : nullptr;
    if (!data) {
      if (large && keeps_) free_all(kept_.shrink(room_to_keep()));
      data = allocate_new(bytes);
    }
    const int64_t more = int64_t(malloc_usable_size(data)) - int64_t(bytes);
    raise_peak(live_ += more);
    return {data, data, &CountingAllocator::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    allocator_.copy_data(to, from, bytes);
  }

  int64_t live_bytes() const override { return live_; }
  int64_t take_peak() override { return peak_.exchange(live_); }
  int64_t capacity() const override { return host_memory() / 2; }
  int64_t budget() const override { return budget_; }
  void set_budget(int64_t bytes) override { budget_ = bytes; }
  void release_cache() override {
    release_kept();
    malloc_trim(0);
  }

  bool set_keeps(bool keeps) {
    const bool kept = keeps_.exchange(keeps && !kFindsUseAfterFree);
    if (!keeps) release_kept();
    return kept;
  }

  // Installed on the first call, until the process ends.
  static CountingAllocator& get() {
    static CountingAllocator& allocator = *[] {
      auto* counting = new CountingAllocator(*c10::GetCPUAllocator());
      c10::SetCPUAllocator(counting, std::numeric_limits<uint8_t>::max());
      return counting;
    }();
    return allocator;
  }

 private:
  void release_kept() { free_all(kept_.shrink(0)); }
  void* allocate_new(size_t bytes) {
    try {
      return allocator_.raw_allocate(bytes);
    } catch (const c10::Error&) {
      release_kept();
    }
    try {
      return allocator_.raw_allocate(bytes);
    } catch (const c10::Error&) {
      live_ -= int64_t(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory: ", bytes,
                       " bytes requested, and the system has no more");
    }
  }
  void free_all(const std::vector<KeptBlocks::Block>& blocks) {
    for (const auto& block : blocks) allocator_.raw_deallocate(block.data);
  }
  // Called before allocating, so that no two threads can both take the last of the budget.
  void reserve(int64_t bytes) {
    const int64_t live = live_ += bytes, budget = budget_;
    if (budget == 0 || live <= budget) return;
    live_ -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory: ", bytes, " bytes requested, ",
                     live - bytes, " are in use, and the budget is ", budget);
  }
  void raise_peak(int64_t live) {
    for (std::atomic<int64_t>* most : {&peak_, &most_live_}) {
      int64_t before = *most;
      while (live > before && !most->compare_exchange_weak(before, live)) {
      }
    }
  }
  static void release(void* data) {
    CountingAllocator& self = get();
    const size_t bytes = malloc_usable_size(data);
    self.live_ -= int64_t(bytes);
    if (!self.keeps_ || bytes < KeptBlocks::kLeastBytes)
      return self.allocator_.raw_deallocate(data);
    self.free_all(self.kept_.keep({data, bytes}, self.room_to_keep()));
  }
  size_t room_to_keep() const {
    const int64_t live = live_, most = std::max<int64_t>(most_live_, live);
    return size_t(std::max(int64_t{0}, int64_t(kMostKept * double(most)) - live));
  }

  // Limit for live plus kept memory, relative to the peak of live memory: a step's tensors of one
  // size are not all alive at its peak.
  static constexpr double kMostKept = 1.5;

  c10::Allocator& allocator_;
  KeptBlocks kept_;
  std::atomic<bool> keeps_ = false;
  std::atomic<int64_t> live_ = 0, peak_ = 0, budget_ = 0;
  std::atomic<int64_t> most_live_ = 0;  // peak of the process
};

class CudaMemory : public TensorMemory {
 public:
  // Before CUDA is initialised torch's allocator has no devices, and throws when asked for one.
  explicit CudaMemory(c10::DeviceIndex device) : device_(device) {
    at::globalContext().lazyInitDevice(c10::kCUDA);
  }
  int64_t live_bytes() const override { return stat().current; }
  int64_t take_peak() override {
    const int64_t peak = stat().peak;
    allocator_.resetPeakStats(device_);
    return peak;
  }
  // The memory that torch holds and that is free, less a margin for memory that CUDA and its
  // libraries take during the run: kernels' modules, which are loaded at their first use, handles,
  // graphs.
  int64_t capacity() const override {
    const auto info = allocator_.getMemoryInfo(device_);  // free, total
    const int64_t held = allocator_.getDeviceStats(device_).reserved_bytes[0].current;
    const int64_t all = held + int64_t(info.first);
    return all - std::min(std::max(kLeastMargin, int64_t(info.second) / 50), all / 4);
  }
  int64_t budget() const override { return budget_; }
  void set_budget(int64_t bytes) override {
    if (budget_ == 0) own_share_ = cuda_memory_share(device_);
    const double most = own_share_, all = double(allocator_.getMemoryInfo(device_).second);
    limit_cuda_memory(device_, bytes == 0 ? most : std::min(most, double(bytes) / all));
    budget_ = bytes;
  }
  void release_cache() override {
    allocator_.emptyCache();
    at::getHostAllocator(c10::kCUDA)->empty_cache();  // pinned memory
  }

 private:
  static constexpr int64_t kLeastMargin = int64_t{1} << 30;

  c10::CachingAllocator::Stat stat() const {
    return allocator_.getDeviceStats(device_).allocated_bytes[0];  // of all pools
  }

  c10::DeviceIndex device_;
  c10::DeviceAllocator& allocator_ = *c10::getDeviceAllocator(c10::kCUDA);
  std::atomic<int64_t> budget_ = 0;
  std::atomic<double> own_share_ = 1;  // the program's limit, set through torch, before a budget
};

// The budgets of one memory that live.
struct LiveBudgets {
  int64_t before = 0;                                            // the first one
  std::vector<std::pair<const MemoryBudget*, int64_t>> budgets;  // bytes, in the order of making
};

Mutex budgets_mutex;
std::map<const TensorMemory*, LiveBudgets> live_budgets GUARDED_BY(budgets_mutex);

}  // namespace

MemoryBudget::MemoryBudget(TensorMemory& memory, int64_t bytes) : memory_(memory), bytes_(bytes) {
  if (bytes_ <= 0) return;
  const MutexLock lock(budgets_mutex);
  LiveBudgets& live = live_budgets[&memory_];
  if (live.budgets.empty()) live.before = memory_.budget();
  memory_.set_budget(bytes_);
  live.budgets.emplace_back(this, bytes_);
}

MemoryBudget::~MemoryBudget() {
  if (bytes_ <= 0) return;
  const MutexLock lock(budgets_mutex);
  LiveBudgets& live = live_budgets[&memory_];
  const bool counts = live.budgets.back().first == this && memory_.budget() == bytes_;
  std::erase(live.budgets, std::pair<const MemoryBudget*, int64_t>(this, bytes_));
  if (counts) memory_.set_budget(live.budgets.empty() ? live.before : live.budgets.back().second);
}

bool keep_host_memory(bool keep) {
  return CountingAllocator::get().set_keeps(keep);
}

TensorMemory& tensor_memory(const at::Device& device) {
  if (device.is_cpu()) return CountingAllocator::get();
  static Mutex mutex;
  static std::map<c10::DeviceIndex, CudaMemory> all;
  const MutexLock lock(mutex);
  const c10::DeviceIndex index = device.has_index()
                                     ? device.index()
                                     : c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
  return all.try_emplace(index, index).first->second;
}

}  // namespace saturate
