// Writing an object of s3:// or gs://, which appears under its name when it is complete.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "saturate/data/env.h"
#include "store/object_store.h"

namespace saturate {

// Writes a small object in one request, and others in parts, a few at a time. Not for concurrent
// use.
class Upload : public WritableFile {
 public:
  // Fails with kUsage if the object exists; aborts what an earlier process left of an upload of it.
  Upload(std::shared_ptr<ObjectStore> store, const std::string& url);
  // Aborts the upload, unless close() has succeeded: no part remains.
  ~Upload() override;
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // Fails with kRun, also for a part that was given before.
  void append(std::span<const std::byte> bytes) override;
  void sync() override {}
  // The object appears.
  void close() override;

 private:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  HttpCall call_of(const std::string& method, const std::string& query) const;
  std::optional<uint64_t> size_there();
  void remove_leftovers();
  void begin();
  void send_part();
  void put_part(size_t number, const Bytes& bytes);
  void wait_for_parts(size_t most);
  void complete();
  void abort(const std::string& id);

  const std::shared_ptr<ObjectStore> store_;
  const std::string name_;
  const StoreLocation location_;
  BucketPlace place_;
  std::vector<std::byte> part_;  // being filled
  std::string id_;               // of the upload in parts; "": none has begun
  uint64_t size_ = 0;
  bool is_closed_ = false;
  std::atomic<bool> ending_{false};
  Mutex mutex_;
  Condition progress_;
  std::vector<std::string> etags_ GUARDED_BY(mutex_);  // of the parts
  size_t sending_ GUARDED_BY(mutex_) = 0;              // parts
  std::exception_ptr failure_ GUARDED_BY(mutex_);
  std::optional<ThreadPool> threads_;  // last: its threads use all of the above
};

}  // namespace saturate
