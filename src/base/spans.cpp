#include "base/spans.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "saturate/data/env.h"

namespace saturate {
namespace {

struct Track {
  uint32_t recording;
  std::string thread;
  Mutex mutex;
  std::vector<RecordedSpan> spans GUARDED_BY(mutex);
  int64_t dropped GUARDED_BY(mutex) = 0;
};

struct SpanRecorder {
  std::atomic<uint32_t> current{0};  // the current recording's number; 0: none
  Mutex mutex;
  uint32_t last GUARDED_BY(mutex) = 0;
  std::vector<std::shared_ptr<Track>> tracks GUARDED_BY(mutex);
};

SpanRecorder& recorder() {
  static SpanRecorder& instance = *new SpanRecorder;  // threads may outlive static objects
  return instance;
}

std::string thread_name() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

// This thread's track of a recording; null if that has ended.
Track* own_track(uint32_t recording) {
  thread_local std::shared_ptr<Track> own;
  if (own && own->recording == recording) return own.get();
  SpanRecorder& all = recorder();
  MutexLock lock(all.mutex);
  if (all.current != recording) return nullptr;
  own = std::make_shared<Track>();
  own->recording = recording;
  own->thread = thread_name();
  all.tracks.push_back(own);
  return own.get();
}

void number_namesakes(std::vector<SpanTrack>& tracks) {
  std::map<std::string, int> count, number;
  for (const auto& track : tracks) ++count[track.thread];
  for (auto& track : tracks) {
    const std::string name = track.thread;
    if (count[name] < 2) continue;
    track.thread += " " + std::to_string(++number[name]);
  }
}

}  // namespace

bool start_spans() {
  SpanRecorder& all = recorder();
  MutexLock lock(all.mutex);
  if (all.current != 0) return false;
  all.current = ++all.last;
  return true;
}

std::vector<SpanTrack> stop_spans() {
  SpanRecorder& all = recorder();
  std::vector<std::shared_ptr<Track>> ended;
  {
    MutexLock lock(all.mutex);
    all.current = 0;
    ended.swap(all.tracks);
  }
  std::vector<SpanTrack> tracks;
  for (const auto& track : ended) {
    MutexLock lock(track->mutex);
    tracks.push_back({track->thread, std::move(track->spans), track->dropped});
  }
  std::erase_if(tracks, [](const SpanTrack& track) { return track.spans.empty(); });
  number_namesakes(tracks);
  return tracks;
}

Span::Span(const char* name)
    : name_(name), recording_(recorder().current.load(std::memory_order_relaxed)) {
  if (recording_ != 0) begin_ns_ = Env::posix().now_ns();
}

Span::~Span() {
  if (recording_ == 0) return;
  const int64_t end_ns = Env::posix().now_ns();
  try {
    Track* const track = own_track(recording_);
    if (!track) return;
    MutexLock lock(track->mutex);
    if (recorder().current != recording_) return;
    if (track->spans.size() < kMostSpans)
      track->spans.push_back({name_, begin_ns_, end_ns});
    else
      ++track->dropped;
  } catch (const std::bad_alloc&) {  // the trace loses a span
  }
}

}  // namespace saturate
