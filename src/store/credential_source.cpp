#include "store/credential_source.h"

#include <chrono>
#include <utility>

#include "base/cancel.h"
#include "base/wall_clock.h"
#include "saturate/data/error.h"
#include "store/credential_exchange.h"
#include "store/http_calls.h"

namespace saturate {
namespace {

constexpr int64_t kSecond = 1'000'000'000;       // ns
constexpr int64_t kRenewBefore = 300 * kSecond;  // expiry
constexpr int64_t kUsableUntil = 15 * kSecond;   // before expiry
constexpr int64_t kRenewPause = 30 * kSecond;    // between attempts, while the old ones are good
constexpr int64_t kKeepFailure = kSecond;        // for all who waited for the same attempt
constexpr int64_t kReadPause = kSecond / 20;     // between looks at a file without keys

// Google refuses requests with Amazon's keys, also for public objects.
bool is_amazons(const Credentials& credentials) {
  return !credentials.token.empty() || credentials.key.starts_with("AKIA");
}

}  // namespace

CredentialSource::CredentialSource(Env& env, const StoreOptions& options, const StoreTuning& tuning)
    : env_(env), options_(options), tuning_(tuning) {}

CredentialSource::~CredentialSource() {
  ending_ = true;
}

CredentialSource::Look CredentialSource::look(bool for_google) {
  const MutexLock lock(mutex_);
  if (!is_known_) {
    current_ = find_credentials(env_);
    if (!current_) service_ = find_web_identity(env_);
    if (!current_ && !service_) service_ = find_credential_process(env_);
    if (!current_ && !service_) service_ = find_metadata_service();
    is_known_ = true;
    if (service_) current_.reset();
  }
  if (for_google && (service_ || (current_ && is_amazons(*current_)))) return {true, {}};
  if (next_read_ns_ > 0 && env_.now_ns() >= next_read_ns_) read_again();
  if (next_read_ns_ > 0) return {};
  if (!service_) return {true, current_};
  const int64_t now = unix_time_ns(env_);
  const bool expires = current_ && current_->expires_ns > 0;
  const bool is_good = current_ && (!expires || now < current_->expires_ns - kUsableUntil);
  const bool is_old = !current_ || (expires && now > current_->expires_ns - kRenewBefore);
  if (is_old && now >= next_exchange_ns_) begin_exchange();
  if (is_good) return {true, current_};
  if (failure_ && env_.now_ns() < failed_ns_ + kKeepFailure) std::rethrow_exception(failure_);
  begin_exchange();
  return {};
}

std::optional<Credentials> CredentialSource::get(const std::string& name, bool for_google,
                                                 int64_t deadline_ns) {
  while (true) {
    const Look found = look(for_google);
    if (found.is_there) return found.credentials;
    if (is_cancelled()) fail_cancelled(name);
    if (env_.now_ns() >= deadline_ns)
      fail(ErrorKind::kRun, "no credentials came in time", name, kNoCredentialsRemedy);
    MutexLock lock(mutex_);
    if (exchanging_ || next_read_ns_ > 0)
      changed_.wait_until(lock, std::chrono::steady_clock::now() + kCancelLook);
  }
}

bool CredentialSource::replace(const std::optional<Credentials>& old) {
  const MutexLock lock(mutex_);
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

void CredentialSource::renew(const std::optional<Credentials>& old, const std::string& name) {
  if (!replace(old)) fail_expired(old, name);
}

void CredentialSource::begin_exchange() {
  if (std::exchange(exchanging_, true)) return;
  failure_ = nullptr;  // of an earlier attempt
  if (!thread_) thread_ = std::make_unique<ThreadPool>(1, "credentials");
  thread_->submit([this] { exchange(); });
}

void CredentialSource::exchange() {
  std::optional<CredentialService> service;
  {
    const MutexLock lock(mutex_);
    service = service_;
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
  } catch (...) {
    failure = std::current_exception();
  }
  const MutexLock lock(mutex_);
  exchanging_ = false;
  failure_ = failure;
  failed_ns_ = env_.now_ns();
  // Also after a success: a service may hand out the old ones until shortly before they expire.
  next_exchange_ns_ = unix_time_ns(env_) + kRenewPause;
  if (!failure) {
    current_ = std::move(found);
    if (current_)
      service_->may_be_away = false;  // that it is away later does not mean unsigned requests
    else
      service_.reset();  // a machine without a role
  }
  changed_.notify_all();
}

void fail_expired(const std::optional<Credentials>& old, const std::string& name) {
  fail(ErrorKind::kRun, "the credentials have expired", name,
       "Renew " + (old ? old->origin : "them") + ", then run it again");
}

}  // namespace saturate
