#include "tests/fake_cuda/state.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <shared_mutex>
#include <sstream>
#include <vector>

#include "tests/fake_cuda/streams.h"

namespace saturate::fake_cuda {
namespace {

constexpr size_t kMostSites = 16, kMostCallers = 12;

struct Planned {
  int nth, code;
};

struct State {
  Counts counts{};
  std::map<std::string, int64_t> calls;
  std::multimap<std::string, Planned> planned;
  std::vector<std::string> sites;
  std::string taken;
  std::optional<Count> watched;
};

void read_plan(State& state) {
  std::istringstream entries(
      std::getenv("SATURATE_FAKE_CUDA_FAIL") ? std::getenv("SATURATE_FAKE_CUDA_FAIL") : "");
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::istringstream parts(entry);
    std::string call, nth = "1", code = "2";  // 2: cudaErrorMemoryAllocation
    std::getline(parts, call, ':');
    std::getline(parts, nth, ':');
    std::getline(parts, code, ':');
    state.planned.emplace(call, Planned{std::atoi(nth.c_str()), std::atoi(code.c_str())});
  }
}

// Never destroyed: threads may call until the process ends.
State& state() {
  static State& made = *[] {
    auto* const begun = new State;
    read_plan(*begun);
    return begun;
  }();
  return made;
}

thread_local cudaError_t last = cudaSuccess;

int planned_code(const std::string& call) {
  const std::lock_guard lock(guard());
  ++state().calls[call];
  int code = 0;
  const auto [begin, end] = state().planned.equal_range(call);
  for (auto it = begin; it != end;) {
    const bool due = --it->second.nth == 0;
    if (due) code = it->second.code;
    it = due ? state().planned.erase(it) : std::next(it);
  }
  return code;
}

void write_report() {
  const char* const path = std::getenv("SATURATE_FAKE_CUDA_REPORT");
  if (!path) return;
  const std::lock_guard lock(guard());
  std::ofstream file(path);
  file << "{\"counts\":{";
  for (size_t i = 0; i < kCountNames.size(); ++i)
    file << (i ? "," : "") << '"' << kCountNames[i] << "\":" << state().counts[i];
  file << "},\"calls\":{";
  const char* comma = "";
  for (const auto& [call, count] : state().calls) {
    file << comma << '"' << call << "\":" << count;
    comma = ",";
  }
  file << "}}\n";
}

struct ReportAtEnd {
  ~ReportAtEnd() { write_report(); }
} report_at_end;

void read_counts(Counts& counts) {
  const std::lock_guard lock(guard());
  counts = state().counts;
}

void plan_failure(const char* call, int nth, int code) {
  const std::lock_guard lock(guard());
  state().planned.emplace(call, Planned{nth, code});
}

const char* take_sites() {
  const std::lock_guard lock(guard());
  state().taken.clear();
  for (const std::string& site : state().sites) state().taken += site + "\n";
  state().sites.clear();
  return state().taken.c_str();
}

void watch(std::optional<Count> count) {
  const std::lock_guard lock(guard());
  state().watched = count;
}

void launch(void* stream, std::function<void()> work) {
  enqueue(static_cast<cudaStream_t>(stream), Count::kLaunches, std::move(work));
}

std::string program_callers(size_t most) {
  return callers(most, /*program=*/true);
}

void begin_peak() {
  const std::lock_guard lock(guard());
  state().counts[size_t(Count::kPeakBytes)] = now(Count::kLiveBytes);
}

std::shared_mutex& observing() {
  static auto& mutex = *new std::shared_mutex;
  return mutex;
}
Observer* observer = nullptr;  // guarded by observing()

void observe(Observer* by) {
  const std::unique_lock lock(observing());
  observer = by;
}

const void* default_stream(int device) {
  static char devices[64];
  return &devices[device];
}

}  // namespace

std::mutex& guard() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) last = error;
  return error;
}

cudaError_t last_error(bool forget) {
  const cudaError_t error = last;
  if (forget) last = cudaSuccess;
  return error;
}

cudaError_t enter(const char* call, Manner manner) {
  if (const int code = planned_code(call)) return failed(cudaError_t(code));
  if (manner == Manner::kEnqueues) return cudaSuccess;
  const std::lock_guard lock(guard());
  if (manner == Manner::kWaits) {
    add(Count::kWaits);
    note_site(call);
  }
  return failed(invalidate_capture(manner));
}

int enter_library(const char* call) {
  return planned_code(call);
}

void add(Count count, int64_t by) {
  state().counts[size_t(count)] += by;
}

int64_t now(Count count) {
  return state().counts[size_t(count)];
}

void raise_peak() {
  int64_t& peak = state().counts[size_t(Count::kPeakBytes)];
  peak = std::max(peak, now(Count::kLiveBytes));
}

void note_site(const std::string& what) {
  if (state().sites.size() < kMostSites)
    state().sites.push_back(what + ": " + callers(kMostCallers, /*program=*/false));
}

void note_watched(Count count) {
  if (state().watched == count) note_site(kCountNames[size_t(count)]);
}

void notify(const std::function<void(Observer&)>& call) {
  const std::shared_lock lock(observing());
  if (observer) call(*observer);
}

const void* key_of(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy) return stream;
  int device = 0;
  cudaGetDevice(&device);
  return default_stream(device);
}

int64_t setting(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

}  // namespace saturate::fake_cuda

extern "C" const saturate::fake_cuda::Control* saturate_fake_cuda_control() {
  using namespace saturate::fake_cuda;
  static const Control control = {read_counts,  plan_failure,    take_sites, watch,
                                  launch,       program_callers, observe,    default_stream,
                                  delay_events, skip_waits,      begin_peak};
  return &control;
}
