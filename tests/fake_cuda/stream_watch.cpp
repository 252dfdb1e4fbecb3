#include "tests/fake_cuda/stream_watch.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <regex>
#include <set>

#include "saturate/data/error.h"
#include "saturate/data/stream.h"
#include "tests/data_testing.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace saturate::testing {
namespace {

constexpr size_t kCallers = 3, kMostFindings = 20;

const void* key_of(void* stream, int device) {
  return stream ? stream : fake_cuda::control()->default_stream(device);
}

std::string callers() {
  return fake_cuda::control()->callers(kCallers);
}

// The start of a pageable copy that this thread has not waited for.
thread_local std::string unwaited;

struct Use {
  const void* stream;
  uintptr_t begin;
  bool writes;
};

// Operators that receive memory without accessing it, such as those that return a view.
bool accesses_no_memory(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names = {
      "aten::record_stream", "aten::empty_like",  "aten::zeros_like", "aten::ones_like",
      "aten::full_like",     "aten::rand_like",   "aten::randn_like", "aten::new_empty",
      "aten::new_zeros",     "aten::new_full",    "aten::new_ones",   "aten::new_empty_strided",
      "aten::is_pinned",     "aten::result_type", "aten::set_",       "aten::resize_",
      "aten::set_data",      "aten::_version",    "aten::is_nonzero", "aten::requires_grad_"};
  const auto is_view = [](const c10::Argument& returned) {
    return returned.alias_info() && !returned.alias_info()->isWrite();
  };
  return names.contains(schema.name()) || std::ranges::any_of(schema.returns(), is_view);
}

void add_uses(const c10::IValue& value, bool writes, std::vector<Use>& uses) {
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda() || !tensor.has_storage() || tensor.numel() == 0)
      return;
    const auto stream = c10::cuda::getCurrentCUDAStream(tensor.get_device());
    const auto begin = reinterpret_cast<uintptr_t>(tensor.storage().data());
    uses.push_back({key_of(stream.stream(), tensor.get_device()), begin, writes});
  };
  if (value.isTensor()) return add(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  if (value.isList() && !value.isTensorList())
    for (const c10::IValue& one : value.toListRef()) add_uses(one, writes, uses);
}

}  // namespace

class StreamWatch::State : public fake_cuda::Observer {
 public:
  using Checker = StreamChecker;

  void on_alloc(void* stream, int device, uintptr_t begin, size_t bytes) {
    const std::string name = "memory of " + callers();
    const std::lock_guard lock(mutex_);
    check([&] {
      blocks_[begin] = {bytes, checker_.makes(id(key_of(stream, device)), name, Place::current()),
                        name};
    });
  }
  void on_free(uintptr_t begin) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(begin);
    if (found == blocks_.end()) return;
    const Checker::Buffer buffer = found->second.buffer;
    blocks_.erase(found);
    check([&] { checker_.frees(buffer, Place::current()); });
  }
  void uses(const std::vector<Use>& uses) {
    const std::lock_guard lock(mutex_);
    settle_pageable();
    for (const Use& use : uses) this->use(use);
  }

  void records(const void* event, const void* stream) override {
    const std::lock_guard lock(mutex_);
    marks_[event] = checker_.marks(id(stream));
  }
  void waits(const void* stream, const void* event) override {
    const std::lock_guard lock(mutex_);
    if (marks_.contains(event)) checker_.waits(id(stream), marks_[event]);
  }
  void host_reaches(const void* event) override {
    const std::lock_guard lock(mutex_);
    if (marks_.contains(event)) checker_.waits(Checker::kHost, marks_[event]);
  }
  void host_drains(const void* stream) override {
    unwaited.clear();
    const std::lock_guard lock(mutex_);
    if (stream) return checker_.waits(Checker::kHost, checker_.marks(id(stream)));
    for (const auto& [key, known] : ids_) checker_.waits(Checker::kHost, checker_.marks(known));
  }
  void touches(const void* stream, const void* begin, bool writes) override {
    const std::lock_guard lock(mutex_);
    settle_pageable();
    use({stream, reinterpret_cast<uintptr_t>(begin), writes});
  }
  // The fake does not see the host write: other contents tell that it has, after the last copy.
  void reads_pinned(const void* stream, const void* begin, size_t bytes) override {
    const uint64_t hash = hash_bytes({static_cast<const std::byte*>(begin), bytes});
    const std::string by = callers();
    const std::lock_guard lock(mutex_);
    settle_pageable();
    const auto [found, is_new] = pinned_.try_emplace(begin);
    Pinned& memory = found->second;
    if (is_new)
      memory.buffer = checker_.host_memory("pinned memory of " + by, true, Place::current());
    else if (memory.hash != hash)
      check([&] { checker_.writes(Checker::kHost, memory.buffer, Place::current()); });
    memory.hash = hash;
    ++count_;
    check([&] { checker_.reads(id(stream), memory.buffer, Place::current()); });
  }
  void copies_pageable(const void*) override { unwaited = callers(); }

  std::vector<std::string> take_findings() {
    const std::lock_guard lock(mutex_);
    settle_pageable();
    return std::exchange(findings_, {});
  }
  std::vector<std::string> held() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const auto& [begin, block] : blocks_)
      found.push_back(std::to_string(block.bytes) + " bytes, " + block.name);
    return found;
  }
  int64_t count() const { return count_; }

 private:
  struct Block {
    size_t bytes;
    Checker::Buffer buffer;
    std::string name;
  };
  struct Pinned {
    Checker::Buffer buffer;
    uint64_t hash = 0;
  };

  Checker::Id id(const void* stream) {
    const auto [found, is_new] = ids_.try_emplace(stream, 0);
    if (is_new) found->second = checker_.add_stream("stream " + std::to_string(ids_.size()));
    return found->second;
  }

  void use(const Use& use) {
    auto next = blocks_.upper_bound(use.begin);
    if (next == blocks_.begin()) return;
    const auto& [begin, block] = *--next;
    if (use.begin >= begin + block.bytes) return;  // from before the watch
    ++count_;
    check([&] {
      use.writes ? checker_.writes(id(use.stream), block.buffer, Place::current())
                 : checker_.reads(id(use.stream), block.buffer, Place::current());
    });
  }

  // A synchronous copy waits right after its start.
  void settle_pageable() {
    if (!unwaited.empty()) add("a copy called async reads pageable memory", unwaited);
    unwaited.clear();
  }

  template <class Action>
  void check(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      // Places are in this file, callers in the program.
      static const std::regex place(" at stream_watch.cpp:[0-9]+");
      add(std::regex_replace(error.reason(), place, ""), callers());
    }
  }
  void add(const std::string& what, const std::string& by) {
    const std::string text = what + ": " + by;
    if (findings_.size() < kMostFindings && std::ranges::find(findings_, text) == findings_.end())
      findings_.push_back(text);
  }

  std::mutex mutex_;  // guards all members below
  Checker checker_;
  std::map<const void*, Checker::Id> ids_;
  std::map<const void*, Checker::Mark> marks_;
  std::map<uintptr_t, Block> blocks_;
  std::map<const void*, Pinned> pinned_;
  std::vector<std::string> findings_;
  int64_t count_ = 0;
};

namespace {

std::mutex watching;  // guards `watch`; taken before a watch's own mutex
std::function<void(const c10::CachingDeviceAllocator::TraceEntry&)> watch;

std::function<void(const std::vector<Use>&)> watch_uses;

void on_trace(const c10::CachingDeviceAllocator::TraceEntry& entry) {
  const std::lock_guard lock(watching);
  if (watch) watch(entry);
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& call) {
  const auto schema = call.operator_schema();
  if (!schema || accesses_no_memory(*schema)) return nullptr;
  std::vector<Use> uses;
  const auto inputs = call.inputs();
  for (size_t i = 0; i < std::min(inputs.size(), schema->arguments().size()); ++i) {
    const c10::AliasInfo* const alias = schema->arguments()[i].alias_info();
    add_uses(inputs[i], alias && alias->isWrite(), uses);
  }
  if (!uses.empty()) watch_uses(uses);
  return nullptr;
}

at::CallbackHandle operators = 0;

}  // namespace

StreamWatch::StreamWatch() : state_(std::make_unique<State>()) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  static std::once_flag once;
  std::call_once(once,
                 [] { c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(on_trace); });
  using c10::CachingDeviceAllocator::TraceEntry;
  {
    const std::lock_guard lock(watching);
    watch = [state = state_.get()](const TraceEntry& entry) {
      if (entry.action_ == TraceEntry::ALLOC)
        state->on_alloc(entry.stream_, entry.device_, entry.addr_, entry.size_);
      if (entry.action_ == TraceEntry::FREE_COMPLETED) state->on_free(entry.addr_);
    };
  }
  watch_uses = [state = state_.get()](const std::vector<Use>& uses) { state->uses(uses); };
  operators = at::addGlobalCallback(at::RecordFunctionCallback(on_operator)
                                        .needsInputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
  fake_cuda::control()->delay(1);
  fake_cuda::control()->observe(state_.get());
}

StreamWatch::~StreamWatch() {
  fake_cuda::control()->observe(nullptr);
  fake_cuda::control()->delay(0);
  at::removeCallback(operators);
  const std::lock_guard lock(watching);
  watch = nullptr;
}

std::vector<std::string> StreamWatch::take_findings() {
  return state_->take_findings();
}
std::vector<std::string> StreamWatch::held() const {
  return state_->held();
}
int64_t StreamWatch::uses() const {
  return state_->count();
}

}  // namespace saturate::testing
