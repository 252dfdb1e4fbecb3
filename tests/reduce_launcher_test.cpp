// The launcher, with processes that are not training runs: bash as each rank, launchers of several
// machines as threads.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "reduce/heartbeat.h"
#include "reduce/sockets.h"
#include "saturate/launcher.h"
#include "tests/data_testing.h"

namespace saturate {
namespace {

using testing::error_of;
using testing::TempDir;
using Json = nlohmann::json;

int no_signal() {
  return 0;
}

LaunchOptions bash_options(int processes, const std::string& script) {
  LaunchOptions options;
  options.processes = processes;
  options.program = "/bin/bash";
  options.arguments = {"-c", script};
  return options;
}

// The options of one of two machines, with a process each.
LaunchOptions of_node(int node, int port, const std::string& script) {
  LaunchOptions options = bash_options(1, script);
  options.nodes = 2;
  options.node = node;
  options.port = port;
  options.grace_s = 0.2;
  return options;
}

int port_of_launchers() {
  const int found = listen_at("127.0.0.1", 0), port = port_of(found);
  close(found);
  return port;
}

bool becomes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// While it exists, standard error is redirected.
class ErrorsTo {
 public:
  explicit ErrorsTo(int descriptor) : before_(dup(STDERR_FILENO)) {
    dup2(descriptor, STDERR_FILENO);
  }
  ~ErrorsTo() {
    dup2(before_, STDERR_FILENO);
    close(before_);
  }
  ErrorsTo(const ErrorsTo&) = delete;
  ErrorsTo& operator=(const ErrorsTo&) = delete;

 private:
  const int before_;
};

// As a rank that has not yet installed its signal handlers.
TEST(Launcher, AProcessThatTheForwardedSignalEndsIsStoppedAndNotFailed) {
  LaunchOptions options;
  options.processes = 2;
  options.restarts = 3;
  options.program = "/bin/sleep";
  options.arguments = {"600"};
  EXPECT_EQ(launch(options, [] { return SIGTERM; }), 128 + SIGTERM);
}

// As in set-up, where the others lose a process that a signal stopped.
TEST(Launcher, ThoseThatLoseAStoppedProcessAreStoppedToo) {
  for (const int stopped : {0, 1}) {
    LaunchOptions options = bash_options(2, "if [ $RANK = " + std::to_string(stopped) +
                                                " ]; then sleep 0.2; exit 143; fi\n"
                                                "echo lost a peer >&$SATURATE_REPORT_FD; exit 4");
    options.restarts = 3;
    EXPECT_EQ(launch(options, no_signal), 128 + SIGTERM);
  }
}

TEST(Launcher, TheFirstFailedRankIsBlamedHoweverLateItEnds) {
  const Error error = error_of([] {
    launch(
        bash_options(2,
                     "if [ $RANK = 0 ]; then echo lost a peer >&$SATURATE_REPORT_FD; exit 4; fi\n"
                     "sleep 1; exit 3"),
        no_signal);
  });
  EXPECT_EQ(error.reason(), "rank 1 failed with exit code 3");
  EXPECT_EQ(error.exit_code(), 3);
}

// Its last report may be a second old.
TEST(Launcher, APositionOfAKilledRankIsItsLastReport) {
  const Error error = error_of([] {
    launch(bash_options(1, "echo at step 3, in forward >&$SATURATE_REPORT_FD; kill -9 $$"),
           no_signal);
  });
  EXPECT_EQ(error.reason(), "rank 0 was ended by signal 9 (KILL)");
  EXPECT_EQ(error.where(), "last report: step 3, in forward; it may have continued");
}

// Votes beside long work set the mark now and then.
TEST(Launcher, ARankIsReportedAsStalledUnlessItWaitsForOthers) {
  const TempDir dir;
  LaunchOptions options =
      bash_options(2,
                   "place='at step 3, in forward'\n"
                   "while sleep 0.1; do\n"
                   "  echo \"$place, waiting for other ranks\" >&$SATURATE_REPORT_FD\n"
                   "  [ $RANK = 0 ] || echo \"$place\" >&$SATURATE_REPORT_FD\n"
                   "done");
  options.stall_s = 4;
  const int file = open((dir / "said").c_str(), O_CREAT | O_WRONLY, 0600);
  std::optional<std::chrono::steady_clock::time_point> seen;
  const auto begin = std::chrono::steady_clock::now();
  const auto stop = [&] {
    const auto now = std::chrono::steady_clock::now();
    const bool there =
        testing::read_text(dir / "said").find("rank 1 (process ") != std::string::npos;
    if (there && !seen) seen = now;
    const bool enough = seen && now - *seen > std::chrono::seconds(1);
    return enough || now - begin > std::chrono::seconds(60) ? SIGTERM : 0;
  };
  {
    const ErrorsTo errors(file);
    EXPECT_EQ(launch(options, stop), 128 + SIGTERM);
  }
  close(file);
  const std::string said = testing::read_text(dir / "said");
  EXPECT_NE(said.find(" s: step 3, in forward"), std::string::npos) << said;
  EXPECT_EQ(said.find("rank 0 (process "), std::string::npos) << said;
}

// The remedy of its failure, with standard error redirected there.
std::string remedy_at(int errors) {
  const ErrorsTo there(errors);
  return error_of([&] { launch(bash_options(1, "echo the disk is full >&2; exit 4"), no_signal); })
      .remedy();
}

TEST(Launcher, ForARankOnATerminalNoLastLinesArePromised) {
  const int nowhere = open("/dev/null", O_WRONLY);
  EXPECT_EQ(remedy_at(nowhere), "See its last lines");
  close(nowhere);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
    GTEST_SKIP() << "this system gives no terminal";
  const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  EXPECT_EQ(remedy_at(end), "See its output above");
  close(end);
  close(terminal);
}

// With `stty tostop` the system stops background processes that write to their terminal.
TEST(Launcher, OutputDoesNotStopARankOnATerminal) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
    GTEST_SKIP() << "this system gives no terminal";
  const std::string name = ptsname(terminal);
  const pid_t launcher = fork();
  if (launcher == 0) {
    alarm(60);
    setsid();
    const int end = open(name.c_str(), O_RDWR);  // this session's terminal
    termios settings{};
    tcgetattr(end, &settings);
    settings.c_lflag |= TOSTOP;
    tcsetattr(end, TCSANOW, &settings);
    dup2(end, STDERR_FILENO);
    try {
      _exit(launch(bash_options(1, "echo a line >&2"), no_signal));
    } catch (...) {
      _exit(1);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_EQ(status, 0) << "its rank was stopped";
  close(terminal);
}

// The run goes on while the heartbeat's thread reads its position.
TEST(Heartbeat, ReportsEachPositionAndWhetherTheRunWaits) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  setenv(kReportVariable, std::to_string(ends[1]).c_str(), 1);
  std::atomic<int> step = 0;
  auto heartbeat = start_heartbeat([&] { return fmt::format("step {}", step.load()); });
  ASSERT_TRUE(heartbeat);
  std::string heard;
  const auto hears = [&](const std::string& line) {
    return becomes_true([&] {
      char bytes[256];
      const ssize_t count = ::read(ends[0], bytes, sizeof bytes);
      if (count > 0) heard.append(bytes, size_t(count));
      return heard.find(line + "\n") != std::string::npos;
    });
  };
  EXPECT_TRUE(hears("at step 0")) << heard;
  {
    const WaitingForOthers waiting;
    step = 7;
    EXPECT_TRUE(hears("at step 7, waiting for other ranks")) << heard;
  }
  EXPECT_TRUE(hears("at step 7")) << heard;
  heartbeat.reset();
  unsetenv(kReportVariable);
  EXPECT_FALSE(start_heartbeat([] { return ""; }));
  close(ends[0]);
  close(ends[1]);
}

// Each launcher has a thread, and forks beside the other's: under ThreadSanitizer the child may
// hang before it is bash.
class LaunchersOfMachines : public ::testing::Test {
 protected:
  void SetUp() override {
#if SATURATE_TSAN
    GTEST_SKIP() << "ThreadSanitizer may hang in a process that forks beside other threads";
#endif
  }
};

TEST_F(LaunchersOfMachines, RestartTogetherWithTheAttemptOfNode0) {
  const TempDir dir;
  const int port = port_of_launchers();
  const std::string script =
      "case $TORCHELASTIC_RESTART_COUNT$RANK in 01) kill -9 $$;; 00) exec sleep 600;; esac\n"
      "echo $TORCHELASTIC_RESTART_COUNT $MASTER_PORT >" +
      (dir / "$RANK");
  std::vector<std::future<int>> codes;
  for (int node : {0, 1}) {
    LaunchOptions options = of_node(node, port, script);
    options.restarts = node == 0 ? 1 : 0;
    codes.push_back(
        std::async(std::launch::async, [options] { return launch(options, no_signal); }));
  }
  for (auto& code : codes) EXPECT_EQ(code.get(), 0);
  const std::string first = testing::read_text(dir / "0");
  EXPECT_TRUE(first.starts_with("1 ")) << first;
  EXPECT_EQ(testing::read_text(dir / "1"), first) << "the same attempt, and the same store";
}

TEST_F(LaunchersOfMachines, AFailureOnOneEndsAllAndIsNamedByEach) {
  const int port = port_of_launchers();
  std::vector<std::future<Error>> errors;
  for (int node : {0, 1}) {
    LaunchOptions options = of_node(node, port, "[ $RANK = 1 ] && exit 3; exec sleep 600");
    options.restarts = 5;
    errors.push_back(std::async(
        std::launch::async, [options] { return error_of([&] { launch(options, no_signal); }); }));
  }
  for (auto& future : errors) {
    const Error error = future.get();
    EXPECT_EQ(error.reason(), "rank 1 of node 1 failed with exit code 3");
    EXPECT_EQ(error.exit_code(), 3) << "it would fail again";
  }
}

TEST_F(LaunchersOfMachines, DifferentOptionsAreRefused) {
  const int port = port_of_launchers();
  std::atomic<int> stop = 0;
  auto first = std::async(std::launch::async, [&] {
    return launch(of_node(0, port, "exec sleep 600"), [&] { return stop.load(); });
  });
  LaunchOptions options = of_node(1, port, "exit 0");
  options.processes = 2;
  const Error more = error_of([&] { launch(options, no_signal); });
  EXPECT_EQ(more.exit_code(), 2);
  EXPECT_EQ(more.reason(), "node 1 has --nproc-per-node 2, and node 0 1");
  const Error third = error_of([&] { launch(of_node(2, port, "exit 0"), no_signal); });
  EXPECT_EQ(third.reason(), "--node-rank 2 is not one of 1 to 1");
  stop = SIGTERM;
  EXPECT_EQ(first.get(), 128 + SIGTERM);
}

TEST_F(LaunchersOfMachines, AnEndedLauncherEndsTheProcessesOfAll) {
  const TempDir dir;
  const std::string script = "touch " + (dir / "$RANK") + "; exec sleep 600";
  const auto started = [&](const char* rank) {
    return becomes_true([&] { return std::filesystem::exists(dir / rank); });
  };
  const int port = port_of_launchers();
  auto first = std::async(std::launch::async, [&] {
    LaunchOptions options = of_node(0, port, script);
    options.restarts = 5;
    return error_of([&] { launch(options, no_signal); });
  });
  ASSERT_TRUE(started("0"));
  {
    Wire other(connect_to("127.0.0.1", port, 60));
    other.say({{"say", "hello"}, {"node", 1}, {"nodes", 2}, {"processes", 1}});
    std::string said;
    const auto heard = [&] {
      other.hear([&](const Json& message) { said = message.at("say").get<std::string>(); });
      return !said.empty();
    };
    ASSERT_TRUE(becomes_true(heard));
    EXPECT_EQ(said, "start");
  }
  Error error = first.get();
  EXPECT_EQ(error.reason(), "the launcher of node 1 is gone");
  EXPECT_EQ(error.exit_code(), 4);

  const int listening = listen_at("127.0.0.1", 0);
  auto second = std::async(std::launch::async, [&] {
    return error_of([&] { launch(of_node(1, port_of(listening), script), no_signal); });
  });
  {
    Wire other(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
    const Json none = {{"failed", false}, {"followed", false}, {"signal", 0}, {"node", 0},
                       {"kind", 4},       {"what", ""},        {"where", ""}};
    other.say({{"say", "start"}, {"attempt", 0}, {"port", 1}, {"restart", ""}, {"ending", none}});
    ASSERT_TRUE(started("1"));
  }
  error = second.get();
  EXPECT_EQ(error.reason(), "the launcher of node 0 is gone");
  EXPECT_EQ(error.exit_code(), 4);
  close(listening);
}

TEST_F(LaunchersOfMachines, WaitingForAFirstOneThatNeverRespondsEnds) {
  const int listening = listen_at("127.0.0.1", 0);
  LaunchOptions options = of_node(1, port_of(listening), "exit 0");
  options.rendezvous_s = 1;
  const Error error = error_of([&] { launch(options, no_signal); });
  EXPECT_EQ(error.reason(), "node 0's launcher did not answer within 1 s");
  EXPECT_EQ(error.where(), fmt::format("127.0.0.1:{}", options.port));
  EXPECT_EQ(error.exit_code(), 4);
  close(listening);
  options.rendezvous_s = 60;
  EXPECT_EQ(launch(options, [] { return SIGINT; }), 128 + SIGINT) << "it handles signals meanwhile";
}

// As Debian's /etc/hosts names a machine.
TEST_F(LaunchersOfMachines, AFirstOneWhoseNameIsLoopbackEndsAtOnce) {
  LaunchOptions options = of_node(0, port_of_launchers(), "exit 0");
  options.master = "localhost";
  const Error error = error_of([&] { launch(options, no_signal); });
  EXPECT_NE(error.remedy().find("/etc/hosts"), std::string::npos) << error.what();
  EXPECT_EQ(error.exit_code(), 2);
}

// A stranger that connects, or sends something else than a launcher, changes nothing.
TEST_F(LaunchersOfMachines, StrangersAreIgnored) {
  const int port = port_of_launchers();
  std::atomic<int> stop = 0;
  auto first = std::async(std::launch::async, [&] {
    return launch(of_node(0, port, "exec sleep 600"), [&] { return stop.load(); });
  });
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("{\"say\":\"failing\",\"attempt\":0}\n"),
        std::string("[1]\n"), std::string("{\"say\":\"hello\",\"node\":{}}\n"),
        std::string(200000, '[')}) {
    int stranger = -1;
    ASSERT_TRUE(becomes_true([&] { return (stranger = connect_to("127.0.0.1", port, 60)) >= 0; }));
    (void)!send(stranger, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(stranger, SHUT_WR);
    pollfd polled{stranger, POLLIN, 0};
    EXPECT_EQ(poll(&polled, 1, 60000), 1) << "the connection is closed: " << text.substr(0, 40);
    close(stranger);
  }
  EXPECT_EQ(first.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  stop = SIGTERM;
  EXPECT_EQ(first.get(), 128 + SIGTERM);
}

}  // namespace
}  // namespace saturate
