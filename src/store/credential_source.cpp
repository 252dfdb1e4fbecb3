#include "store/credential_source.h"

#include <chrono>
#include <utility>

#include "base/cancel.h"
#include "base/printable.h"
#include "base/wall_clock.h"
#include "saturate/data/error.h"
#include "store/credential_exchange.h"
#include "store/http_calls.h"
#include "store/range_reply.h"

namespace saturate {
namespace {

constexpr int64_t kSecond = 1'000'000'000;       // ns
constexpr int64_t kRenewBefore = 300 * kSecond;  // expiry
constexpr int64_t kUsableUntil = 15 * kSecond;   // before expiry
constexpr int64_t kRenewPause = 30 * kSecond;    // between attempts, while the old ones are good
constexpr int64_t kKeepFailure = kSecond;        // for all who waited for the same attempt
constexpr int64_t kReadPause = kSecond / 20;     // between looks at a file without keys

std::optional<Error> as_error(const std::exception_ptr& failure) {
  if (!failure) return std::nullopt;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (...) {  // no memory
    return std::nullopt;
  }
}

}  // namespace

CredentialSource::CredentialSource(Env& env, const StoreOptions& options, const StoreTuning& tuning)
    : env_(env), options_(options), tuning_(tuning) {}

CredentialSource::~CredentialSource() {
  ending_ = true;
}

CredentialSource::Look CredentialSource::look(bool for_google) {
  const MutexLock lock(mutex_);
  if (for_google) {
    if (!google_) google_.emplace(find_google_credentials(env_));
    return {true, *google_};
  }
  if (!is_known_) {
    current_ = find_credentials(env_);
    if (!current_) service_ = find_web_identity(env_);
    if (!current_ && !service_) service_ = find_credential_process(env_);
    if (!current_ && !service_) service_ = find_metadata_service();
    is_known_ = true;
    if (service_) current_.reset();
  }
  if (next_read_ns_ > 0 && env_.now_ns() >= next_read_ns_) read_again();
  if (next_read_ns_ > 0) return {};
  if (!service_) return {true, current_};
  const int64_t now = unix_time_ns(env_);
  const bool expires = current_ && current_->expires_ns > 0;
  const bool is_good = current_ && (!expires || now < current_->expires_ns - kUsableUntil);
  const bool is_old = !current_ || (expires && now > current_->expires_ns - kRenewBefore);
  if (is_old && now >= next_exchange_ns_) begin_exchange();
  if (is_good) return {true, current_};
  const int64_t pause = may_pass_ ? int64_t(tuning_.most_backoff_s * 1e9) : kKeepFailure;
  if (exchanging_ || !failure_ || env_.now_ns() >= failed_ns_ + pause)
    begin_exchange();
  else if (!may_pass_)
    std::rethrow_exception(failure_);
  return {};
}

std::optional<Credentials> CredentialSource::get(const std::string& name, bool for_google,
                                                 int64_t deadline_ns) {
  while (true) {
    const Look found = look(for_google);
    if (found.is_there) return found.credentials;
    if (is_cancelled()) fail_cancelled(name);
    if (env_.now_ns() >= deadline_ns) fail_missing("in time", name);
    MutexLock lock(mutex_);
    if (exchanging_ || failure_ || next_read_ns_ > 0)
      changed_.wait_until(lock, std::chrono::steady_clock::now() + kCancelLook);
  }
}

void CredentialSource::fail_missing(const std::string& time, const std::string& name) {
  std::exception_ptr failure;
  {
    const MutexLock lock(mutex_);
    failure = failure_;
  }
  const auto error = as_error(failure);
  fail(ErrorKind::kRun,
       "no credentials came " + time +
           (error ? "; " + error->where() + ": " + error->reason() : std::string()),
       name, error ? error->remedy() : kNoCredentialsRemedy);
}

bool CredentialSource::replace(const std::optional<Credentials>& old, bool for_google) {
  const MutexLock lock(mutex_);
  if (for_google) {
    try {
      google_.emplace(find_google_credentials(env_));
    } catch (const Error&) {
      // Half of a file.
    }
    return google_ && *google_ != old;
  }
  if (current_ != old || !is_known_) return true;
  if (!service_) {
    if (old)
      read_again();
    else
      current_ = find_credentials(env_);
    return next_read_ns_ > 0 || current_ != old;
  }
  current_.reset();
  return true;
}

void CredentialSource::read_again() {
  std::optional<Credentials> found;
  try {
    found = find_credentials(env_);
  } catch (const Error&) {
    // Half of a file.
  }
  next_read_ns_ = found ? 0 : env_.now_ns() + kReadPause;
  if (found) current_ = std::move(found);
}

void CredentialSource::renew(const std::optional<Credentials>& old, bool for_google,
                             const std::string& name) {
  if (!replace(old, for_google)) fail_expired(old, name);
}

bool CredentialSource::replace_denied(const std::optional<Credentials>& old, bool for_google,
                                      const std::string& code) {
  {
    const MutexLock lock(mutex_);
    if (!for_google && service_ && current_ == old && !is_unknown_key(code)) return false;
  }
  return replace(old, for_google);
}

void CredentialSource::begin_exchange() {
  if (std::exchange(exchanging_, true)) return;
  if (!thread_) thread_ = std::make_unique<ThreadPool>(1, "credentials");
  thread_->submit([this] { exchange(); });
}

void CredentialSource::exchange() {
  std::optional<CredentialService> service;
  bool passes = false;
  {
    const MutexLock lock(mutex_);
    service = service_;
    passes = has_given_;
  }
  std::optional<Credentials> found;
  std::exception_ptr failure;
  const CancelScope scope([this] { return ending_.load(); });
  try {
    if (!calls_) calls_ = std::make_unique<HttpCalls>(env_, options_, tuning_, nullptr);
    found = ask_service(env_, *calls_, *service);
    if (found && found->expires_ns > 0 && found->expires_ns < unix_time_ns(env_) + kUsableUntil)
      fail(ErrorKind::kRun, "the service hands out credentials that have expired", service->origin,
           "Check this machine's clock");
  } catch (const NoAnswer&) {
    failure = std::current_exception();
    passes = true;
  } catch (...) {
    failure = std::current_exception();
  }
  if (const auto error = as_error(failure); !error)
    warned_ = false;
  else if (passes && !ending_ && !std::exchange(warned_, true))
    print_warning(error->where() + ": " + error->reason() + "; trying again");
  const MutexLock lock(mutex_);
  exchanging_ = false;
  failure_ = failure;
  may_pass_ = passes;
  failed_ns_ = env_.now_ns();
  // Also after a success: a service may hand out the old ones until shortly before they expire.
  next_exchange_ns_ = unix_time_ns(env_) + kRenewPause;
  if (!failure) {
    current_ = std::move(found);
    if (current_) {
      has_given_ = true;
      service_->may_be_away = false;  // that it is away later does not mean unsigned requests
    } else {
      service_.reset();  // a machine without a role
    }
  }
  changed_.notify_all();
}

void fail_expired(const std::optional<Credentials>& old, const std::string& name) {
  fail(ErrorKind::kRun, "the credentials have expired", name,
       "Renew " + (old ? old->origin : "them") + ", then run it again");
}

}  // namespace saturate
