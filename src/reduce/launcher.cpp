#include "saturate/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "reduce/listen.h"
#include "reduce/rank_process.h"
#include "saturate/error.h"
#include "saturate/thread_pool.h"

namespace saturate {
namespace {

using Clock = RankProcess::Clock;

constexpr int kPollMs = 100;
constexpr double kStopStalls = 5;  // times the stall that is reported: saving is no step

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

void say(const std::string& text) {
  fmt::print(stderr, "saturate launch: {}\n", text);
}

bool is_interruption(int code) {
  return code == 128 + SIGINT || code == 128 + SIGTERM;
}

// One attempt: all processes of this machine, from their start to their end.
class Attempt {
 public:
  Attempt(const LaunchOptions& options, int number, const std::string& folder,
          const std::function<int()>& stop_signal)
      : options_(options), stop_signal_(stop_signal) {
    Descriptor listening;
    if (options.node == 0) listening = Descriptor(listen_at(options.master, options.port));
    const int port = options.node == 0 ? port_of(listening.get()) : options.port;
    for (int local = 0; local < options.processes; ++local)
      ranks_.push_back(std::make_unique<RankProcess>(
          options.node * options.processes + local,
          command(local, number, port, folder, local == 0 ? listening.get() : -1)));
    warned_s_.assign(ranks_.size(), options.stall_s);
  }

  // Null where none failed.
  const RankProcess* run() {
    while (step()) {
    }
    return failed_;
  }

  int exit_code() const {
    int code = 0;
    for (const auto& rank : ranks_) code = std::max(code, rank->exit_code());
    return code;
  }

  std::string folder() const { return ranks_.front()->folder(); }

 private:
  RankCommand command(int local, int number, int port, const std::string& folder,
                      int listening) const {
    const int world = options_.nodes * options_.processes;
    const int threads = std::max(1, available_cores() / options_.processes);
    RankCommand made{options_.program, options_.arguments, {}, listening};
    made.variables = {{"RANK", std::to_string(options_.node * options_.processes + local)},
                      {"WORLD_SIZE", std::to_string(world)},
                      {"LOCAL_RANK", std::to_string(local)},
                      {"LOCAL_WORLD_SIZE", std::to_string(options_.processes)},
                      {"MASTER_ADDR", options_.master},
                      {"MASTER_PORT", std::to_string(port)},
                      {"TORCHELASTIC_RESTART_COUNT", std::to_string(number)},
                      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                      {"SATURATE_LAUNCHED", "1"}};
    // c10d warns of each attempt to connect to a rank 0 that is not there yet.
    if (!std::getenv("TORCH_CPP_LOG_LEVEL"))
      made.variables.emplace_back("TORCH_CPP_LOG_LEVEL", "ERROR");
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
    poll(polled.data(), polled.size(), kPollMs);
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
    if (failed_ && seconds_since(failed_at_) > options_.grace_s)
      for (const auto& rank : ranks_) rank->signal(SIGKILL);
    if (failed_) return true;
    if (signalled_)
      end_stalled();
    else
      report_stalls();
    return true;
  }

  // Of several that ended at once, the one that a signal ended did not follow another.
  void note_end(const RankProcess& rank) {
    const int code = rank.exit_code();
    if (code == 0 || (is_interruption(code) && !rank.killed())) return;
    if (!failed_) failed_at_ = Clock::now();
    const bool first = !failed_, at_once = seconds_since(failed_at_) < 1e-3 * kPollMs;
    if (first || (at_once && rank.killed() && !failed_->killed())) failed_ = &rank;
  }

  // Those that were told to stop and neither do so nor move.
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

  // Says it again each time that the wait has doubled.
  void report_stalls() {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      RankProcess& rank = *ranks_[i];
      const double silent = seconds_since(rank.heard()), still = seconds_since(rank.moved());
      // It waits for the others, of which one is at fault.
      const bool waits = silent < options_.stall_s / 2 && rank.place().ends_with(" reduce");
      if (rank.ended() || still < options_.stall_s || waits) {
        warned_s_[i] = options_.stall_s;
        continue;
      }
      if (still < warned_s_[i]) continue;
      warned_s_[i] = 2 * still;
      const std::string where = rank.place().empty() ? "still starting" : rank.place();
      say(fmt::format("rank {} (process {}) has not moved for {:.0f} s: {}{}", rank.rank(),
                      rank.pid(), still, where,
                      silent < options_.stall_s / 2 ? "" : ", and nothing is heard of it"));
    }
  }

  const LaunchOptions& options_;
  const std::function<int()>& stop_signal_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<double> warned_s_;
  const RankProcess* failed_ = nullptr;
  Clock::time_point failed_at_;
  bool signalled_ = false;
  Clock::time_point signalled_at_;
};

ErrorKind kind_of(const RankProcess& rank) {
  const int code = rank.killed() ? 4 : rank.exit_code();
  if (code == int(ErrorKind::kUsage)) return ErrorKind::kUsage;
  return code == int(ErrorKind::kData) ? ErrorKind::kData : ErrorKind::kRun;
}

std::string how_it_ended(const RankProcess& rank) {
  if (!rank.killed())
    return fmt::format("rank {} failed with exit code {}", rank.rank(), rank.exit_code());
  const int number = rank.exit_code() - 128;
  return fmt::format("rank {} was ended by signal {} ({})", rank.rank(), number,
                     sigabbrev_np(number));
}

void show_last_lines(const RankProcess& rank) {
  if (rank.last_lines().empty()) return;
  say(fmt::format("the last lines of rank {}:", rank.rank()));
  for (const auto& line : rank.last_lines()) fmt::print(stderr, "  {}\n", line);
}

}  // namespace

int launch(const LaunchOptions& options, const std::function<int()>& stop_signal) {
  std::string folder;
  for (int number = 0;; ++number) {
    Attempt attempt(options, number, folder, stop_signal);
    const RankProcess* const failed = attempt.run();
    if (!failed) {
      const int code = attempt.exit_code();
      return code != 0 && stop_signal() != 0 ? 128 + stop_signal() : code;
    }
    // It was passed on to one that did not heed it yet, as while it starts.
    if (failed->killed() && stop_signal() != 0 && failed->exit_code() == 128 + stop_signal())
      return failed->exit_code();
    if (!attempt.folder().empty()) folder = attempt.folder();
    const std::string what = how_it_ended(*failed);
    const ErrorKind kind = kind_of(*failed);
    show_last_lines(*failed);
    if (kind != ErrorKind::kRun || number == options.restarts || stop_signal() != 0)
      fail(kind, what,
           failed->place().empty() ? fmt::format("process {}", failed->pid()) : failed->place(),
           folder.empty() ? "See its last lines"
                          : "See its last lines; go on with saturate train --resume " + folder);
    say(fmt::format("{}; starting all again ({} of {})", what, number + 1, options.restarts));
  }
}

}  // namespace saturate
