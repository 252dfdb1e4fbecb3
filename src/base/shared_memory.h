// Memory that processes of one machine share.
//
// It has no name in any file system (memfd_create), so nothing is left of it however its processes
// end. Another process comes to it through /proc/PID/fd, which the system allows to the same user
// alone. Each process holds a lock on its own byte of it, which the system gives back when the
// process ends: that tells the others who is still there.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace saturate {

// has() is safe from any thread, until leave().
class SharedMemory {
 public:
  // Zeros, which take memory as they are first written; held as `rank`. Null where the system has
  // no such memory, or not so many addresses for it.
  static std::shared_ptr<SharedMemory> create(size_t bytes, int rank);
  // That of another process, by its place(). Null where this process cannot come to it: on another
  // machine, in another network namespace (which is taken for one), as another user.
  static std::shared_ptr<SharedMemory> join(const std::string& place, int rank);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::string place() const;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Whether another rank has come and has not left. Always false of this process's own.
  bool has(int rank) const;
  // The others see this rank as gone. What is mapped stays so while this lives.
  void leave();

 private:
  SharedMemory(int descriptor, std::string name)
      : descriptor_(descriptor), name_(std::move(name)) {}
  // Maps it, and locks this rank's byte.
  bool enter(int rank);

  int descriptor_;  // -1: this rank has left
  const std::string name_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int rank_ = 0;
};

}  // namespace saturate
