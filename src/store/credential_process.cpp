// Keys from the command of a profile's credential_process.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <source_location>
#include <thread>
#include <utility>

#include "base/cancel.h"
#include "saturate/data/error.h"
#include "store/credential_exchange.h"
#include "store/http_calls.h"

namespace saturate {
namespace {

constexpr size_t kMostOutput = 64 << 10;  // bytes
constexpr auto kMostTime = std::chrono::seconds(60);
constexpr auto kMostEndTime = std::chrono::seconds(5);  // after the end of its output
constexpr const char* kRemedy =
    "Run the command, and check that it prints keys as JSON, version 1; if its session has ended, "
    "sign in again (aws sso login)";

[[noreturn]] void fail_process(const std::string& what, const std::string& origin) {
  fail(ErrorKind::kRun, what, origin, kRemedy);
}

// The next run of the command may succeed.
[[noreturn]] void fail_for_now(const std::string& what, const std::string& origin) {
  throw NoAnswer(ErrorKind::kRun, what, origin, kRemedy, std::source_location::current());
}

struct Pipe {
  int ends[2] = {-1, -1};  // to read from, to write to
  ~Pipe() {
    for (const int end : ends)
      if (end >= 0) ::close(end);
  }
};

// A shell that runs the command in a separate session, so that it cannot ask on the terminal. Its
// output goes to `out`, and its messages nowhere, because they may hold keys. It blocks no signals,
// as this thread may do, and SIGPIPE ends it, also if this process ignores it.
pid_t start_shell(const std::string& command, int out, const std::string& origin) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigaddset(&signals, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::string words[] = {"sh", "-c", command};
  char* pointers[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawn(&child, "/bin/sh", &actions, &attributes, pointers, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) fail_process("cannot be run", origin);
  return child;
}

// Reads until the end; fails if that is too much or takes too long.
std::string read_output(int from, const std::string& origin) {
  const auto limit = std::chrono::steady_clock::now() + kMostTime;
  std::string text;
  while (true) {
    if (is_cancelled()) fail_cancelled(origin);
    if (std::chrono::steady_clock::now() > limit) fail_for_now("takes more than 60 s", origin);
    pollfd waiting{from, POLLIN, 0};
    if (::poll(&waiting, 1, 50) <= 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(from, buffer, sizeof buffer);
    if (got < 0) continue;
    if (got == 0) return text;
    text.append(buffer, size_t(got));
    if (text.size() > kMostOutput) fail_process("prints more than keys", origin);
  }
}

// The status of the shell, which has closed its output.
int wait_for_end(pid_t child, const std::string& origin) {
  const auto limit = std::chrono::steady_clock::now() + kMostEndTime;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (is_cancelled()) fail_cancelled(origin);
    if (std::chrono::steady_clock::now() > limit)
      fail_for_now("has closed its output but does not end", origin);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return status;
}

void require_success(int status, const std::string& origin) {
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // The shell's codes of a command that was killed; those of the AWS command line begin at 252.
  if (code > 128 && code <= 192)
    fail_for_now("is ended by signal " + std::to_string(code - 128), origin);
  if (code != 0) fail_process("ends with code " + std::to_string(code), origin);
}

}  // namespace

Credentials run_credential_process(const CredentialService& service) {
  Pipe channel;
  if (::pipe2(channel.ends, O_CLOEXEC) != 0) fail_process("cannot be run", service.origin);
  const pid_t child = start_shell(service.command, channel.ends[1], service.origin);
  ::close(std::exchange(channel.ends[1], -1));
  std::string text;
  int status = 0;
  try {
    text = read_output(channel.ends[0], service.origin);
    status = wait_for_end(child, service.origin);
  } catch (...) {
    ::kill(-child, SIGKILL);
    ::waitpid(child, &status, 0);
    throw;
  }
  require_success(status, service.origin);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) fail_process("prints no JSON", service.origin);
  const auto version = json.find("Version");
  if (version == json.end() || *version != 1)
    fail_process("prints no keys of version 1", service.origin);
  return credentials_of(json, "SessionToken", service.origin, kRemedy);
}

}  // namespace saturate
