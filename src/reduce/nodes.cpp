// The protocol, one JSON object per line:
//   to node 0    hello {node, nodes, processes}, failing {attempt}, ended {attempt, ending}
//   from node 0  refused {why}, start {attempt, port, restart}, end {attempt}, over {ending}
#include "reduce/nodes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <thread>
#include <utility>

#include "reduce/sockets.h"

namespace saturate {

// The same numbers as exit codes; the first for any other.
NLOHMANN_JSON_SERIALIZE_ENUM(ErrorKind, {{ErrorKind::kRun, int(ErrorKind::kRun)},
                                         {ErrorKind::kUsage, int(ErrorKind::kUsage)},
                                         {ErrorKind::kData, int(ErrorKind::kData)}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ending, failed, followed, signal, node, kind, what, where)

namespace {

using Clock = RankProcess::Clock;
using Json = nlohmann::json;

constexpr int kLookMs = 100;
// How long a machine may be unreachable: normally, and once an attempt has failed.
constexpr int kPatienceS = 60, kHurryS = 10;
constexpr double kConnectS = 2;
constexpr double kSpareS = 5;  // in addition to the grace that another machine gives its processes

Ending lost_launcher(int node, const char* how) {
  return {.failed = true,
          .node = node,
          .what = fmt::format("the launcher of node {} {}", node, how),
          .where = fmt::format("node {}", node)};
}

// Whether `one` is closer to the cause than `other`.
bool more_to_blame(const Ending& one, const Ending& other) {
  return one.failed && (!other.failed || (other.followed && !one.followed));
}

class NodesOfARun : public Nodes {
 public:
  NodesOfARun(const LaunchOptions& options, std::function<int()> stop_signal)
      : options_(options), stop_signal_(std::move(stop_signal)) {}

 protected:
  // Handles messages until `done`. Once the attempt has failed or is told to stop, waits at most
  // `limit_s` longer, then returns false.
  bool wait_until(const std::function<bool()>& done, double limit_s) {
    for (auto patient = Clock::now(); !done();) {
      if (!failed() && stop_signal_() == 0) patient = Clock::now();
      if (seconds_since(patient) > limit_s) return false;
      look();
    }
    return true;
  }

  void look() {
    std::vector<pollfd> polled;
    for (int descriptor : descriptors()) polled.push_back({descriptor, POLLIN, 0});
    poll(polled.data(), polled.size(), kLookMs);
    hear();
  }

  const LaunchOptions options_;
  const std::function<int()> stop_signal_;
};

class FirstNode : public NodesOfARun {
 public:
  FirstNode(const LaunchOptions& options, std::function<int()> stop_signal)
      : NodesOfARun(options, std::move(stop_signal)) {
    if (options.nodes == 1) return;
    listening_ = Descriptor(listen_at(options.master, options.port, true));
    fcntl(listening_.get(), F_SETFL, O_NONBLOCK);
  }

  // With several machines the launchers use the master's port, and the store any free one.
  std::optional<Start> start() override {
    failed_ = false;
    first_failed_ = 0;
    endings_.clear();
    const bool several = options_.nodes > 1;
    Descriptor store(listen_at(options_.master, several ? 0 : options_.port, several));
    port_ = port_of(store.get());
    for (Link& link : links_) begin(link);
    return Start{number_, port_, std::move(store)};
  }

  std::vector<int> descriptors() const override {
    std::vector<int> open;
    if (listening_.get() >= 0) open.push_back(listening_.get());
    for (const Link& link : links_)
      if (link.wire.open()) open.push_back(link.wire.descriptor());
    return open;
  }

  void hear() override {
    accept_all();
    for (Link& link : links_) {
      link.wire.hear([&](const Json& message) { take(link, message); });
      if (link.wire.open()) continue;
      gone_ |= link.begun;
      if (link.begun && !endings_.contains(link.node)) note(lost_launcher(link.node, "is gone"));
    }
    links_.remove_if([](const Link& link) { return !link.wire.open(); });
  }

  bool failed() const override { return failed_; }

  void tell_failed() override { note_failing(0); }

  Verdict judge(const Ending& own) override {
    note(own);
    const auto is_running = [&](const Link& link) {
      return link.begun && !endings_.contains(link.node);
    };
    const auto all_ended = [&] { return std::ranges::none_of(links_, is_running); };
    if (!wait_until(all_ended, options_.grace_s + kSpareS) && failed_)
      for (const Link& link : links_) {
        if (!is_running(link)) continue;
        gone_ = true;
        note(lost_launcher(link.node, "did not end its processes in time"));
      }
    Verdict verdict{endings_.at(first_failed_), {}};
    for (const auto& [node, ending] : endings_)
      if (more_to_blame(ending, verdict.ending)) verdict.ending = ending;
    last_ = verdict.ending;
    if (last_.failed && last_.kind == ErrorKind::kRun && number_ < options_.restarts && !gone_ &&
        stop_signal_() == 0)
      verdict.restart = fmt::format("{} of {}", ++number_, options_.restarts);
    restart_ = verdict.restart;
    if (restart_.empty()) tell_all({{"say", "over"}, {"ending", last_}});
    return verdict;
  }

 private:
  struct Link {
    explicit Link(int socket) : wire(socket) {}
    Wire wire;
    int node = -1;       // until it has announced its number
    bool begun = false;  // it has started this attempt or an earlier one
  };

  void accept_all() {
    for (int socket; (socket = accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
      links_.emplace_back(socket);
  }

  // An attempt that is ending cannot be joined: wait for the next one.
  void begin(Link& link) {
    if (link.node < 0 || failed_) return;
    link.begun = true;
    link.wire.close_when_gone(kPatienceS);
    link.wire.say({{"say", "start"},
                   {"attempt", number_},
                   {"port", port_},
                   {"restart", restart_},
                   {"ending", last_}});
  }

  void take(Link& link, const Json& message) {
    const auto say = message.at("say").get<std::string>();
    if (say == "hello") return welcome(link, message);
    if (link.node < 0 || message.at("attempt").get<int>() != number_) return;
    if (say == "failing") note_failing(link.node);
    if (say == "ended") {
      auto ending = message.at("ending").get<Ending>();
      ending.node = link.node;
      note(ending);
    }
  }

  void welcome(Link& link, const Json& message) {
    const int node = message.at("node").get<int>(), nodes = message.at("nodes").get<int>();
    const int processes = message.at("processes").get<int>();
    std::string why;
    if (nodes != options_.nodes)
      why = fmt::format("node {} has --nnodes {}, and node 0 {}", node, nodes, options_.nodes);
    else if (processes != options_.processes)
      why = fmt::format("node {} has --nproc-per-node {}, and node 0 {}", node, processes,
                        options_.processes);
    if (node < 1 || node >= options_.nodes)
      why = fmt::format("--node-rank {} is not one of 1 to {}", node, options_.nodes - 1);
    for (const Link& other : links_)
      if (other.node == node) why = fmt::format("node {} is already connected", node);
    if (!why.empty()) return link.wire.say({{"say", "refused"}, {"why", why}});
    link.node = node;
    begin(link);
  }

  void tell_all(const Json& message) {
    for (Link& link : links_)
      if (link.node >= 0) link.wire.say(message);
  }

  void note_failing(int node) {
    if (std::exchange(failed_, true)) return;
    first_failed_ = node;
    for (Link& link : links_) link.wire.close_when_gone(kHurryS);
    tell_all({{"say", "end"}, {"attempt", number_}});
  }

  void note(const Ending& ending) {
    endings_.emplace(ending.node, ending);
    if (ending.failed) note_failing(ending.node);
  }

  Descriptor listening_;
  std::list<Link> links_;
  int number_ = 0, port_ = 0;
  bool failed_ = false, gone_ = false;
  int first_failed_ = 0;           // node; meaningless if none has failed
  std::map<int, Ending> endings_;  // of this attempt, by node
  std::string restart_;            // label of this attempt
  Ending last_;                    // of the previous attempt
};

class OtherNode : public NodesOfARun {
 public:
  using NodesOfARun::NodesOfARun;

  std::optional<Start> start() override {
    const auto begin = Clock::now();
    const auto in_time = [&] {
      if (seconds_since(begin) > options_.rendezvous_s) fail_to_connect();
      return stop_signal_() == 0;
    };
    while (!connected_) {
      if (!in_time()) return std::nullopt;
      if (const int socket = connect_to(options_.master, options_.port, kConnectS); socket >= 0)
        greet(socket);
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
    }
    while (!next_) {
      if (over_ || !wire_.open()) fail_before_start();
      if (!in_time()) return std::nullopt;
      look();
    }
    Start start = *std::exchange(next_, std::nullopt);
    number_ = start.number;
    wire_.close_when_gone(kPatienceS);
    return start;
  }

  std::vector<int> descriptors() const override {
    return wire_.open() ? std::vector<int>{wire_.descriptor()} : std::vector<int>();
  }

  void hear() override {
    wire_.hear([&](const Json& message) { take(message); });
  }

  bool failed() const override { return (!wire_.open() && !over_) || failed_ >= number_; }

  void tell_failed() override {
    note_failing(number_);
    wire_.say({{"say", "failing"}, {"attempt", number_}});
  }

  Verdict judge(const Ending& own) override {
    wire_.say({{"say", "ended"}, {"attempt", number_}, {"ending", own}});
    // Node 0 waits as long for the other machines, and they for their processes.
    wait_until([&] { return over_ || next_ || !wire_.open(); }, 2 * (options_.grace_s + kSpareS));
    if (next_) return {last_, restart_};
    if (over_) return {*over_, {}};
    const Ending lost = lost_launcher(0, wire_.open() ? "does not answer" : "is gone");
    return {failed() && more_to_blame(lost, own) ? lost : own, {}};
  }

 private:
  void greet(int socket) {
    wire_ = Wire(socket);
    connected_ = true;
    wire_.say({{"say", "hello"},
               {"node", options_.node},
               {"nodes", options_.nodes},
               {"processes", options_.processes}});
  }

  void take(const Json& message) {
    const auto say = message.at("say").get<std::string>();
    if (say == "refused")
      fail(ErrorKind::kUsage, message.at("why").get<std::string>(), "saturate launch",
           "Start every machine with the same options, and a different --node-rank");
    if (say == "over") over_ = message.at("ending").get<Ending>();
    if (say == "end") note_failing(message.at("attempt").get<int>());
    if (say != "start") return;
    next_ = Start{message.at("attempt").get<int>(), message.at("port").get<int>(), {}};
    message.at("ending").get_to(last_);
    message.at("restart").get_to(restart_);
  }

  void note_failing(int attempt) {
    failed_ = std::max(failed_, attempt);
    wire_.close_when_gone(kHurryS);
  }

  std::string address() const { return fmt::format("{}:{}", options_.master, options_.port); }

  [[noreturn]] void fail_to_connect() const {
    fail(ErrorKind::kRun,
         fmt::format("node 0's launcher did not answer within {:g} s", options_.rendezvous_s),
         address(), "Check that it runs there with --nnodes and the same --master");
  }

  [[noreturn]] void fail_before_start() const {
    const Ending why = over_.value_or(lost_launcher(0, "is gone"));
    fail(why.kind, why.what.empty() ? "the run has ended" : why.what, address(),
         "See what node 0's launcher says");
  }

  Wire wire_;
  bool connected_ = false;
  int number_ = 0, failed_ = -1;  // attempts: this one, and the last known to have failed
  std::optional<Start> next_;
  std::optional<Ending> over_;
  Ending last_;          // of the attempt before `next_`
  std::string restart_;  // label of `next_`
};

}  // namespace

std::unique_ptr<Nodes> make_nodes(const LaunchOptions& options,
                                  const std::function<int()>& stop_signal) {
  if (options.node == 0) return std::make_unique<FirstNode>(options, stop_signal);
  return std::make_unique<OtherNode>(options, stop_signal);
}

}  // namespace saturate
