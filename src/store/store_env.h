// An Env whose paths may also be objects of stores (store_url.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "saturate/data/data_options.h"
#include "saturate/data/env.h"
#include "store/store_tuning.h"

namespace saturate {

class ObjectStore;
struct StoreObject;

// Opens objects for reading, and for writing as Upload does; everything else goes to the other Env.
// Files that it opened stay valid without it.
class StoreEnv : public Env {
 public:
  // `inner` must outlive this and every file opened through it.
  StoreEnv(Env& inner, const StoreOptions& options);
  StoreEnv(Env& inner, std::shared_ptr<ObjectStore> store);

  const std::shared_ptr<ObjectStore>& store() const { return store_; }
  // The next object that is opened for writing will have about so many bytes.
  void expect_bytes(uint64_t bytes) { expected_bytes_ = bytes; }
  // The objects that were opened for reading so far.
  std::vector<ObjectVersion> opened() const TAKES_LOCK(mutex_);

  // Opens an object, and sets `object` to it, which the file shares.
  std::unique_ptr<ReadableFile> open_object(const std::string& url,
                                            std::shared_ptr<StoreObject>& object)
      TAKES_LOCK(mutex_);
  std::unique_ptr<ReadableFile> open_readable(const std::string& path) override;
  void read_into(const std::string& path, std::vector<std::byte>& out) override;
  std::unique_ptr<WritableFile> open_writable(const std::string& path) override;
  std::unique_ptr<WritableFile> open_appendable(const std::string& path) override;
  // Objects are neither listed nor probed: these are false and empty for them.
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;
  std::vector<FileInfo> list(const std::string& path) override { return inner_.list(path); }
  void make_directories(const std::string& path) override { inner_.make_directories(path); }
  void rename(const std::string& a, const std::string& b) override { inner_.rename(a, b); }
  void remove(const std::string& path) override { inner_.remove(path); }
  void remove_tree(const std::string& path) override { inner_.remove_tree(path); }
  uint64_t free_bytes(const std::string& folder) override { return inner_.free_bytes(folder); }
  void sync_directory(const std::string& path) override { inner_.sync_directory(path); }
  std::unique_ptr<FileLock> lock(const std::string& path) override { return inner_.lock(path); }
  int64_t now_ns() override { return inner_.now_ns(); }
  void sleep_ns(int64_t duration) override { inner_.sleep_ns(duration); }

 private:
  Env& inner_;
  const std::shared_ptr<ObjectStore> store_;
  std::atomic<uint64_t> expected_bytes_{0};
  mutable Mutex mutex_;
  // Names, and sizes and ETags or dates: URLs of one name may have different queries.
  std::set<std::pair<std::string, std::string>> opened_ GUARDED_BY(mutex_);
};

// The store of these options, which its users share while there are any: training and evaluation
// have one set of connections, one budget of memory and one cache.
std::shared_ptr<ObjectStore> shared_store(Env& env, const StoreOptions& options);
// The counts of that store; empty if it has no users.
std::optional<StoreCounts> store_counts(Env& env, const StoreOptions& options);

}  // namespace saturate
