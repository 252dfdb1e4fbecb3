// metrics.csv, the Prometheus endpoint, and failing sinks in a run.
#include <gtest/gtest.h>
#include <ifaddrs.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/text.h"
#include "record/sinks.h"
#include "tests/data_testing.h"
#include "tests/fault_env.h"
#include "tests/port_testing.h"
#include "tests/thread_testing.h"
#include "tests/trainer_testing.h"

namespace saturate {
namespace {

using testing::address_of;
using testing::error_of;
using testing::free_port;
using testing::loopback;
using testing::quiet_options;
using testing::read_text;
using testing::TempDir;

Recipe every_step_recipe() {
  return testing::small_recipe("[watch]\nevery = 1\n");
}

TEST(CsvSink, HasARowForEachRecordAndAFieldForEachColumn) {
  const TempDir dir;
  Recipe recipe = every_step_recipe();
  recipe.watch.csv = true;
  Trainer(Env::posix(), recipe, quiet_options(dir.path())).run();
  const auto rows = split_text(read_text(dir / "metrics.csv"), '\n');
  const auto lines = split_text(read_text(dir / "metrics.jsonl"), '\n');
  ASSERT_EQ(rows.size(), lines.size() + 1) << "with a head";
  const auto head = split_text(rows[0], ',');
  EXPECT_EQ(head[0], "kind");
  for (size_t i = 1; i + 1 < rows.size(); ++i) {
    const auto fields = split_text(rows[i], ',');
    ASSERT_EQ(fields.size(), head.size()) << rows[i];
    const auto record = from_json_line(lines[i - 1]);
    EXPECT_EQ(fields[0], record->kind);
    EXPECT_EQ(fields[1], std::to_string(record->step));
    EXPECT_EQ(fields[5].empty(), !record->loss.has_value());
    if (record->loss) {
      EXPECT_EQ(std::stod(fields[5]), *record->loss);
    }
  }
}

TEST(CsvSink, AValueThatIsNotFiniteIsEmpty) {
  const TempDir dir;
  MetricsRecord record;
  record.kind = "eval";
  record.loss = std::nan("");
  record.values = {{"r2", -HUGE_VAL}};
  make_csv_sink(Env::posix(), dir.path(), {"r2"})->write(record);
  const auto fields = split_text(read_text(dir / "metrics.csv"), ',');
  EXPECT_EQ(fields[5], "");
  EXPECT_EQ(fields.back(), "\n");
}

TEST(CsvSink, QuotesTheNamesOfMetrics) {
  const TempDir dir;
  testing::write_file(dir / "metrics.jsonl", "");
  make_csv_sink(Env::posix(), dir.path(), {"iou,road", "a \"b\""})->start();
  const std::string head = read_text(dir / "metrics.csv");
  EXPECT_TRUE(head.ends_with(",\"iou,road\",\"a \"\"b\"\"\"\n")) << head;
}

TEST(CsvSink, AResumedRunDropsTheRowsItRepeats) {
  const TempDir dir;
  Recipe recipe = every_step_recipe();
  recipe.watch.csv = true;
  TrainerOptions options = quiet_options(dir.path());
  options.save = true;
  Trainer(Env::posix(), recipe, options).run();
  const auto whole = split_text(read_text(dir / "metrics.csv"), '\n');
  options.resume = dir / "checkpoints/step-00000004.safetensors";
  Trainer(Env::posix(), recipe, options).run();
  const auto again = split_text(read_text(dir / "metrics.csv"), '\n');
  ASSERT_EQ(again.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(split_text(again[i], ',')[0], split_text(whole[i], ',')[0]) << i;
}

TEST(CsvSink, ReadsALongRunInParts) {
  const TempDir dir;
  std::string lines;
  for (int step = 0; step < 30'000; ++step)
    lines += "{\"kind\":\"step\",\"step\":" + std::to_string(step) + ",\"loss\":0.25}\n";
  testing::write_file(dir / "metrics.jsonl", lines);
  FaultEnv env(Env::posix());
  make_csv_sink(env, dir.path())->start();
  EXPECT_EQ(split_text(read_text(dir / "metrics.csv"), '\n').size(), 30'002u) << "with a head";
  EXPECT_EQ(env.count({FileOp::kRead, "metrics.jsonl"}), 2u) << "MiB";
}

// The whole response; "refused" if nobody listens.
std::string ask(in_addr host, int port, const std::string& path, const std::string& name) {
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = address_of(host, port);
  std::string answer = "refused";
  if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(write(client, request.data(), request.size()), ssize_t(request.size()));
    answer.clear();
    char part[4096];
    for (ssize_t count; (count = read(client, part, sizeof part)) > 0;)
      answer.append(part, size_t(count));
  }
  close(client);
  return answer;
}

class PrometheusEndpoint : public ::testing::Test {
 protected:
  PrometheusEndpoint() {
    recipe.watch.tensorboard = false;
    recipe.watch.prometheus_port = port;
  }
  std::string own_name() const { return "127.0.0.1:" + std::to_string(port); }
  std::vector<std::shared_ptr<MetricsSink>> open() {
    return open_sinks(Env::posix(), recipe, dir.path(), 0);
  }
  const int port = free_port();
  TempDir dir;
  Recipe recipe = every_step_recipe();
};

TEST_F(PrometheusEndpoint, ReturnsTheLastFiguresAsText) {
  const auto sinks = open();
  ASSERT_EQ(sinks.size(), 1u);
  MetricsRecord record;
  record.kind = "step";
  record.step = 7;
  record.loss = 0.5;
  record.phases_so_far.seconds[size_t(Phase::kWait)] = 1.5;
  sinks[0]->write(record);
  record.loss = 0.25;
  record.phases_so_far.seconds[size_t(Phase::kWait)] = 3;
  sinks[0]->write(record);
  record.kind = "eval";
  record.phases_so_far.seconds[size_t(Phase::kEvaluation)] = 2;
  record.loss = 0.75;
  sinks[0]->write(record);
  const std::string answer = ask(loopback(), port, "/metrics", own_name());
  EXPECT_EQ(answer.substr(0, 15), "HTTP/1.1 200 OK");
  for (const char* line :
       {"# TYPE saturate_step gauge\nsaturate_step 7\n", "saturate_loss{kind=\"step\"} 0.25\n",
        "saturate_loss{kind=\"eval\"} 0.75\n", "saturate_last_record_timestamp_seconds 1",
        "# TYPE saturate_phase_seconds_total counter\n",
        "saturate_phase_seconds_total{phase=\"wait\"} 3\n",
        "saturate_phase_seconds_total{phase=\"evaluation\"} 2\n",
        "Content-Type: text/plain; version=0.0.4"})
    EXPECT_NE(answer.find(line), std::string::npos) << line << " in " << answer;
  EXPECT_NE(ask(loopback(), port, "/other", own_name()).find("404"), std::string::npos);
}

TEST_F(PrometheusEndpoint, AnswersOnlyToItsOwnName) {
  const auto sinks = open();
  EXPECT_NE(ask(loopback(), port, "/metrics", "evil.example:" + std::to_string(port)).find("403"),
            std::string::npos);
}

TEST_F(PrometheusEndpoint, ASilentClientDoesNotDelayOthers) {
  const auto sinks = open();
  std::vector<int> silent;
  for (int i = 0; i < 8; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = address_of(loopback(), port);
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
  }
  EXPECT_NE(ask(loopback(), port, "/metrics", own_name()).find("200 OK"), std::string::npos);
  for (const int client : silent) {  // that client is still connected
    char part;
    EXPECT_EQ(recv(client, &part, 1, MSG_DONTWAIT), -1) << "it was closed instead of kept waiting";
    EXPECT_EQ(errno, EAGAIN);
    close(client);
  }
}

// A byte a second is no silence.
TEST_F(PrometheusEndpoint, ASlowClientDoesNotDelayTheEndOfTheRun) {
  auto sinks = open();
  const int slow = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = address_of(loopback(), port);
  ASSERT_EQ(connect(slow, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  std::atomic<bool> is_closed = false;
  std::jthread writing([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && send(slow, "G", 1, MSG_NOSIGNAL) == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    is_closed = !stop.stop_requested();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the server reads
  sinks.clear();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_TRUE(is_closed);
  writing.request_stop();
  writing.join();
  close(slow);
}

TEST_F(PrometheusEndpoint, NoNumberOfClientsUsesUpTheFiles) {
  const auto sinks = open();
  std::vector<int> silent;
  const sockaddr_in address = address_of(loopback(), port);
  for (int i = 0; i < 200; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    connect(silent.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto files = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                   std::filesystem::directory_iterator());
  EXPECT_LT(files, 200 + 100) << "of the server";
  for (const int client : silent) close(client);
}

TEST_F(PrometheusEndpoint, AnswersAHealthProbe) {
  const auto sinks = open();
  const std::string answer = ask(loopback(), port, "/healthz", "10.1.2.3:9100");
  EXPECT_NE(answer.find("200 OK"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\nok\n")) << answer;
}

TEST_F(PrometheusEndpoint, AnswersToTheNamesThatTheUserAllows) {
  recipe.watch.prometheus_hosts = "node7, Cluster.example";
  const auto status = [&](const std::string& host) {
    return ask(loopback(), port, "/metrics", host).substr(9, 3);
  };
  {
    const auto sinks = open();
    const std::string at = ":" + std::to_string(port);
    for (const char* host :
         {"node7", "NODE7", "cluster.example", "localhost", "127.0.0.1", "[::1]"})
      EXPECT_EQ(status(host + at), "200") << host;
    EXPECT_EQ(status("node7"), "200") << "behind a forwarded port";
    for (const char* host : {"node71", "evil.example", "node7.evil.example", "10.0.0.1", "*"})
      EXPECT_EQ(status(host + at), "403") << host;
    EXPECT_NE(ask(loopback(), port, "/metrics", "other").find("add it to watch.prometheus"),
              std::string::npos);
  }
  recipe.watch.prometheus_hosts = "*";
  const auto sinks = open();
  EXPECT_EQ(status("whatever.example:1"), "200");
}

TEST_F(PrometheusEndpoint, ListensAtTheGivenAddress) {
  recipe.watch.prometheus_address = "127.0.0.2";
  {
    const auto sinks = open();
    EXPECT_EQ(ask(loopback(), port, "/healthz", own_name()), "refused");
    const in_addr other{htonl(INADDR_LOOPBACK + 1)};
    EXPECT_NE(ask(other, port, "/metrics", "127.0.0.2:1").find("200 OK"), std::string::npos);
  }
  recipe.watch.prometheus_address = "192.0.2.1";  // for documentation (RFC 5737), no machine's
  const Error error = error_of([&] { open(); });
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.where(), "watch.prometheus");
}

TEST_F(PrometheusEndpoint, ListensOnlyOnLoopbackByDefault) {
  const auto sinks = open();
  ifaddrs* all = nullptr;
  ASSERT_EQ(getifaddrs(&all), 0);
  int asked = 0;
  for (const ifaddrs* at = all; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET) continue;
    const in_addr host = reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    if ((ntohl(host.s_addr) >> 24) == 127) continue;
    EXPECT_EQ(ask(host, port, "/metrics", own_name()), "refused");
    ++asked;
  }
  freeifaddrs(all);
  if (asked == 0) GTEST_SKIP() << "this machine has no address but loopback";
}

TEST_F(PrometheusEndpoint, APortInUseIsAnErrorAndAnEndedRunFreesIt) {
  {
    const auto sinks = open();
    const Error error = error_of([&] { open(); });
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(error.where(), "watch.prometheus");
  }
  EXPECT_EQ(ask(loopback(), port, "/metrics", own_name()), "refused");
  EXPECT_EQ(open().size(), 1u);
}

TEST_F(PrometheusEndpoint, WithoutThreadsItIsOneError) {
  {
    const testing::NoMoreThreads none;
    const Error error = error_of([&] { open(); });
    EXPECT_EQ(error.exit_code(), 4);
    EXPECT_EQ(error.where(), "watch.prometheus");
  }
  EXPECT_EQ(open().size(), 1u);
}

TEST_F(PrometheusEndpoint, NeedsNoThreadForAConnection) {
  const auto sinks = open();
  const testing::NoMoreThreads none;
  EXPECT_NE(ask(loopback(), port, "/metrics", own_name()).find("200 OK"), std::string::npos);
}

TEST(FailingSink, WarnsOnceAndTheRunContinues) {
  for (const char* name : {"tfevents", "metrics.csv"}) {
    const TempDir dir;
    FaultEnv env(Env::posix());
    Recipe recipe = every_step_recipe();
    recipe.watch.csv = true;
    Trainer trainer(env, recipe, quiet_options(dir.path()));
    Fault fault;
    fault.match = {FileOp::kWrite, name};
    fault.skip = 2;
    env.inject(fault);
    ::testing::internal::CaptureStderr();
    const TrainResult result = trainer.run();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(result.steps, 8);
    EXPECT_EQ(split_text(said, '\n').size(), 2u) << said;
    for (const char* part : {"saturate: warning: ", "No space left on device", name})
      EXPECT_NE(said.find(part), std::string::npos) << part << " in " << said;
    EXPECT_EQ(split_text(read_text(dir / "metrics.jsonl"), '\n').size(), 8u + 2 + 1 + 1);
    const bool csv = name == std::string("metrics.csv");
    EXPECT_EQ(split_text(read_text(dir / "metrics.csv"), '\n').size() == 13, !csv)
        << "the other sink writes";
  }
}

}  // namespace
}  // namespace saturate
