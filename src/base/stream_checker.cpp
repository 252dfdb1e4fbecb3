#include <algorithm>
#include <utility>

#include "saturate/data/error.h"
#include "saturate/data/stream.h"

namespace saturate {
namespace {

std::string text_of(const Place& place) {
  const std::string file = place.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(place.line());
}

[[noreturn]] void fail_at(const Place& place, std::string what, const char* remedy) {
  fail(ErrorKind::kRun, std::move(what), text_of(place), remedy, place);
}

}  // namespace

StreamChecker::StreamChecker() {
  add_stream("the host");
}

StreamChecker::Id StreamChecker::add_stream(std::string name) {
  names_.push_back(std::move(name));
  clocks_.emplace_back();
  for (auto& clock : clocks_) clock.resize(names_.size());
  return Id(names_.size()) - 1;
}

// A stream's next work is ordered after everything the host, which enqueues it, knows is done.
int64_t StreamChecker::tick(Id stream) {
  std::vector<int64_t>& own = clocks_[size_t(stream)];
  const std::vector<int64_t>& host = clocks_[kHost];
  for (size_t i = 0; i < own.size(); ++i) own[i] = std::max(own[i], host[i]);
  return ++own[size_t(stream)];
}

bool StreamChecker::knows(Id stream, Id other, const Use& use) const {
  return stream == other || clocks_[size_t(stream)][size_t(other)] >= use.tick;
}

StreamChecker::Known& StreamChecker::known(Buffer buffer, const Place& place) {
  const auto found = memory_.find(buffer.id);
  if (found == memory_.end())
    fail_at(place, "memory is used before it is allocated or after it is freed",
            "Free it after its last use");
  return found->second;
}

StreamChecker::Buffer StreamChecker::makes(Id stream, std::string name, const Place& place) {
  const Use use{tick(stream), place};
  memory_.emplace(next_, Known{std::move(name), stream, true, stream, use, {}, {}});
  return {next_++};
}

StreamChecker::Buffer StreamChecker::host_memory(std::string name, bool pinned,
                                                 const Place& place) {
  const Buffer buffer = makes(kHost, std::move(name), place);
  memory_.at(buffer.id).pinned = pinned;
  return buffer;
}

void StreamChecker::require_written(Id stream, const Known& memory, const char* verb,
                                    const Place& place) const {
  if (knows(stream, memory.writer, memory.written)) return;
  fail_at(place,
          "stream \"" + names_[size_t(stream)] + "\" " + verb + " \"" + memory.name +
              "\" without waiting for stream \"" + names_[size_t(memory.writer)] +
              "\", which writes it at " + text_of(memory.written.place),
          "Record an event after the write, and wait for it before the use");
}

void StreamChecker::reads(Id stream, Buffer buffer, const Place& place) {
  Known& memory = known(buffer, place);
  const int64_t now = tick(stream);
  require_written(stream, memory, "reads", place);
  memory.read[stream] = {now, place};
}

void StreamChecker::writes(Id stream, Buffer buffer, const Place& place) {
  Known& memory = known(buffer, place);
  const int64_t now = tick(stream);
  require_written(stream, memory, "writes", place);
  for (const auto& [reader, use] : memory.read)
    if (!knows(stream, reader, use))
      fail_at(place,
              "stream \"" + names_[size_t(stream)] + "\" writes \"" + memory.name +
                  "\" without waiting for stream \"" + names_[size_t(reader)] +
                  "\", which reads it at " + text_of(use.place),
              "Record an event after the read, and wait for it before the write");
  memory.writer = stream;
  memory.written = {now, place};
  memory.read.clear();
}

void StreamChecker::copies_async(Id stream, Buffer from, Buffer to, const Place& place) {
  if (const Known& source = known(from, place); !source.pinned)
    fail_at(place,
            "a copy called async reads \"" + source.name +
                "\", which is not pinned: it makes the host wait for the device",
            "Copy from page-locked memory");
  reads(stream, from, place);
  writes(stream, to, place);
}

void StreamChecker::keeps(Id stream, Buffer buffer, const Place& place) {
  Known& memory = known(buffer, place);
  if (stream == memory.maker)
    fail_at(place,
            "record_stream names stream \"" + names_[size_t(stream)] + "\", which made \"" +
                memory.name + "\": it has no effect",
            "Name the other stream that uses it");
  memory.kept.push_back(stream);
}

void StreamChecker::frees(Buffer buffer, const Place& place) {
  const Known memory = known(buffer, place);
  memory_.erase(buffer.id);
  const auto require_done = [&](Id user, const Use& use) {
    const bool named = std::ranges::find(memory.kept, user) != memory.kept.end();
    // The allocator returns the memory to its own stream at once.
    if (user == memory.maker || named || knows(memory.maker, user, use) || knows(kHost, user, use))
      return;
    fail_at(use.place,
            "stream \"" + names_[size_t(user)] + "\" uses \"" + memory.name +
                "\", made on stream \"" + names_[size_t(memory.maker)] +
                "\", and may still do so when it is freed at " + text_of(place),
            "Call record_stream with the stream that uses it");
  };
  require_done(memory.writer, memory.written);
  for (const auto& [reader, use] : memory.read) require_done(reader, use);
}

StreamChecker::Mark StreamChecker::marks(Id stream) {
  tick(stream);
  return {clocks_[size_t(stream)]};
}

void StreamChecker::waits(Id stream, const Mark& mark) {
  std::vector<int64_t>& own = clocks_[size_t(stream)];
  for (size_t i = 0; i < mark.clock.size(); ++i) own[i] = std::max(own[i], mark.clock[i]);
}

}  // namespace saturate
