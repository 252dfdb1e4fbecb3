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
  // Creates the folder, and waits for the lock. Fails with kRun after 30 s without it in which its
  // holder has noted no progress, and if the file system has no locks.
  CacheSpace(Env& env, const std::string& folder);
  // Without commit() the count becomes unknown, as after a process that ended before it.
  ~CacheSpace();
  CacheSpace(const CacheSpace&) = delete;
  CacheSpace& operator=(const CacheSpace&) = delete;

  // False: the files are to be counted; the folder is new, or a process did not commit.
  bool is_known() const { return is_known_; }
  // False: the folder was deleted since, so others may hold the lock of a new one.
  bool is_current() const;
  // Has those who wait for the lock wait on.
  void note_progress();
  // Stores `used`. To be called after the last change to the folder.
  void commit();

  uint64_t used = 0;  // bytes

 private:
  void take(int64_t& until_ns);
  void set_wanted(char wanted);
  // `changes`: how often the holder has said that it changes the folder; 0: it has committed.
  bool store(uint64_t changes);

  Env& env_;
  const std::string path_;
  int fd_ = -1;
  uint64_t changes_ = 1;
  bool is_known_ = false;
};

}  // namespace saturate
