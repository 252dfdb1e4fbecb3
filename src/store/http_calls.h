// Requests to stores that are not for ranges: lists, uploads, credentials. They block the caller,
// and are tried again until a time limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "saturate/data/data_options.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/random.h"
#include "store/credential_source.h"
#include "store/store_tuning.h"
#include "store/transfers.h"

namespace saturate {

// No reply came in time; a later call may get one.
class NoAnswer : public Error {
 public:
  using Error::Error;
};

struct HttpCall {
  HttpRequest request;  // without signer; may be empty: timeout_s
  std::string name;     // for messages
  bool is_signed = false;
  bool for_google = false;  // see CredentialSource::look()
  double retry_s = 0;       // attempts begin within it; 0: within the time limit
};

// Safe for concurrent use.
class HttpCalls {
 public:
  // `credentials` signs calls; null if no call is signed. `env` must outlive this.
  HttpCalls(Env& env, const StoreOptions& options, const StoreTuning& tuning,
            std::shared_ptr<CredentialSource> credentials);

  // The first reply that a further attempt would not change, whatever its status: 2xx, 4xx and so
  // on. Renews expired credentials. Fails with NoAnswer if none comes in time, and with kRun if the
  // reply is longer than request.most, or the thread is cancelled.
  HttpReply call(const HttpCall& call);

 private:
  struct Pending;

  HttpReply send(const HttpRequest& request, const std::string& name);
  void pause(double seconds, const std::string& name);
  double backoff(int attempt) TAKES_LOCK(mutex_);

  Env& env_;
  const StoreOptions options_;
  const StoreTuning tuning_;
  const std::shared_ptr<CredentialSource> credentials_;
  Mutex mutex_;
  RandomStream jitter_ GUARDED_BY(mutex_);
  Transfers transfers_;  // last: its thread uses all of the above
};

std::string text_of(const HttpReply& reply);

// Fails on a reply that is not 2xx, with what it means: a missing bucket or object, denied access,
// another region. `doing`: "list the bucket", "write the object".
void require_good(const HttpCall& call, const HttpReply& reply, const std::string& doing);

}  // namespace saturate
