// A run's current metrics over HTTP, in Prometheus's text format.
#include <fmt/format.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "base/wall_clock.h"
#include "record/sinks.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// Limits for concurrent answers, connections, their silence (s) and their length: a client that is
// idle or slow blocks no other for long, and no number of them uses up the process's files.
constexpr int kConnections = 16, kMostOpen = 64;
constexpr time_t kSilence = 2;
constexpr std::chrono::seconds kLongest{10};
constexpr std::chrono::seconds kLongestAtEnd{1};

// The host name without port and brackets, such as in "node7:9090" and "[::1]:9090".
std::string name_in(const std::string& host) {
  if (host.starts_with('[')) return lower_case(host.substr(1, host.find(']') - 1));
  return lower_case(host.substr(0, host.rfind(':')));
}

// DNS rebinding: another site's page can make a browser request an address that only the browser
// can reach, but only under the page's own host name.
std::set<std::string> allowed_hosts(const WatchOptions& watch) {
  std::set<std::string> names = {"127.0.0.1", "localhost", "::1",
                                 lower_case(watch.prometheus_address)};
  std::string hosts = lower_case(watch.prometheus_hosts);
  std::erase(hosts, ' ');
  for (const std::string& name : split_text(hosts, ','))
    if (!name.empty()) names.insert(name);
  return names;
}

// The port at one end of a connected socket; 0 for any other file.
int port_of(int socket, decltype(&getsockname) end) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (end(socket, any, &size) != 0) return 0;
  if (any->sa_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in*>(any)->sin_port);
  return any->sa_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6*>(any)->sin6_port) : 0;
}

// Answers connections on threads that exist before the server. httplib starts its own in the
// server's thread, where nothing could catch that the system refuses one. Its timeouts are for each
// read, and it does not expose its sockets, so they are looked up among the process's descriptors.
class Connections : public httplib::TaskQueue {
 public:
  Connections(ThreadPool& threads, int port) : threads_(threads), port_(port) {}
  // Void, or with later releases of httplib whether the answer was accepted.
  using Accepted = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));
  Accepted enqueue(std::function<void()> answer) override {
    for (; open_ >= kMostOpen; std::this_thread::sleep_for(std::chrono::milliseconds(100)))
      without_errors([&] { end_those_open(kLongest); });
    ++open_;
    threads_.submit([this, answer = std::move(answer)] {
      without_errors(answer);
      --open_;
    });
    return Accepted(true);
  }
  // Every second without a new connection.
  void on_idle() override {
    without_errors([&] { end_those_open(kLongest); });
  }
  void shutdown() override {
    const auto end = Clock::now() + kLongestAtEnd;
    while (open_ > 0 && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    without_errors([&] { end_those_open({}); });
    threads_.wait_idle();
  }

  // Out of memory, a client stays without its answer: the run is worth more.
  template <class Body>
  static void without_errors(const Body& body) {
    try {
      body();
    } catch (const std::exception&) {
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Ends the connections that have been open for so long: their threads read the end of the file.
  void end_those_open(std::chrono::seconds longest) {
    std::map<std::pair<int, int>, Clock::time_point> open;  // by descriptor and the client's port
    const auto now = Clock::now();
    if (open_ > 0)
      for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        const int file = std::atoi(entry.path().filename().c_str());
        const int client = port_of(file, getpeername);
        if (client == 0 || port_of(file, getsockname) != port_) continue;
        const auto known = begun_.find({file, client});
        const auto begin = known == begun_.end() ? now : known->second;
        open[{file, client}] = begin;
        if (now - begin >= longest) ::shutdown(file, SHUT_RDWR);
      }
    begun_ = std::move(open);
  }

  ThreadPool& threads_;
  const int port_;
  std::atomic<int> open_ = 0;                               // connections
  std::map<std::pair<int, int>, Clock::time_point> begun_;  // belongs to the server's thread
};

class PrometheusSink : public MetricsSink {
 public:
  PrometheusSink(Env& env, const WatchOptions& watch)
      : env_(env),
        hosts_(allowed_hosts(watch)),
        connections_(kConnections, kKey),
        listener_(1, kKey) {
    set_limits(watch.prometheus_port);
    server_.Get("/metrics", [this](const httplib::Request& request, httplib::Response& response) {
      answer(request, response);
    });
    // Health probes use the address, and learn only that the run is alive.
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain");
    });
    bind(watch.prometheus_address, watch.prometheus_port);
    listener_.submit([this] {
      Connections::without_errors([this] { server_.listen_after_bind(); });
      ended_ = true;
    });
    while (!server_.is_running() && !ended_)
      std::this_thread::yield();  // stop() before the server runs is lost
    if (ended_) fail(ErrorKind::kRun, "the endpoint cannot start", kKey, "Remove it");
  }
  ~PrometheusSink() override {
    server_.stop();
    listener_.wait_idle();
  }

  void write(const MetricsRecord& record) override {
    const MutexLock lock(mutex_);
    set("step", "", double(record.step));
    set("epoch", "", record.epoch);
    set("samples", "", double(record.samples));
    set("time_seconds", "", record.time_s);
    // Lets an alert detect a run that makes no more steps.
    set("last_record_timestamp_seconds", "", double(unix_time_ns(env_)) * 1e-9);
    const std::string kind = fmt::format("{{kind=\"{}\"}}", record.kind);
    for (const auto& [name, value] : values_of(record)) set(name, kind, value);
    for (int i = 0; i < kPhaseCount; ++i)
      seconds_[fmt::format("{{phase=\"{}\"}}", phase_name(Phase(i)))] =
          record.phases_so_far[Phase(i)];
  }

 private:
  static constexpr const char* kKey = "watch.prometheus";

  void set_limits(int port) {
    server_.new_task_queue = [this, port] { return new Connections(connections_, port); };
    server_.set_idle_interval(1);
    server_.set_keep_alive_max_count(1);
    server_.set_keep_alive_timeout(kSilence);  // also the timeout for the first byte
    server_.set_read_timeout(kSilence);
    server_.set_write_timeout(kSilence);
    server_.set_payload_max_length(1024);
    // Without SO_REUSEPORT, which httplib would set: two runs must not share a port.
    server_.set_socket_options([](int socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
  }

  void bind(const std::string& address, int port) {
    errno = 0;
    if (server_.bind_to_port(address.c_str(), port)) return;
    if (errno == EADDRINUSE)
      fail(ErrorKind::kUsage, fmt::format("port {} of {} is taken", port, address), kKey,
           "Choose another port, or remove it");
    fail(ErrorKind::kUsage,
         fmt::format("cannot listen at {} port {}: {}", address, port,
                     errno != 0 ? std::strerror(errno) : "no such address"),
         kKey, "Give an address of this machine, or 0.0.0.0 for all that it has");
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    if (hosts_.contains("*") || hosts_.contains(name_in(request.get_header_value("Host"))))
      return response.set_content(text(), "text/plain; version=0.0.4; charset=utf-8");
    response.status = 403;
    response.set_content(
        "this run does not serve this Host name: add it to watch.prometheus after a comma\n",
        "text/plain");
  }

  // Names that observers give may have characters that Prometheus does not know.
  void set(std::string name, const std::string& labels, double value) NEEDS_LOCK(mutex_) {
    std::ranges::replace_if(name, std::not_fn(is_letter_or_digit), '_');
    gauges_["saturate_" + name][labels] = value;
  }

  static std::string family(const std::string& name, const char* type,
                            const std::map<std::string, double>& values) {
    std::string lines = fmt::format("# TYPE {} {}\n", name, type);
    for (const auto& [labels, value] : values)
      lines += fmt::format("{}{} {}\n", name, labels, value);
    return lines;
  }

  std::string text() {
    const MutexLock lock(mutex_);
    std::string lines;
    for (const auto& [name, values] : gauges_) lines += family(name, "gauge", values);
    if (!seconds_.empty()) lines += family("saturate_phase_seconds_total", "counter", seconds_);
    return lines;
  }

  Env& env_;
  const std::set<std::string> hosts_;  // "*": any
  Mutex mutex_;
  // By name, then labels.
  std::map<std::string, std::map<std::string, double>> gauges_ GUARDED_BY(mutex_);
  // By labels: the run's seconds so far, by phase.
  std::map<std::string, double> seconds_ GUARDED_BY(mutex_);
  httplib::Server server_;
  std::atomic<bool> ended_ = false;
  ThreadPool connections_, listener_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_prometheus_sink(Env& env, const WatchOptions& watch) {
  return std::make_unique<PrometheusSink>(env, watch);
}

}  // namespace saturate
