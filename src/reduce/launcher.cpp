#include "saturate/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/printable.h"
#include "base/thread_pool.h"
#include "reduce/heartbeat.h"
#include "reduce/nodes.h"
#include "reduce/rank_process.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using Clock = RankProcess::Clock;

constexpr int kPollMs = 100;
constexpr double kStopStalls = 5;  // times stall_s: saving a checkpoint makes no steps

void say(const std::string& text) {
  print_log(LogLevel::kInfo, "saturate launch", printable(text));
}

bool is_interruption(int code) {
  return code == 128 + SIGINT || code == 128 + SIGTERM;
}

std::string how_it_ended(const RankProcess& rank) {
  if (!rank.killed()) return fmt::format("failed with exit code {}", rank.exit_code());
  const int number = rank.exit_code() - 128;
  return fmt::format("was ended by signal {} ({})", number, sigabbrev_np(number));
}

// One attempt: all processes of this machine, from start to end.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, const Start& start, const std::string& folder, Nodes& nodes,
          const std::function<int()>& stop_signal)
      : options_(options), nodes_(nodes), stop_signal_(stop_signal) {
    for (int local = 0; local < options.processes; ++local)
      ranks_.push_back(std::make_unique<RankProcess>(
          options.node * options.processes + local,
          command(local, start, folder, local == 0 ? start.listening.get() : -1)));
    warned_s_.assign(ranks_.size(), options.stall_s);
  }

  Ending run() {
    while (step()) {
    }
    return ending();
  }

  // The last lines of the process that failed here, or where to find them.
  void show_last_lines() const {
    if (failed_->last_lines().empty()) return;
    say(fmt::format("the last lines of rank {}:", failed_->rank()));
    for (const auto& line : failed_->last_lines())
      logs_json() ? print_line_of_rank(failed_->rank(), line)
                  : print_log(LogLevel::kInfo, "", "  " + line);
  }
  const char* where_its_lines_are() const {
    if (failed_->on_terminal()) return "See its output above";
    return failed_->last_lines().empty() ? "It printed nothing" : "See its last lines";
  }

  int exit_code() const {
    int code = 0;
    for (const auto& rank : ranks_) code = std::max(code, rank->exit_code());
    return code;
  }

  std::string folder() const { return ranks_.front()->folder(); }

 private:
  RankCommand command(int local, const Start& start, const std::string& folder,
                      int listening) const {
    const int world = options_.nodes * options_.processes;
    const int threads = std::max(1, available_cores() / options_.processes);
    RankCommand made{options_.program, options_.arguments, {}, listening};
    made.variables = {{"RANK", std::to_string(options_.node * options_.processes + local)},
                      {"WORLD_SIZE", std::to_string(world)},
                      {"LOCAL_RANK", std::to_string(local)},
                      {"LOCAL_WORLD_SIZE", std::to_string(options_.processes)},
                      {"MASTER_ADDR", options_.master},
                      {"MASTER_PORT", std::to_string(start.port)},
                      {"TORCHELASTIC_RESTART_COUNT", std::to_string(start.number)},
                      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                      {"SATURATE_LAUNCHED", "1"}};
    if (!std::getenv("OMP_NUM_THREADS"))
      made.variables.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    if (!folder.empty()) made.variables.emplace_back("SATURATE_RESTART_FOLDER", folder);
    return made;
  }

  // False once all have ended.
  bool step() {
    std::vector<pollfd> polled;
    for (const auto& rank : ranks_)
      for (int descriptor : rank->descriptors()) polled.push_back({descriptor, POLLIN, 0});
    for (int descriptor : nodes_.descriptors()) polled.push_back({descriptor, POLLIN, 0});
    poll(polled.data(), polled.size(), kPollMs);
    nodes_.hear();
    bool running = false;
    for (const auto& rank : ranks_) {
      rank->read_all();
      if (rank->ended())
        note_end(*rank);
      else
        running = true;
    }
    if (!running) return false;
    if (const int signal = stop_signal_(); signal != 0 && !std::exchange(signalled_, true)) {
      signalled_at_ = Clock::now();
      for (const auto& rank : ranks_) rank->signal(signal);
    }
    if (nodes_.failed()) {
      end_all();
      return true;
    }
    if (signalled_)
      end_stalled();
    else
      report_stalls();
    return true;
  }

  // The cause is the first process that failed without losing a peer, however long it took to end:
  // others may have ended before it because of it. If several end at once, one that a signal ended
  // is not a consequence of another.
  void note_end(const RankProcess& rank) {
    const int code = rank.exit_code();
    const bool stopped = is_interruption(code) && !rank.killed();
    stopped_ |= stopped;
    if (code == 0 || stopped || ended_by_us_) return;
    if (!failed_) {
      failed_at_ = Clock::now();
      failed_ = &rank;
      nodes_.tell_failed();
    }
    const bool at_once = seconds_since(failed_at_) < 1e-3 * kPollMs;
    if ((failed_->lost_peer() && !rank.lost_peer()) ||
        (at_once && rank.killed() && !failed_->killed()))
      failed_ = &rank;
  }

  // Lets them end without a signal for a grace period.
  void end_all() {
    if (!ending_since_) {
      ending_since_ = Clock::now();
      if (!failed_) say("the run has failed on another machine: its processes here are ended too");
    }
    if (seconds_since(*ending_since_) <= options_.grace_s) return;
    ended_by_us_ = true;
    for (const auto& rank : ranks_) rank->signal(SIGKILL);
  }

  Ending ending() const {
    // Those that lose a process which was told to stop are told to stop too.
    if (!failed_ || (stopped_ && failed_->lost_peer())) return {.node = options_.node};
    const RankProcess& rank = *failed_;
    const std::string where = options_.nodes > 1 ? fmt::format(" of node {}", options_.node) : "";
    return {.failed = true,
            .followed = rank.lost_peer(),
            .signal = rank.killed() ? rank.exit_code() - 128 : 0,
            .node = options_.node,
            .kind = rank.killed() ? ErrorKind::kRun : kind_of_code(rank.exit_code()),
            .what = fmt::format("rank {}{} {}", rank.rank(), where, how_it_ended(rank)),
            .where = last_place(rank)};
  }

  // Positions are reported once a second, and a process that is killed makes no last report.
  static std::string last_place(const RankProcess& rank) {
    return rank.position().empty()
               ? fmt::format("process {}", rank.pid())
               : fmt::format("last report: {}; it may have continued", rank.position());
  }

  // Kills processes that were told to stop but neither stop nor make progress.
  void end_stalled() {
    const double most = kStopStalls * options_.stall_s;
    if (seconds_since(signalled_at_) < most) return;
    for (const auto& rank : ranks_) {
      if (rank->ended() || seconds_since(rank->moved()) < most) continue;
      say(fmt::format("rank {} (process {}) was told to stop and has not moved for {:.0f} s: ended",
                      rank->rank(), rank->pid(), seconds_since(rank->moved())));
      rank->signal(SIGKILL);
    }
  }

  // Repeats the report each time the waiting time has doubled.
  void report_stalls() {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      RankProcess& rank = *ranks_[i];
      const double silent = seconds_since(rank.heard()), still = seconds_since(rank.moved());
      // It waits for other ranks, one of which is at fault.
      const bool waits = silent < options_.stall_s / 2 && (rank.position().ends_with(" reduce") ||
                                                           rank.position().ends_with(kWaitingMark));
      if (rank.ended() || still < options_.stall_s || waits) {
        warned_s_[i] = options_.stall_s;
        continue;
      }
      if (still < warned_s_[i]) continue;
      warned_s_[i] = 2 * still;
      const std::string where = rank.position().empty() ? "still starting" : rank.position();
      say(fmt::format("rank {} (process {}) has not moved for {:.0f} s: {}{}", rank.rank(),
                      rank.pid(), still, where,
                      silent < options_.stall_s / 2 ? "" : ", and it does not respond"));
    }
  }

  const LaunchOptions& options_;
  Nodes& nodes_;
  const std::function<int()>& stop_signal_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<double> warned_s_;
  const RankProcess* failed_ = nullptr;
  Clock::time_point failed_at_;
  std::optional<Clock::time_point> ending_since_;
  bool ended_by_us_ = false, signalled_ = false;
  bool stopped_ = false;  // a process ended because a signal told it to
  Clock::time_point signalled_at_;
};

// The remedy for a failure; `own` if it happened on this machine.
std::string remedy_for(const Ending& ending, const Attempt* own, const std::string& folder) {
  const std::string look = own ? own->where_its_lines_are()
                               : fmt::format("See what node {}'s launcher says", ending.node);
  const bool recurs = ending.kind == ErrorKind::kUsage || ending.kind == ErrorKind::kData;
  return folder.empty() || recurs ? look : look + "; continue with --resume=auto --out " + folder;
}

// A hangup ends a run as SIGTERM does.
int exit_code_after(int signal) {
  return 128 + (signal == SIGHUP ? SIGTERM : signal);
}

}  // namespace

int launch(const LaunchOptions& options, const std::function<int()>& stop_signal) {
  const auto nodes = make_nodes(options, stop_signal);
  std::string folder;
  while (true) {
    auto start = nodes->start();
    if (!start) return exit_code_after(stop_signal());
    Attempt attempt(options, *start, folder, *nodes, stop_signal);
    start.reset();  // close it: only rank 0 listens
    const Ending own = attempt.run();
    const auto [failure, restart] = nodes->judge(own);
    if (!failure.failed) {
      const int code = attempt.exit_code();
      return code != 0 && stop_signal() != 0 ? exit_code_after(stop_signal()) : code;
    }
    // The signal went to a process that did not handle it yet, for example while it started.
    if (failure.signal != 0 && failure.signal == stop_signal())
      return exit_code_after(stop_signal());
    if (!attempt.folder().empty()) folder = attempt.folder();
    const Attempt* const here = own.failed && failure.what == own.what ? &attempt : nullptr;
    if (here) here->show_last_lines();
    if (restart.empty())
      fail(failure.kind, failure.what, failure.where, remedy_for(failure, here, folder));
    say(fmt::format("{}; restarting all processes ({})", failure.what, restart));
  }
}

}  // namespace saturate
