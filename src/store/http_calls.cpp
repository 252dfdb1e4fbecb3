#include "store/http_calls.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <source_location>
#include <utility>

#include "base/cancel.h"
#include "base/printable.h"
#include "base/text.h"
#include "saturate/data/error.h"
#include "store/bucket_region.h"
#include "store/range_reply.h"
#include "store/server_text.h"

namespace saturate {
namespace {

// Why a further attempt may succeed; "" if it would not.
std::string passing_problem(const HttpReply& reply, const HttpCall& call) {
  if (reply.too_long)
    fail(ErrorKind::kRun,
         "the server sent more than " + std::to_string(call.request.most) + " bytes", call.name,
         "Check the endpoint: it must be that of an S3 service");
  if (!reply.error.empty()) {
    std::string what = printable(reply.error);
    if (!reply.remedy.empty()) fail(ErrorKind::kRun, what, call.name, reply.remedy);
    return what;
  }
  if (!may_pass(reply.status, error_code_of(reply))) return "";
  return "the server answered " + status_text(reply);
}

}  // namespace

struct HttpCalls::Pending {
  Mutex mutex;
  Condition done;
  std::optional<HttpReply> reply GUARDED_BY(mutex);
  uint64_t number = 0;  // only for the transfers' thread
  void put(HttpReply&& came) {
    {
      const MutexLock lock(mutex);
      reply = std::move(came);
    }
    done.notify_all();
  }
};

HttpCalls::HttpCalls(Env& env, const StoreOptions& options, const StoreTuning& tuning,
                     std::shared_ptr<CredentialSource> credentials)
    : env_(env),
      options_(options),
      tuning_(tuning),
      credentials_(std::move(credentials)),
      jitter_(uint64_t(env.now_ns()), uint32_t(getpid()), 1, RandomUse::kSynthetic),
      transfers_(env, tuning.stall_s) {}

HttpReply HttpCalls::call(const HttpCall& call) {
  const double limit = call.request.timeout_s > 0 ? call.request.timeout_s : options_.timeout_s;
  const double retry_s = call.retry_s > 0 ? std::min(call.retry_s, limit) : limit;
  const int64_t begin = env_.now_ns(), deadline = begin + int64_t(limit * 1e9);
  const int stall_s = call.request.stall_s > 0 ? call.request.stall_s : tuning_.stall_s;
  for (int attempt = 1, renewals = 0, stalls = 0, moves = 0;; ++attempt) {
    HttpRequest request = call.request;
    move_to_region(request.url, request.region);
    if (call.is_signed) request.signer = credentials_->get(call.name, call.for_google, deadline);
    request.timeout_s = std::max(1.0, double(deadline - env_.now_ns()) * 1e-9);
    request.stall_s = stall_after(stall_s, stalls);
    HttpReply reply = send(request, call.name);
    const std::string problem = passing_problem(reply, call);
    if (problem.empty()) {
      if (note_region(call.request.url, call.request.region, other_region(reply)) &&
          ++moves <= kMostMoves)
        continue;
      const std::string code = error_code_of(reply);
      const bool denied = request.signer && is_denied(reply.status, code);
      if (denied && renewals < kMostRenewals &&
          credentials_->replace_denied(request.signer, call.for_google, code)) {
        ++renewals;
        continue;
      }
      const bool expired = call.is_signed && is_expired(code);
      if (!expired) return reply;
      if (++renewals > kMostRenewals) fail_expired(request.signer, call.name);
      credentials_->renew(request.signer, call.for_google, call.name);
      continue;
    }
    stalls += reply.stalled;
    const double delay = backoff(attempt), elapsed = double(env_.now_ns() - begin) * 1e-9,
                 left = retry_s - elapsed;
    if (delay > left)
      throw NoAnswer(ErrorKind::kRun,
                     "no answer in " + decimal_text(std::max(elapsed, retry_s), 0) + " s" +
                         (call.request.timeout_s > 0 ? "" : " (data.timeout_s)") + " and " +
                         std::to_string(attempt) + " attempts; the last one: " + problem,
                     call.name, "Check the network and the store, then run it again",
                     std::source_location::current());
    pause(std::min(std::max(delay, retry_after(reply)), left), call.name);
  }
}

double HttpCalls::backoff(int attempt) {
  const double full =
      std::min(tuning_.first_backoff_s * std::pow(2, attempt - 1), tuning_.most_backoff_s);
  const MutexLock lock(mutex_);
  return jitter_.uniform(full / 2, full);
}

HttpReply HttpCalls::send(const HttpRequest& request, const std::string& name) {
  const auto pending = std::make_shared<Pending>();
  transfers_.post([this, pending, request] {
    HttpReply failed;
    try {
      pending->number = transfers_.start(
          request, [pending](HttpReply&& reply) { pending->put(std::move(reply)); });
      return;
    } catch (const Error& error) {
      failed.error = error.reason();
      failed.remedy = error.remedy();
    } catch (...) {
      failed.error = "no memory for the transfer";
    }
    pending->put(std::move(failed));
  });
  MutexLock lock(pending->mutex);
  while (!pending->reply) {
    pending->done.wait_until(lock, std::chrono::steady_clock::now() + kCancelLook);
    if (pending->reply || !is_cancelled()) continue;
    transfers_.post([this, pending] { transfers_.cancel(pending->number); });
    fail_cancelled(name);
  }
  HttpReply reply = std::move(*pending->reply);
  hide_secrets(reply, secrets_of("", request.signer));
  if (request.signer) reply.signed_by = request.signer->origin;
  return reply;
}

void HttpCalls::pause(double seconds, const std::string& name) {
  const double look = std::chrono::duration<double>(kCancelLook).count();
  for (; seconds > 0; seconds -= look) {
    if (is_cancelled()) fail_cancelled(name);
    env_.sleep_ns(int64_t(std::min(seconds, look) * 1e9));
  }
}

std::string text_of(const HttpReply& reply) {
  return std::string(as_text(reply.body));
}

void require_good(const HttpCall& call, const HttpReply& reply, const std::string& doing) {
  if (reply.status / 100 == 2) return;
  const std::string code = error_code_of(reply);
  const std::string region = other_region(reply);
  const std::string status = "cannot " + doing + ": the server answered " + status_text(reply);
  if (!region.empty())
    fail(ErrorKind::kUsage, status + "; the bucket is in region " + region, call.name,
         "Set AWS_REGION=" + region);
  if (reply.status / 100 == 3)
    fail(ErrorKind::kRun, status + ", a redirect, which would get the credentials", call.name,
         "Set AWS_ENDPOINT_URL and AWS_REGION to those of the bucket");
  if (is_denied(reply.status, code))
    fail(ErrorKind::kData, status + ": access is denied", call.name,
         remedy_of_denial(code, doing, reply.signed_by));
  fail(ErrorKind::kData, status, call.name, "Check the URL, and that the bucket exists");
}

}  // namespace saturate
