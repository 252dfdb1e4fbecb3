#include "store/range_client.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/printable.h"
#include "saturate/data/error.h"
#include "store/bucket_region.h"
#include "store/server_text.h"

namespace saturate {
namespace {

constexpr int kMostRedirects = 5, kMostLies = 4;
constexpr size_t kFewDurations = 20, kMostDurations = 256;
constexpr double kLookAgain = 0.02;  // seconds between two looks for credentials
constexpr int kTriesBeforeWarning = 4;
constexpr size_t kMostPlace = 100;                 // bytes
constexpr double kLongPause = 2;                   // seconds, announced before
constexpr int64_t kWarningEvery = 60'000'000'000;  // ns

std::string range_header(uint64_t offset, uint64_t length) {
  return "Range: bytes=" + std::to_string(offset) + "-" + std::to_string(offset + length - 1);
}

// Scheme and host of a URL that a server has sent, for messages.
std::string place_of(const std::string& url) {
  const std::string name = store_name(url);
  return printable(name.substr(0, std::min(name.find('/', name.find("://") + 3), kMostPlace)));
}

}  // namespace

struct RangeClient::Fetch {
  std::shared_ptr<StoreObject> object;
  uint64_t offset, length;
  Done done;
  int64_t deadline_ns;
  int attempts = 0, stalls = 0, lies = 0, redirects = 0, moves = 0, renewals = 0;
  struct Running {
    uint64_t number;  // of the transfer
    int64_t begun_ns;
    std::optional<Credentials> signer;
  };
  std::vector<Running> running = {};
  std::optional<Credentials> signer = {};  // of the last request that was answered
};

RangeClient::RangeClient(Env& env, const StoreOptions& options, const StoreTuning& tuning,
                         CredentialSource& credentials)
    : env_(env),
      options_(options),
      tuning_(tuning),
      credentials_(credentials),
      // Processes that failed together must not come back together.
      jitter_(uint64_t(env.now_ns()), uint32_t(getpid()), 0, RandomUse::kSynthetic),
      transfers_(env, tuning.stall_s) {}

void RangeClient::fetch(std::shared_ptr<StoreObject> object, uint64_t offset, uint64_t length,
                        Done done) {
  const auto fetch =
      std::make_shared<Fetch>(Fetch{std::move(object), offset, length, std::move(done),
                                    env_.now_ns() + int64_t(options_.timeout_s * 1e9)});
  ++requests_;
  transfers_.post([this, fetch] { begin_attempt(fetch); });
}

void RangeClient::add_counts(StoreCounts& counts) const {
  counts.retries += retries_;
  counts.second += second_;
  const MutexLock lock(mutex_);
  add_sums(counts);
  counts.first_bytes_s.assign(first_bytes_s_.begin(), first_bytes_s_.end());
}

void RangeClient::add_sums(StoreCounts& counts) const {
  counts.requests += requests_;
  counts.bytes += bytes_;
  counts.request_s += request_s_;
  counts.waiting_s += waiting_s_;
  counts.least_first_byte_s = least_first_byte_s_;
}

LinkPace RangeClient::pace() const {
  StoreCounts counts;
  const MutexLock lock(mutex_);
  add_sums(counts);
  return {bytes_while_waiting(counts), counts.least_first_byte_s};
}

void RangeClient::begin_attempt(const FetchPtr& fetch) {
  if (!fetch->done) return;    // another request has succeeded since the timer was set
  std::exception_ptr failure;  // moved, not copied: another thread destroys it
  try {
    if (!send(fetch)) return wait_for_credentials(fetch);
    ++fetch->attempts;
    return watch_for_delay(fetch);
  } catch (...) {
    failure = std::current_exception();
  }
  finish(fetch, {}, std::move(failure));
}

void RangeClient::wait_for_credentials(const FetchPtr& fetch) {
  if (env_.now_ns() < fetch->deadline_ns)
    return transfers_.after(kLookAgain, [this, fetch] { begin_attempt(fetch); });
  credentials_.fail_missing("within data.timeout_s = " + decimal_text(options_.timeout_s, 0) + " s",
                            fetch->object->name);
}

bool RangeClient::send(const FetchPtr& fetch) {
  const StoreObject& object = *fetch->object;
  HttpRequest request;
  request.url = object.redirected.empty() ? object.location.url : object.redirected;
  request.headers.push_back(range_header(fetch->offset, fetch->length));
  request.most = size_t(fetch->length);
  request.timeout_s = std::max(1.0, double(fetch->deadline_ns - env_.now_ns()) * 1e-9);
  request.stall_s = stall_after(tuning_.stall_s, fetch->stalls);
  if (object.location.is_bucket) {
    const CredentialSource::Look found = credentials_.look(object.location.is_google);
    if (!found.is_there) return false;
    request.signer = found.credentials;
    request.region = object.location.region;
    request.authorities = object.location.authorities;
    move_to_region(request.url, request.region);
  }
  // The number is not known before start() returns; no reply comes before the thread's next round.
  const auto number = std::make_shared<uint64_t>(0);
  *number = transfers_.start(
      request, [this, fetch, number](HttpReply&& r) { take_reply(fetch, *number, std::move(r)); });
  fetch->running.push_back({*number, env_.now_ns(), std::move(request.signer)});
  return true;
}

// The 95th percentile of what recent requests would have taken for so many bytes.
double RangeClient::late_after(uint64_t length) const {
  if (paces_.size() < kFewDurations) return INFINITY;
  std::vector<double> sorted;
  sorted.reserve(paces_.size());
  for (const Pace& pace : paces_)
    sorted.push_back(pace.first_byte_s + double(length) * pace.byte_s);
  const auto at = sorted.begin() + ptrdiff_t(sorted.size() * 95 / 100);
  std::nth_element(sorted.begin(), at, sorted.end());
  return std::max(*at, tuning_.second_least_s);
}

// Sends a second request if the first is later than usual; the first good reply counts. One in ten
// requests may have one, so that a link that is slow as a whole is not loaded twice.
void RangeClient::watch_for_delay(const FetchPtr& fetch) {
  const double late = late_after(fetch->length);
  if (!std::isfinite(late)) return;
  transfers_.after(late, [this, fetch, attempt = fetch->attempts] {
    const bool waits = fetch->attempts == attempt && fetch->running.size() == 1;
    if (!waits || second_ * 10 > requests_) return;
    try {
      if (send(fetch)) ++second_;
    } catch (...) {
      // The first request goes on.
    }
  });
}

void RangeClient::take_reply(const FetchPtr& fetch, uint64_t number, HttpReply&& reply) {
  const auto found = std::ranges::find(fetch->running, number, &Fetch::Running::number);
  if (found == fetch->running.end()) return;
  const double seconds = double(env_.now_ns() - found->begun_ns) / 1e9;
  fetch->signer = std::move(found->signer);
  if (fetch->signer) reply.signed_by = fetch->signer->origin;
  fetch->running.erase(found);
  bytes_ += reply.body.size();
  const StoreObject& object = *fetch->object;
  auto secrets = secrets_of(object.location.url, fetch->signer);
  std::ranges::move(secrets_of(object.redirected, {}), std::back_inserter(secrets));
  hide_secrets(reply, secrets);
  ReplyVerdict verdict = judge_reply(*fetch->object, fetch->offset, fetch->length, reply);
  verdict.what = without_secrets(std::move(verdict.what), secrets);
  if (verdict.kind != ReplyKind::kGood) return take_failure(fetch, verdict, reply);
  const double first_byte = std::min(reply.first_byte_s, seconds);
  paces_.push_back({first_byte, (seconds - first_byte) / double(fetch->length)});
  if (paces_.size() > kMostDurations) paces_.pop_front();
  note_times(reply);
  finish(fetch, std::move(reply.body), nullptr);
}

void RangeClient::note_times(const HttpReply& reply) {
  const MutexLock lock(mutex_);
  request_s_ += reply.seconds;
  waiting_s_ += reply.first_byte_s;
  least_first_byte_s_ = std::min(least_first_byte_s_, reply.first_byte_s);
  first_bytes_s_.push_back(reply.first_byte_s);
  if (first_bytes_s_.size() > kMostDurations) first_bytes_s_.pop_front();
}

void RangeClient::take_failure(const FetchPtr& fetch, const ReplyVerdict& verdict,
                               const HttpReply& reply) {
  StoreObject& object = *fetch->object;
  fetch->stalls += reply.stalled;
  const StoreLocation& location = object.location;
  if (note_region(location.url, location.region, other_region(reply)) &&
      ++fetch->moves <= kMostMoves)
    return begin_attempt(fetch);
  if (verdict.kind == ReplyKind::kRedirect) return follow(fetch, reply);
  if (verdict.kind == ReplyKind::kExpired) return renew(fetch, verdict.what);
  if (verdict.kind == ReplyKind::kFinal && fetch->signer && fetch->renewals < kMostRenewals) {
    const std::string code = error_code_of(reply);
    if (is_denied(reply.status, code) &&
        credentials_.replace_denied(fetch->signer, object.location.is_google, code)) {
      ++fetch->renewals;
      return begin_attempt(fetch);
    }
  }
  if (verdict.kind == ReplyKind::kFinal && !object.redirected.empty() &&
      fetch->redirects++ < kMostRedirects) {
    object.redirected.clear();  // it may have expired
    return begin_attempt(fetch);
  }
  const bool last_lie = verdict.kind == ReplyKind::kLie && ++fetch->lies >= kMostLies;
  if (verdict.kind == ReplyKind::kFinal || last_lie)
    return fail_fetch(fetch, verdict.error, verdict.what, verdict.remedy);
  if (!fetch->running.empty()) return;  // the other request may succeed
  retry_later(fetch, verdict.what, retry_after(reply));
}

void RangeClient::follow(const FetchPtr& fetch, const HttpReply& reply) {
  StoreObject& object = *fetch->object;
  const std::string& from = object.redirected.empty() ? object.location.url : object.redirected;
  if (object.location.is_bucket)
    return fail_fetch(fetch, ErrorKind::kRun,
                      "the store redirects to another address, which would get the credentials",
                      "Set AWS_ENDPOINT_URL and AWS_REGION to those of the bucket");
  if (!may_redirect(from, reply.redirect)) {
    const std::string to =
        without_secrets(without_secrets(reply.redirect, secrets_of(object.location.url, {})),
                        secrets_of(object.redirected, {}));
    const std::string what = "the server " + host_of(from) + " redirects to " + place_of(to);
    if (!is_web_url(to))
      return fail_fetch(fetch, ErrorKind::kRun, what + ", which is not an http(s):// URL",
                        "Check the URL, and how the server is set up");
    return fail_fetch(fetch, ErrorKind::kRun,
                      what +
                          ", which is not followed: only redirects within one host are, and "
                          "none from https to http",
                      "Write the URL that it redirects to, which curl -sIL prints, in data.source");
  }
  if (++fetch->redirects > kMostRedirects)
    return fail_fetch(fetch, ErrorKind::kRun, "the server redirects again and again",
                      "Use the URL of the object itself");
  object.redirected = reply.redirect;
  begin_attempt(fetch);
}

// Reads the credentials again: another program may have renewed the files.
void RangeClient::renew(const FetchPtr& fetch, const std::string& what) {
  std::exception_ptr failure;
  try {
    if (++fetch->renewals <= kMostRenewals &&
        credentials_.replace(fetch->signer, fetch->object->location.is_google))
      return begin_attempt(fetch);
    return fail_fetch(
        fetch, ErrorKind::kRun, what + ": the credentials have expired",
        "Renew " + (fetch->signer ? fetch->signer->origin : "them") + ", then resume the run");
  } catch (...) {
    failure = std::current_exception();
  }
  finish(fetch, {}, std::move(failure));
}

void RangeClient::retry_later(const FetchPtr& fetch, const std::string& what, double least_s) {
  const double full =
      std::min(tuning_.first_backoff_s * std::pow(2, fetch->attempts - 1), tuning_.most_backoff_s);
  const double own = jitter_.uniform(full / 2, full);
  const int64_t now = env_.now_ns();
  const double left = double(fetch->deadline_ns - now) * 1e-9;
  if (left < tuning_.first_backoff_s)
    return fail_fetch(
        fetch, ErrorKind::kRun,
        "no answer in data.timeout_s = " + decimal_text(options_.timeout_s, 0) + " s and " +
            std::to_string(fetch->attempts) + " attempts; the last one: " + what,
        "Check the network and the store, then run again, with --resume if there is a checkpoint");
  // However long the server asks to wait, the last attempt is made before the time limit.
  const double delay = std::min(std::max(own, least_s), left);
  if ((fetch->attempts == kTriesBeforeWarning || delay > kLongPause) &&
      (warned_ns_ < 0 || now - warned_ns_ > kWarningEvery)) {
    warned_ns_ = now;
    print_warning(fetch->object->name + ": " + what + "; trying again in " +
                  decimal_text(delay, 1) + " s, for up to " + decimal_text(left, 0) + " s");
  }
  ++retries_;
  transfers_.after(delay, [this, fetch] { begin_attempt(fetch); });
}

void RangeClient::fail_fetch(const FetchPtr& fetch, ErrorKind kind, const std::string& what,
                             const std::string& remedy) {
  finish(fetch, {},
         std::make_exception_ptr(
             Error(kind, what, fetch->object->name, remedy, std::source_location::current())));
}

void RangeClient::finish(const FetchPtr& fetch, std::vector<std::byte>&& bytes,
                         std::exception_ptr error) {
  for (const Fetch::Running& running : fetch->running) transfers_.cancel(running.number);
  fetch->running.clear();
  ++fetch->attempts;  // timers that are still set have no effect, and hold no memory
  Done done;
  done.swap(fetch->done);
  done(std::move(bytes), std::move(error));
}

}  // namespace saturate
