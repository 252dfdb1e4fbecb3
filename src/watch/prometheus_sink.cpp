// A run's present figures over HTTP, in Prometheus's text format, to this machine alone.
#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "saturate/error.h"
#include "watch/sink_list.h"

namespace saturate {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// A page of another site can make a browser ask a loopback address, but not under its own name.
bool is_for_this_machine(const httplib::Request& request, int port) {
  const std::string host = request.get_header_value("Host");
  return host == fmt::format("{}:{}", kLoopback, port) || host == fmt::format("localhost:{}", port);
}

class PrometheusSink : public MetricsSink {
 public:
  explicit PrometheusSink(int port) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(1); };
    server_.set_keep_alive_max_count(1);
    server_.set_read_timeout(2);
    server_.set_write_timeout(2);
    server_.set_payload_max_length(1024);
    // As a run's endpoint must be told from another's: without SO_REUSEPORT, which httplib would
    // set.
    server_.set_socket_options([](int socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.Get("/metrics",
                [this, port](const httplib::Request& request, httplib::Response& response) {
                  if (!is_for_this_machine(request, port)) {
                    response.status = 403;
                    return;
                  }
                  response.set_content(text(), "text/plain; version=0.0.4; charset=utf-8");
                });
    if (!server_.bind_to_port(kLoopback, port))
      fail(ErrorKind::kUsage, fmt::format("port {} of {} is taken", port, kLoopback),
           "watch.prometheus_port", "Choose another one, or 0 for none");
    thread_ = std::thread([this] {
      server_.listen_after_bind();
      ended_ = true;
    });
    while (!server_.is_running() && !ended_)
      std::this_thread::yield();  // before that, stop() is lost
  }
  ~PrometheusSink() override {
    server_.stop();
    thread_.join();
  }

  void write(const MetricsRecord& record) override {
    std::lock_guard lock(mutex_);
    set("step", "", double(record.step));
    set("epoch", "", record.epoch);
    set("samples", "", double(record.samples));
    set("time_seconds", "", record.time_s);
    const std::string kind = fmt::format("{{kind=\"{}\"}}", record.kind);
    for (const auto& [name, value] : values_of(record)) set(name, kind, value);
    if (record.kind != "step" || !record.phases) return;
    for (int i = 0; i < kPhaseCount; ++i)
      seconds_[fmt::format("{{phase=\"{}\"}}", phase_name(Phase(i)))] += (*record.phases)[Phase(i)];
  }

 private:
  void set(const std::string& name, const std::string& labels, double value) {
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
    std::lock_guard lock(mutex_);
    std::string lines;
    for (const auto& [name, values] : gauges_) lines += family(name, "gauge", values);
    if (!seconds_.empty()) lines += family("saturate_phase_seconds_total", "counter", seconds_);
    return lines;
  }

  std::mutex mutex_;
  std::map<std::string, std::map<std::string, double>> gauges_;  // by name, then labels
  std::map<std::string, double> seconds_;  // by labels: of the steps so far, by phase
  httplib::Server server_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_prometheus_sink(int port) {
  return std::make_unique<PrometheusSink>(port);
}

}  // namespace saturate
