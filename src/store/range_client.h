// Fetches ranges of objects: with retries until a time limit, a second request for a range that is
// late, redirects, and renewed credentials.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "saturate/data/data_options.h"
#include "saturate/data/env.h"
#include "saturate/data/random.h"
#include "store/credential_source.h"
#include "store/link.h"
#include "store/range_reply.h"
#include "store/store_tuning.h"
#include "store/store_url.h"
#include "store/transfers.h"

namespace saturate {

class RangeClient {
 public:
  // Called on the transfers' thread, with the bytes or an error. Must not throw.
  using Done = std::function<void(std::vector<std::byte>&&, std::exception_ptr)>;

  // `credentials` must outlive this.
  RangeClient(Env& env, const StoreOptions& options, const StoreTuning& tuning,
              CredentialSource& credentials);

  // From any thread. `done` is called once, unless this is destroyed first. Of an object that is
  // not open, which it opens, fewer bytes may come.
  void fetch(std::shared_ptr<StoreObject> object, uint64_t offset, uint64_t length, Done done);

  // Its part of the counts.
  void add_counts(StoreCounts& counts) const TAKES_LOCK(mutex_);
  // As measured over all its requests so far.
  LinkPace pace() const TAKES_LOCK(mutex_);

 private:
  struct Fetch;
  using FetchPtr = std::shared_ptr<Fetch>;

  void begin_attempt(const FetchPtr& fetch);
  // Begins the attempt a little later. Fails if the time is up.
  void wait_for_credentials(const FetchPtr& fetch);
  // False if the credentials are not there yet.
  bool send(const FetchPtr& fetch);
  void watch_for_delay(const FetchPtr& fetch);
  void take_reply(const FetchPtr& fetch, uint64_t number, HttpReply&& reply);
  // Those that bytes_while_waiting() needs.
  void add_sums(StoreCounts& counts) const NEEDS_LOCK(mutex_);
  void note_times(const HttpReply& reply) TAKES_LOCK(mutex_);
  void take_failure(const FetchPtr& fetch, const ReplyVerdict& verdict, const HttpReply& reply);
  void follow(const FetchPtr& fetch, const HttpReply& reply);
  void renew(const FetchPtr& fetch, const std::string& what);
  void retry_later(const FetchPtr& fetch, const std::string& what, double least_s);
  void finish(const FetchPtr& fetch, std::vector<std::byte>&& bytes, std::exception_ptr error);
  void fail_fetch(const FetchPtr& fetch, ErrorKind kind, const std::string& what,
                  const std::string& remedy);
  double late_after(uint64_t length) const;

  Env& env_;
  const StoreOptions options_;
  const StoreTuning tuning_;
  CredentialSource& credentials_;
  std::atomic<uint64_t> requests_{0}, bytes_{0}, retries_{0}, second_{0};
  mutable Mutex mutex_;
  double request_s_ GUARDED_BY(mutex_) = 0, waiting_s_ GUARDED_BY(mutex_) = 0;
  double least_first_byte_s_ GUARDED_BY(mutex_) = INFINITY;
  std::deque<double> first_bytes_s_ GUARDED_BY(mutex_);
  // Only for the transfers' thread:
  struct Pace {
    double first_byte_s, byte_s;  // seconds until the first byte, and for each
  };
  std::deque<Pace> paces_;  // of the last transfers
  RandomStream jitter_;
  int64_t warned_ns_ = INT64_MIN;
  Transfers transfers_;  // last: its thread uses all of the above
};

}  // namespace saturate
