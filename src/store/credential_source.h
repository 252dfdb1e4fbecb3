// The credentials that requests are signed with: found when they are first needed, exchanged at a
// service of the cloud if they come from one, and renewed before they expire.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/thread_pool.h"
#include "saturate/data/data_options.h"
#include "saturate/data/env.h"
#include "store/credentials.h"
#include "store/store_tuning.h"

namespace saturate {

class HttpCalls;

// Safe for concurrent use.
class CredentialSource {
 public:
  // `env` must outlive this.
  CredentialSource(Env& env, const StoreOptions& options, const StoreTuning& tuning);
  ~CredentialSource();

  // Credentials, or nullopt if there are none, so that requests are not signed. Never waits:
  // is_there is false while a service is asked for them, also again and again because it does not
  // answer. Fails as find_credentials(), or with the service's failure; a call that comes a second
  // later tries again. `for_google`: those of find_google_credentials().
  struct Look {
    bool is_there = false;
    std::optional<Credentials> credentials = {};
  };
  Look look(bool for_google = false) TAKES_LOCK(mutex_);

  // As look(), and waits, until that time of Env's clock. `name`: what it is for, if none come or
  // the thread is cancelled.
  std::optional<Credentials> get(const std::string& name, bool for_google = false,
                                 int64_t deadline_ns = INT64_MAX);

  // Fails with kRun: none have come for `name` in this time. Tells the last failure of the service.
  [[noreturn]] void fail_missing(const std::string& time, const std::string& name)
      TAKES_LOCK(mutex_);

  // A store says that `old` have expired. False if there are no others; after true, look() and
  // get() return others, perhaps later: a file may be missing, or half written, while another
  // program renews it.
  bool replace(const std::optional<Credentials>& old, bool for_google) TAKES_LOCK(mutex_);
  // As replace(), but fails with kRun.
  void renew(const std::optional<Credentials>& old, bool for_google, const std::string& name);
  // As replace() if a store denies access to `old` with this error code: their file may hold others
  // since then. A service is asked for others only if the store does not know these.
  bool replace_denied(const std::optional<Credentials>& old, bool for_google,
                      const std::string& code) TAKES_LOCK(mutex_);

 private:
  void read_again() NEEDS_LOCK(mutex_);
  void begin_exchange() NEEDS_LOCK(mutex_);
  void exchange() TAKES_LOCK(mutex_);

  Env& env_;
  const StoreOptions options_;
  const StoreTuning tuning_;
  std::unique_ptr<HttpCalls> calls_;  // only for the thread
  std::atomic<bool> ending_{false};
  Mutex mutex_;
  Condition changed_;
  bool is_known_ GUARDED_BY(mutex_) = false;
  std::optional<CredentialService> service_ GUARDED_BY(mutex_);  // that they come from, if any
  std::optional<Credentials> current_ GUARDED_BY(mutex_);
  // The result of find_google_credentials(); empty: not known yet.
  std::optional<std::optional<Credentials>> google_ GUARDED_BY(mutex_);
  // When to read keys again that their file does not hold at present; 0: it does.
  int64_t next_read_ns_ GUARDED_BY(mutex_) = 0;
  int64_t next_exchange_ns_ GUARDED_BY(mutex_) = INT64_MIN;
  bool exchanging_ GUARDED_BY(mutex_) = false;
  bool has_given_ GUARDED_BY(mutex_) = false;      // the service has given credentials before
  std::exception_ptr failure_ GUARDED_BY(mutex_);  // of the last exchange
  bool may_pass_ GUARDED_BY(mutex_) = false;       // ... so that requests wait for a further one
  int64_t failed_ns_ GUARDED_BY(mutex_) = 0;
  bool warned_ = false;                 // only for the thread
  std::unique_ptr<ThreadPool> thread_;  // last: it uses all of the above; made when needed
};

constexpr const char* kNoCredentialsRemedy = "Check the service or file that they come from";

// For one request; more show that those of the service are of no use.
constexpr int kMostRenewals = 2;

// The failure of a request that was signed with credentials that have expired.
[[noreturn]] void fail_expired(const std::optional<Credentials>& old, const std::string& name);

}  // namespace saturate
