// Writing an object of s3:// or gs://, which appears under its name when it is complete.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
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

// Writes a small object in one request, and others in parts, a few at a time. Continues an upload
// in parts that an ended process left: parts that equal the bytes to be sent are kept. Not for
// concurrent use.
class Upload : public WritableFile {
 public:
  // `expected_bytes`: of the whole object, more or less; 0: unknown. Larger objects have larger
  // parts. Fails with kUsage if the object exists. Aborts uploads of it that earlier processes
  // left, except the one to continue: that with the most bytes in parts of the size of ours.
  Upload(std::shared_ptr<ObjectStore> store, const std::string& url, uint64_t expected_bytes = 0);
  // Without close() the object does not appear. Parts that the store has stay there, and a message
  // says so.
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
  struct Part {
    uint64_t size = 0;
    std::string etag;
  };
  struct Unfinished {  // an upload that an earlier process left
    std::string id;
    std::map<uint64_t, Part> parts;  // by number
    uint64_t bytes = 0;              // in parts of the size of ours
  };

  HttpCall call_of(const std::string& method, const std::string& query) const;
  bool has_parts() TAKES_LOCK(mutex_);
  void tell_what_stays() const;
  std::optional<uint64_t> size_there();
  std::vector<std::string> unfinished_ids();
  Unfinished parts_of(const std::string& id);
  void find_unfinished();
  void begin();
  void send_part();
  bool is_there(size_t number, std::span<const std::byte> bytes) const;
  HttpReply put(const std::string& query, const Bytes& bytes);
  void put_part(size_t number, const Bytes& bytes);
  void wait_for_parts(size_t most);
  void complete();
  void abort(const std::string& id);

  const std::shared_ptr<ObjectStore> store_;
  const uint64_t part_bytes_;
  const std::string name_;
  const StoreLocation location_;
  BucketPlace place_;
  std::vector<std::byte> part_;  // being filled
  Unfinished left_;              // constant once constructed
  std::string id_;               // of the upload in parts; "": none has begun
  uint64_t size_ = 0;
  bool is_closed_ = false;
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> kept_{0};  // bytes of parts in left_
  Mutex mutex_;
  Condition progress_;
  std::vector<std::string> etags_ GUARDED_BY(mutex_);  // of the parts
  size_t sending_ GUARDED_BY(mutex_) = 0;              // parts
  std::exception_ptr failure_ GUARDED_BY(mutex_);
  std::optional<ThreadPool> threads_;  // last: its threads use all of the above
};

}  // namespace saturate
