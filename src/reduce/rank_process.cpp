#include "reduce/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/printable.h"
#include "reduce/heartbeat.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kLastLines = 10;
constexpr int kCannotStart = 127;  // the shell's code

[[noreturn]] void fail_system(const char* what) {
  fail(ErrorKind::kRun, fmt::format("{}: {}", what, std::strerror(errno)), "saturate launch",
       "Lower --nproc-per-node, or raise the limits on processes and open files");
}

struct Ends {
  Descriptor ours, theirs;
};

Ends make_socket() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail_system("no socket to a new process");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// The launcher's handlers would lose a signal that arrives before execv().
void take_signals(const sigset_t& mask) {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) signal(number, SIG_DFL);
  }
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

// Runs in the forked child, which has one thread and signals blocked; never returns.
[[noreturn]] void become(const RankCommand& command, pid_t launcher, int out, int err, int reports,
                         const sigset_t& mask) {
  setpgid(0, 0);
  signal(SIGTTOU, SIG_IGN);  // or after `stty tostop` its output would stop it
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(kCannotStart);  // the launcher ended before prctl took effect
  const auto keep = [](int descriptor, const char* variable) {
    fcntl(descriptor, F_SETFD, 0);
    setenv(variable, std::to_string(descriptor).c_str(), 1);
  };
  if (out >= 0) dup2(out, STDOUT_FILENO);
  if (err >= 0) dup2(err, STDERR_FILENO);
  keep(reports, kReportVariable);
  if (command.listening >= 0) keep(command.listening, "SATURATE_LISTEN_FD");
  for (const auto& [name, value] : command.variables) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv = {program_invocation_name};  // by which its messages name commands
  for (const auto& argument : command.arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  take_signals(mask);
  execv(command.program.c_str(), argv.data());
  _exit(kCannotStart);
}

}  // namespace

RankProcess::RankProcess(int rank, const RankCommand& command) : rank_(rank) {
  on_terminal_ = rank == 0 && isatty(STDERR_FILENO) != 0;
  const bool own_out = rank > 0, own_err = !on_terminal_;
  Ends out = make_socket(), err = make_socket(), reports = make_socket();
  std::fflush(nullptr);
  const pid_t launcher = getpid();
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  pid_ = fork();
  if (pid_ == 0)
    become(command, launcher, own_out ? out.theirs.get() : -1, own_err ? err.theirs.get() : -1,
           reports.theirs.get(), mask);
  const int why = errno;
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  errno = why;
  if (pid_ < 0) fail_system("cannot start a process");
  if (own_out) out_.descriptor = std::move(out.ours);
  if (own_err) err_.descriptor = std::move(err.ours);
  reports_.descriptor = std::move(reports.ours);
}

RankProcess::~RankProcess() {
  if (status_) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::vector<int> RankProcess::descriptors() const {
  std::vector<int> open;
  for (const Stream* stream : {&out_, &err_, &reports_})
    if (stream->descriptor.get() >= 0) open.push_back(stream->descriptor.get());
  return open;
}

void RankProcess::read(Stream& stream, void (RankProcess::*take)(const std::string&)) {
  std::array<char, 4096> bytes;
  while (stream.descriptor.get() >= 0) {
    const ssize_t count = ::read(stream.descriptor.get(), bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (count <= 0) {
      if (!stream.rest.empty()) (this->*take)(std::exchange(stream.rest, {}));
      stream.descriptor.reset();
      break;
    }
    stream.rest.append(bytes.data(), size_t(count));
    for (size_t end; (end = stream.rest.find('\n')) != std::string::npos;) {
      (this->*take)(stream.rest.substr(0, end));
      stream.rest.erase(0, end + 1);
    }
  }
}

void RankProcess::read_all() {
  read(out_, &RankProcess::take_output);
  read(err_, &RankProcess::take_output);
  read(reports_, &RankProcess::take_report);
}

void RankProcess::take_output(const std::string& line) {
  print_line_of_rank(rank_, line);
  last_lines_.push_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
}

void RankProcess::take_report(const std::string& line) {
  const std::string_view folder = kFolderLine, position = kPositionLine;
  heard_ = Clock::now();
  if (line == kLostLine) {
    lost_peer_ = true;
  } else if (line.starts_with(folder)) {
    folder_ = line.substr(folder.size());
  } else if (line.starts_with(position)) {
    std::string now = line.substr(position.size());
    const auto place = [mark = std::string_view(kWaitingMark)](std::string_view at) {
      return at.substr(0, at.size() - (at.ends_with(mark) ? mark.size() : 0));
    };
    if (place(now) != place(position_)) moved_ = heard_;  // votes beside work set the mark at times
    position_ = std::move(now);
  }
}

bool RankProcess::ended() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
    read_all();
  }
  return status_.has_value();
}

int RankProcess::exit_code() const {
  return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
}

bool RankProcess::killed() const {
  return !WIFEXITED(*status_);
}

void RankProcess::signal(int number) const {
  if (!status_) ::kill(pid_, number);
}

}  // namespace saturate
