// Memory that processes of one machine share.
//
// It has no name in any file system (memfd_create), so nothing remains of it however its processes
// end. Other processes open it through /proc/PID/fd, which the system allows only for the same
// user. Each process locks its own byte, which the system unlocks when the process ends: so the
// others know which are alive.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace saturate {

// has() is safe from any thread, until leave().
class SharedMemory {
 public:
  // Zero-filled, committed on first write; held as `rank`. Null if the system lacks memfd_create or
  // enough address space.
  static std::shared_ptr<SharedMemory> create(size_t bytes, int rank);
  // The memory of another process, by its address(). Null if this process cannot open it: on
  // another machine or in another network namespace (which is treated the same), or as another
  // user.
  static std::shared_ptr<SharedMemory> join(const std::string& address, int rank);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::string address() const;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Whether another rank has joined and not left. Always false for this process's own.
  bool has(int rank) const;
  // Marks this rank as gone for the others. The mapping stays while this lives.
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
