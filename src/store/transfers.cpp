#include "store/transfers.h"

#include <signal.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "saturate/data/error.h"
#include "store/credentials.h"
#include "store/sha256.h"
#ifdef SATURATE_HAS_CURL
#include "store/curl_library.h"
#endif

namespace saturate {

#ifdef SATURATE_HAS_CURL
namespace {

constexpr size_t kMostErrorText = 16 << 10;  // bytes kept of the body of an error
constexpr size_t kMostHeaders = 256 << 10;   // bytes; libcurl before 8.3 has no limit
constexpr int kConnectSeconds = 10;
constexpr long kMostConnections = 512;  // ranges read ahead, late readers and second requests

// Puts an error into a reply, with a remedy if a second attempt would meet it again.
void set_error(HttpReply& reply, CURLcode code, const std::string& text) {
  const auto says = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  reply.error = text;
  reply.stalled = code == CURLE_OPERATION_TIMEDOUT && says("too slow");
  if (code == CURLE_SSL_CONNECT_ERROR &&
      (says("wrong version number") || says("packet length too long") ||
       says("record layer failure") || says("unexpected TLS"))) {
    reply.error = "the server does not speak TLS at this port: " + text;
    reply.remedy = "Write http:// if that is right, or the port of https, in the URL or endpoint";
  } else if (code == CURLE_UNSUPPORTED_PROTOCOL && says("HTTP/0.9")) {
    reply.error = "the server does not speak HTTP at this port: " + text;
    reply.remedy = "Write https:// if that is right, or the port of http, in the URL or endpoint";
  } else if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    reply.remedy =
        "Check the server's certificate, and that the package ca-certificates is installed; "
        "AWS_CA_BUNDLE, or for s3:// ca_bundle of the profile, names another file of authorities";
  } else if (code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT) {
    reply.remedy = "Check the URL, and the endpoint";
  } else if (code == CURLE_NOT_BUILT_IN || code == CURLE_UNKNOWN_OPTION) {
    reply.remedy = "Install another libcurl, such as that of the system";
  }
}

// A proxy that refuses does so again. Without CONNECT its 403 cannot be told from the server's.
void note_refusal_of_proxy(HttpReply& reply, int connect_status) {
  const int status = reply.status == 407 ? reply.status : connect_status;
  if (status != 407 && status != 403) return;
  reply.error = "the proxy answered " + std::to_string(status);
  reply.remedy = "Check https_proxy or http_proxy, with its password, and no_proxy";
}

// The file of trusted certificate authorities; "": the system's libcurl knows its own.
std::string find_authorities(Env& env) {
  for (const char* variable : {"AWS_CA_BUNDLE", "SSL_CERT_FILE"})
    if (std::string file = environment_value(variable); !file.empty()) return file;
  if (!curl_library().is_wheels) return "";
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
    if (env.exists(file)) return file;
  return "";
}

std::string hash_of_body(const HttpRequest& request) {
  if (!request.body) return sha256_hex({});
  return sha256_hex(*request.body);
}

// One transfer. libcurl holds pointers to it.
struct Transfer {
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  size_t most = 0, header_bytes = 0;
  HttpReply reply;
  std::shared_ptr<const std::vector<std::byte>> body;  // of the request
  Transfers::Done done;
  std::string problem = std::string(CURL_ERROR_SIZE, '\0');

  int number(CURLINFO info) const {
    long value = 0;
    curl_library().easy_getinfo(easy, info, &value);
    return int(value);
  }
  int status() const { return number(CURLINFO_RESPONSE_CODE); }
  ~Transfer() {
    if (easy) curl_library().easy_cleanup(easy);
    curl_library().slist_free_all(headers);
  }
};

size_t take_body(char* data, size_t, size_t size, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  auto& body = transfer.reply.body;
  const bool good = transfer.status() / 100 == 2;
  if (body.size() + size > (good ? transfer.most : kMostErrorText)) {
    transfer.reply.too_long = good;
    return 0;  // ends the transfer
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  body.insert(body.end(), bytes, bytes + size);
  return size;
}

size_t take_header(char* data, size_t, size_t size, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  auto& headers = transfer.reply.headers;
  transfer.header_bytes += size;
  if (transfer.header_bytes > kMostHeaders) {
    transfer.reply.error = "the server sends headers without an end";
    transfer.reply.remedy = "Check the server, or use another";
    return 0;  // ends the transfer
  }
  const std::string line(data, size);
  if (line.starts_with("HTTP/")) headers.clear();  // the last of several replies counts
  const size_t colon = line.find(':');
  if (colon == std::string::npos || headers.size() >= 100) return size;
  if (const std::string_view value = trimmed(std::string_view(line).substr(colon + 1));
      !value.empty())
    headers[lower_case(line.substr(0, colon))] = value;
  return size;
}

}  // namespace

struct Transfers::State {
  Env& env;
  const int stall_s;
  const std::string authorities;
  const std::string payer = environment_value("AWS_REQUEST_PAYER");
  const CurlLibrary& curl = curl_library();
  CURLM* const multi = curl.multi_init();
  // The thread's own:
  std::map<uint64_t, std::unique_ptr<Transfer>> running;
  std::multimap<int64_t, std::function<void()>> timers;  // by time
  uint64_t last = 0;

  Mutex mutex;
  std::vector<std::function<void()>> posted GUARDED_BY(mutex);
  bool ending GUARDED_BY(mutex) = false;
  std::optional<ThreadPool> thread;  // uses all of the above

  State(Env& e, int stall) : env(e), stall_s(stall), authorities(find_authorities(e)) {
    curl.multi_setopt(multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, kMostConnections);
    curl.multi_setopt(multi, CURLMOPT_MAXCONNECTS, kMostConnections);
    curl.multi_setopt(multi, CURLMOPT_MAX_CONCURRENT_STREAMS, kMostConnections);  // of HTTP/2
    thread.emplace(1, "store");
    thread->submit([this] { run(); });
  }
  ~State() {
    {
      const MutexLock lock(mutex);
      ending = true;
    }
    curl.multi_wakeup(multi);
    thread.reset();
    for (auto& [number, transfer] : running) curl.multi_remove_handle(multi, transfer->easy);
    running.clear();
    curl.multi_cleanup(multi);
  }

  void run() {
    // Signals are other threads' affair; TLS writes to a closed connection would raise SIGPIPE.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    while (run_posted()) {
      const int64_t now = env.now_ns();
      while (!timers.empty() && timers.begin()->first <= now) {
        const auto due = timers.extract(timers.begin());
        due.mapped()();
      }
      int count = 0;
      curl.multi_perform(multi, &count);
      finish_ended();
      int wait_ms = 1000;
      if (!timers.empty())
        wait_ms = int(std::clamp<int64_t>((timers.begin()->first - env.now_ns()) / 1'000'000 + 1, 0,
                                          wait_ms));
      curl.multi_poll(multi, nullptr, 0, wait_ms, nullptr);
    }
  }

  // False once this ends.
  bool run_posted() {
    std::vector<std::function<void()>> functions;
    {
      const MutexLock lock(mutex);
      if (ending) return false;
      functions.swap(posted);
    }
    for (const auto& function : functions) function();
    return true;
  }

  void finish_ended() {
    int left = 0;
    while (CURLMsg* const message = curl.multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const easy = message->easy_handle;
      const CURLcode code = message->data.result;
      const auto found = std::ranges::find_if(
          running, [&](const auto& entry) { return entry.second->easy == easy; });
      if (found == running.end()) continue;
      const std::unique_ptr<Transfer> transfer = std::move(running.extract(found).mapped());
      curl.multi_remove_handle(multi, easy);
      HttpReply& reply = transfer->reply;
      reply.status = reply.error.empty() ? transfer->status() : 0;
      // The body of an error may be cut off.
      const bool cut = code == CURLE_WRITE_ERROR && !reply.too_long;
      if (code != CURLE_OK && !cut) {
        const std::string text = transfer->problem.c_str();
        set_error(reply, code, text.empty() ? curl.easy_strerror(code) : text);
      }
      note_refusal_of_proxy(reply, transfer->number(CURLINFO_HTTP_CONNECTCODE));
      curl_off_t whole_us = 0, first_us = 0;
      curl.easy_getinfo(easy, CURLINFO_TOTAL_TIME_T, &whole_us);
      curl.easy_getinfo(easy, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
      reply.seconds = double(whole_us) * 1e-6;
      reply.first_byte_s = double(first_us) * 1e-6;
      char* target = nullptr;
      curl.easy_getinfo(easy, CURLINFO_REDIRECT_URL, &target);
      if (target) reply.redirect = target;
      transfer->done(std::move(reply));
    }
  }

  void set_up(Transfer& transfer, const HttpRequest& request) {
    CURL* const easy = transfer.easy;
    const auto add = [&](const std::string& header) {
      transfer.headers = curl.slist_append(transfer.headers, header.c_str());
    };
    std::ranges::for_each(request.headers, add);
    const auto set = [&](CURLoption option, auto value) {
      return curl.easy_setopt(easy, option, value);
    };
    const auto require = [](CURLcode code, const char* what) {
      if (code != CURLE_OK)
        fail(ErrorKind::kUsage, std::string("this libcurl ") + what, "libcurl.so.4",
             "Install another libcurl, such as that of the system");
    };
    if (request.method != "GET") set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    if (request.body) {
      transfer.body = request.body;
      set(CURLOPT_POSTFIELDSIZE_LARGE, curl_off_t(request.body->size()));
      set(CURLOPT_POSTFIELDS, reinterpret_cast<const char*>(request.body->data()));
    }
    set(CURLOPT_URL, request.url.c_str());
    if (!request.region.empty()) set(CURLOPT_PATH_AS_IS, 1L);  // ".." may be part of a key
    const std::string& file = request.authorities.empty() ? authorities : request.authorities;
    if (!file.empty()) set(CURLOPT_CAINFO, file.c_str());
    require(set(CURLOPT_PROTOCOLS_STR, "http,https"), "does not restrict its protocols");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_QUICK_EXIT, 1L);  // a transfer that is cancelled does not wait for a name server
    if (request.direct) set(CURLOPT_NOPROXY, "*");
    set(CURLOPT_NETRC, long(CURL_NETRC_IGNORED));
    set(CURLOPT_USERAGENT, "saturate/" SATURATE_VERSION);
    set(CURLOPT_CONNECTTIMEOUT, long(kConnectSeconds));
    set(CURLOPT_TIMEOUT_MS, long(std::min(request.timeout_s * 1e3, 1e9)));
    set(CURLOPT_LOW_SPEED_LIMIT, 1024L);
    set(CURLOPT_LOW_SPEED_TIME, long(request.stall_s > 0 ? request.stall_s : stall_s));
    set(CURLOPT_HTTP_VERSION, long(CURL_HTTP_VERSION_2TLS));
    set(CURLOPT_WRITEFUNCTION, &take_body);
    set(CURLOPT_WRITEDATA, &transfer);
    set(CURLOPT_HEADERFUNCTION, &take_header);
    set(CURLOPT_HEADERDATA, &transfer);
    set(CURLOPT_ERRORBUFFER, transfer.problem.data());
    if (request.signer) {
      const std::string scope = "aws:amz:" + request.region + ":s3";
      // Without it the keys would be sent as they are.
      require(set(CURLOPT_AWS_SIGV4, scope.c_str()), "does not sign requests");
      set(CURLOPT_USERNAME, request.signer->key.c_str());
      set(CURLOPT_PASSWORD, request.signer->secret.c_str());
      // S3 requires the body's hash, which libcurl 7.88 omits.
      add("x-amz-content-sha256: " +
          (request.body_hash.empty() ? hash_of_body(request) : request.body_hash));
      if (const std::string& token = request.signer->token; !token.empty())
        add("x-amz-security-token: " + token);
      if (!payer.empty()) add("x-amz-request-payer: " + payer);
    }
    set(CURLOPT_HTTPHEADER, transfer.headers);
  }
};

Transfers::Transfers(Env& env, int stall_s) : state_(std::make_unique<State>(env, stall_s)) {}
Transfers::~Transfers() = default;

void Transfers::post(std::function<void()> function) {
  {
    const MutexLock lock(state_->mutex);
    state_->posted.push_back(std::move(function));
  }
  state_->curl.multi_wakeup(state_->multi);
}

uint64_t Transfers::start(const HttpRequest& request, Done done) {
  auto transfer = std::make_unique<Transfer>();
  transfer->easy = state_->curl.easy_init();
  if (!transfer->easy) throw std::bad_alloc();
  transfer->most = request.most;
  transfer->reply.body.reserve(request.most);
  transfer->reply.region = request.region;
  transfer->done = std::move(done);
  state_->set_up(*transfer, request);
  state_->curl.multi_add_handle(state_->multi, transfer->easy);
  state_->running.emplace(++state_->last, std::move(transfer));
  return state_->last;
}

void Transfers::cancel(uint64_t number) {
  const auto found = state_->running.find(number);
  if (found == state_->running.end()) return;
  state_->curl.multi_remove_handle(state_->multi, found->second->easy);
  state_->running.erase(found);
}

void Transfers::after(double seconds, std::function<void()> function) {
  state_->timers.emplace(state_->env.now_ns() + int64_t(seconds * 1e9), std::move(function));
}

#else

struct Transfers::State {};

Transfers::Transfers(Env&, int) {
  fail(ErrorKind::kUsage,
       "this saturate was built without libcurl, so it reads no http(s)://, s3:// or gs://",
       "data.source",
       "Build it again after apt install libcurl4-openssl-dev (tools/setup.sh does so)");
}
Transfers::~Transfers() = default;
void Transfers::post(std::function<void()>) {}
uint64_t Transfers::start(const HttpRequest&, Done) {
  return 0;
}
void Transfers::cancel(uint64_t) {}
void Transfers::after(double, std::function<void()>) {}

#endif

}  // namespace saturate
