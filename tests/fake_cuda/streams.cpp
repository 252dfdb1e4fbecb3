// Streams, events, captures and graphs. The rules of capture are those of the CUDA Programming
// Guide, "Graphs: Creating a Graph Using Stream Capture".
#include "tests/fake_cuda/streams.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace saturate::fake_cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCallers = 4;  // the caller that is blamed for a wait

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  cudaStream_t origin = nullptr;
  std::set<cudaStream_t> unjoined;  // no other captured stream waits for its work yet
  std::vector<Work> nodes;
  bool invalid = false;
};
using CapturePtr = std::shared_ptr<Capture>;

struct FakeEvent {
  Clock::time_point at{};
  CapturePtr capture;  // the capture that recorded it
  cudaStream_t stream = nullptr;
  int64_t order = 0;  // index of its record among all
  int asked = 0;      // since then
};

struct FakeGraph {
  std::vector<Work> nodes;
};

std::map<cudaStream_t, CapturePtr>& captures() {
  static auto& made = *new std::map<cudaStream_t, CapturePtr>;
  return made;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
unsigned long long next_capture = 1;
// Guarded by guard().
int delay = 0;
std::string skipped_caller;
int64_t recorded = 0, done = 0;  // all records up to this one are known to be done

CapturePtr capture_of(cudaStream_t stream) {
  const auto found = captures().find(stream);
  return found == captures().end() ? nullptr : found->second;
}

CapturePtr capture_of_thread() {
  for (const auto& [stream, capture] : captures())
    if (capture->thread == std::this_thread::get_id()) return capture;
  return nullptr;
}

// The capture that an unsafe call of this thread invalidates.
CapturePtr capture_to_invalidate() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return nullptr;
  for (const auto& [stream, capture] : captures()) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (own && capture->mode != cudaStreamCaptureModeRelaxed) return capture;
    if (!own && capture->mode == cudaStreamCaptureModeGlobal &&
        thread_mode == cudaStreamCaptureModeGlobal)
      return capture;
  }
  return nullptr;
}

cudaError_t invalidate(const CapturePtr& capture, cudaError_t error) {
  if (capture) capture->invalid = true;
  return error;
}

FakeEvent& event_of(cudaEvent_t event) {
  return *reinterpret_cast<FakeEvent*>(event);
}
FakeGraph& graph_of(void* graph) {
  return *static_cast<FakeGraph*>(graph);
}

cudaError_t make_event(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new FakeEvent);
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t event, cudaStream_t stream) {
  notify([&](Observer& observer) { observer.records(event, key_of(stream)); });
  const std::lock_guard lock(guard());
  FakeEvent& made = event_of(event);
  made = {Clock::now(), capture_of(stream), stream, ++recorded};
  add(made.capture ? Count::kCapturedEvents : Count::kEvents);
  if (made.capture && made.capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
  return cudaSuccess;
}

// The host, for captured work, which it cannot wait for.
cudaError_t reach(cudaEvent_t event) {
  const std::lock_guard lock(guard());
  const CapturePtr capture = event_of(event).capture;
  const bool open = capture && capture_of(capture->origin) == capture;
  return open ? failed(invalidate(capture, cudaErrorCapturedEvent)) : cudaSuccess;
}

cudaError_t query(cudaEvent_t event) {
  {
    const std::lock_guard lock(guard());
    FakeEvent& asked = event_of(event);
    if (asked.order > done && asked.asked++ < delay) return failed(cudaErrorNotReady);
    done = std::max(done, asked.order);
  }
  if (const cudaError_t refused = reach(event)) return refused;
  notify([&](Observer& observer) { observer.host_reaches(event); });
  return cudaSuccess;
}

bool is_skipped() {
  std::string caller;
  {
    const std::lock_guard lock(guard());
    caller = skipped_caller;
  }
  return !caller.empty() && callers(kCallers, /*program=*/true).find(caller) != std::string::npos;
}

cudaError_t drain(cudaEvent_t event) {
  notify([&](Observer& observer) { observer.host_reaches(event); });
  if (const cudaError_t refused = reach(event)) return refused;
  const std::lock_guard lock(guard());
  done = std::max(done, event_of(event).order);
  return cudaSuccess;
}

cudaError_t wait(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard lock(guard());
  const FakeEvent& from = event_of(event);
  CapturePtr own = capture_of(stream);
  const bool open = from.capture && capture_of(from.capture->origin) == from.capture;
  if (own && !open) return failed(invalidate(own, cudaErrorStreamCaptureIsolation));
  if (!open) return cudaSuccess;
  if (own && own != from.capture) return failed(invalidate(own, cudaErrorStreamCaptureMerge));
  if (!own) captures()[stream] = own = from.capture;
  if (stream != own->origin) own->unjoined.insert(stream);
  if (from.stream != stream) own->unjoined.erase(from.stream);
  return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(guard());
  *graph = nullptr;
  const CapturePtr capture = capture_of(stream);
  if (!capture || capture->origin != stream) return failed(cudaErrorIllegalState);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return failed(invalidate(capture, cudaErrorStreamCaptureWrongThread));
  std::erase_if(captures(), [&](const auto& entry) { return entry.second == capture; });
  if (capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
  if (!capture->unjoined.empty()) return failed(cudaErrorStreamCaptureUnjoined);
  *graph = reinterpret_cast<cudaGraph_t>(new FakeGraph{std::move(capture->nodes)});
  return cudaSuccess;
}

cudaError_t synchronize(cudaStream_t stream, const char* call) {
  {
    const std::lock_guard lock(guard());
    if (const CapturePtr own = capture_of(stream)) {
      note_site(call);
      return failed(invalidate(own, cudaErrorStreamCaptureUnsupported));
    }
    done = recorded;
  }
  notify([&](Observer& observer) { observer.host_drains(key_of(stream)); });
  return enter(call, Manner::kWaits);
}

cudaError_t instantiate(cudaGraphExec_t* exec, cudaGraph_t graph) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new FakeGraph(graph_of(graph)));
  return cudaSuccess;
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, Count counted, Work work) {
  {
    const std::lock_guard lock(guard());
    if (const CapturePtr capture = capture_of(stream)) {
      if (capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
      add(Count::kNodes);
      if (counted == Count::kPageableCopies) add(Count::kCapturedPageable);
      capture->nodes.push_back(std::move(work));
      return cudaSuccess;
    }
    if (capture_of_thread()) add(Count::kStrays);
    add(counted);
    note_watched(counted);
  }
  work();
  return cudaSuccess;
}

cudaError_t invalidate_capture(Manner manner) {
  const CapturePtr capture =
      manner == Manner::kWaits ? capture_of_thread() : capture_to_invalidate();
  return capture ? invalidate(capture, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

void delay_events(int queries) {
  const std::lock_guard lock(guard());
  delay = queries;
}

void skip_waits(const char* caller) {
  const std::lock_guard lock(guard());
  skipped_caller = caller ? caller : "";
}

}  // namespace saturate::fake_cuda

using namespace saturate::fake_cuda;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  SATURATE_ENTER();
  *stream = reinterpret_cast<cudaStream_t>(new char[64]);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  SATURATE_ENTER();
  delete[] reinterpret_cast<char*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(guard());
  const CapturePtr own = capture_of(stream);
  return own ? failed(invalidate(own, cudaErrorStreamCaptureUnsupported)) : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return synchronize(stream, __func__);
}
cudaError_t cudaDeviceSynchronize() {
  notify([](Observer& observer) { observer.host_drains(nullptr); });
  {
    const std::lock_guard lock(guard());
    done = recorded;
  }
  return enter(__func__, Manner::kWaits);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned) {
  SATURATE_ENTER();
  return enqueue(stream, Count::kHostCalls, [=] { callback(stream, cudaSuccess, data); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  SATURATE_ENTER();
  if (is_skipped()) return cudaSuccess;
  notify([&](Observer& observer) { observer.waits(key_of(stream), event); });
  return wait(stream, event);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  SATURATE_ENTER();
  return make_event(event);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  SATURATE_ENTER();
  return make_event(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  SATURATE_ENTER();
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  SATURATE_ENTER();
  return record(event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  SATURATE_ENTER();
  return record(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  SATURATE_ENTER(Manner::kUnsafe);
  if (is_skipped()) return cudaSuccess;
  return query(event);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  SATURATE_ENTER(Manner::kWaits);
  return drain(event);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  SATURATE_ENTER();
  const std::lock_guard lock(guard());
  *ms = std::chrono::duration<float, std::milli>(event_of(end).at - event_of(begin).at).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  SATURATE_ENTER();
  const std::lock_guard lock(guard());
  if (stream == nullptr || stream == cudaStreamLegacy)
    return failed(cudaErrorStreamCaptureUnsupported);
  if (capture_of(stream)) return failed(cudaErrorIllegalState);
  captures()[stream] = std::make_shared<Capture>(
      Capture{next_capture++, mode, std::this_thread::get_id(), stream, {}, {}, false});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t planned = enter(__func__);
  const cudaError_t ended = end_capture(stream, graph);
  if (planned != cudaSuccess) *graph = nullptr;  // an invalid capture ends too
  return planned != cudaSuccess ? failed(planned) : ended;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  const std::lock_guard lock(guard());
  const CapturePtr capture = capture_of(stream);
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (id) *id = capture ? capture->id : 0;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(thread_mode, *mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  SATURATE_ENTER(Manner::kUnsafe);
  return instantiate(exec, graph);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long) {
  SATURATE_ENTER(Manner::kUnsafe);
  return instantiate(exec, graph);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  SATURATE_ENTER();
  return enqueue(stream, Count::kGraphLaunches, [exec] {
    for (const Work& node : graph_of(exec).nodes) node();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  SATURATE_ENTER();
  delete &graph_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  SATURATE_ENTER();
  delete &graph_of(exec);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph_of(graph).nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t* count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) {
  return cudaSuccess;
}
}
