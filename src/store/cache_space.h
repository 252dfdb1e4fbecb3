// How many bytes the files of a cache folder take, counted by all processes that share it, and the
// lock under which they change the folder. The kernel releases the lock of a process that ends. The
// count is in a file of the folder, so it is deleted with the folder.
#pragma once

#include <cstdint>
#include <string>

#include "saturate/data/env.h"

namespace saturate {

// Holds the lock while it exists.
class CacheSpace {
 public:
  // Creates the folder, and waits for the lock. Fails with kRun after 30 s without it, and if the
  // file system has no locks.
  CacheSpace(Env& env, const std::string& folder);
  // Without commit() the count becomes unknown, as after a process that ended before it.
  ~CacheSpace();
  CacheSpace(const CacheSpace&) = delete;
  CacheSpace& operator=(const CacheSpace&) = delete;

  // False: the files are to be counted; the folder is new, or a process did not commit.
  bool is_known() const { return is_known_; }
  // False: the folder was deleted since, so others may hold the lock of a new one.
  bool is_current() const;
  // Stores `used`. To be called after the last change to the folder.
  void commit();

  uint64_t used = 0;  // bytes

 private:
  void take(int64_t until_ns);
  void set_wanted(char wanted);
  bool store(bool is_changing);

  Env& env_;
  const std::string path_;
  int fd_ = -1;
  bool is_known_ = false;
};

}  // namespace saturate
