// Measures a run of several processes. They make the same steps, so each one's own work, which is
// all that it does not spend in Phase::kReduce, shows which wait for which; interleaved steps
// without all-reduce show the cost of the all-reduce.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "advise/diagnose.h"
#include "advise/measured_trainer.h"
#include "advise/what_ifs.h"
#include "base/thread_pool.h"
#include "saturate/data/env.h"
#include "saturate/group.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

constexpr int kFirstSteps = 10;            // that are not measured
constexpr int kTimed = 5;                  // steps after them, which tell how many a turn may have
constexpr double kEvaluationLimit = 0.05;  // of the time, for an evaluation, which is cut short

double own_s(const PhaseTimes& rank) {
  return rank.total() - rank[Phase::kReduce];
}

struct Straggler {
  size_t rank, next;  // the one with the most own work, and the one after it
  double excess_s;    // of a step
};

Straggler find_straggler(const std::vector<PhaseTimes>& ranks) {
  std::vector<size_t> by_work(ranks.size());
  std::iota(by_work.begin(), by_work.end(), 0);
  std::ranges::sort(by_work, std::ranges::greater(),
                    [&](size_t rank) { return own_s(ranks[rank]); });
  return {by_work[0], by_work[1], own_s(ranks[by_work[0]]) - own_s(ranks[by_work[1]])};
}

// The phase in which a process loses the most time to another.
Phase largest_excess(const PhaseTimes& rank, const PhaseTimes& other) {
  Phase largest = Phase::kWait;
  double most = 0;
  for (int i = 0; i < kPhaseCount; ++i) {
    const auto phase = Phase(i);
    if (phase == Phase::kReduce || rank[phase] - other[phase] <= most) continue;
    most = rank[phase] - other[phase];
    largest = phase;
  }
  return largest;
}

// A step takes as long as the slowest rank's. Takes from each round's the time that this rank works
// longer than the next in that round; a difference that is noise changes its sign between rounds.
Gain without_excess(const std::vector<std::vector<PhaseTimes>>& rounds, size_t slowest) {
  std::vector<double> now, without;
  for (size_t round = 0; round < rounds[slowest].size(); ++round) {
    double next = 0;
    for (size_t rank = 0; rank < rounds.size(); ++rank)
      if (rank != slowest) next = std::max(next, own_s(rounds[rank][round]));
    const double step_s = rounds[slowest][round].total();
    now.push_back(1 / step_s);
    without.push_back(1 / (step_s - (own_s(rounds[slowest][round]) - next)));
  }
  return paired_gain(now, without);
}

// The times of all ranks, from this one's by round: [rank][round].
std::vector<std::vector<PhaseTimes>> gather(Group& group, const std::vector<PhaseTimes>& own) {
  constexpr size_t kRow = kPhaseCount + 1;
  const at::Tensor row = at::empty({int64_t(own.size() * kRow)}, at::kDouble);
  double* to = row.mutable_data_ptr<double>();
  for (const PhaseTimes& round : own) {
    to = std::copy(round.seconds.begin(), round.seconds.end(), to);
    *to++ = round.network_wait;
  }
  const at::Tensor rows = group.gather(row).contiguous();
  std::vector<std::vector<PhaseTimes>> ranks(size_t(group.world()),
                                             std::vector<PhaseTimes>(own.size()));
  const double* next = rows.const_data_ptr<double>();
  for (auto& rank : ranks)
    for (PhaseTimes& round : rank) {
      for (double& seconds : round.seconds) seconds = *next++;
      round.network_wait = *next++;
    }
  return ranks;
}

PhaseTimes mean_of(const std::vector<PhaseTimes>& rounds) {
  PhaseTimes sum;
  for (const PhaseTimes& round : rounds) sum.add(round);
  return divided(sum, double(rounds.size()));
}

// A run with all-reduce in one turn of a round and without in the other; their order alternates
// between rounds. Turns have the same number of steps on every rank, so that all change together.
class MeasuredRun {
 public:
  MeasuredRun(Env& env, const Recipe& recipe, const std::shared_ptr<Group>& group,
              const DiagnoseOptions& asked)
      : env_(env),
        asked_(asked),
        group_(*group),
        asked_train_(recipe.train),
        trainer_(env, measured_with_evaluation(recipe, asked.wanted({.cause = Cause::kEvaluation})),
                 measured_options(asked.folder, asked.should_stop, group, /*save=*/true)) {}

  // False if should_stop cancelled before enough was measured.
  bool run() {
    if (!make_steps(kFirstSteps)) return false;
    const int64_t begin_ns = env_.now_ns();
    const auto elapsed_s = [&] { return double(env_.now_ns() - begin_ns) * 1e-9; };
    if (!make_steps(kTimed)) return false;
    const int steps = steps_of_turn(elapsed_s());
    while (rounds() < asked_.rounds && take_turn(steps)) {
      const bool is_late = rounds() >= kLeastRounds && elapsed_s() > asked_.seconds;
      if (group_.any(group_.rank() == 0 && is_late)) break;
    }
    return rounds() >= std::min(kLeastRounds, asked_.rounds);
  }
  std::string unit() { return trainer_.so_far().unit; }
  // As the run was asked for, but for what only measuring changed.
  Recipe recipe() const { return without_evaluation(trainer_.recipe(), asked_train_); }

  // Work between steps, which is too rare for turns. The slowest rank's time counts: all wait for
  // it. REQUIRES: `found` has the rate and the phases. Collective.
  void time_interludes(Measurements& found) {
    const double epochs = asked_train_.epochs, steps = epoch_steps(trainer_);
    found.run_s = slowest(epochs * epoch_images(trainer_) / found.rate);
    if (!trainer_.recipe().data.eval_source.empty()) {
      found.evaluations.times = evaluations_of(asked_train_, epochs, steps);
      found.evaluations.seconds =
          second_time([&] { return time_evaluation(trainer_, kEvaluationLimit * asked_.seconds); });
    }
    const double saves = saves_of(found.recipe.checkpoint, epochs, steps, found.run_s);
    if (saves < 1 || found.phases[Phase::kCheckpoint] > 0) return;
    found.saves = {second_time([&] { return time_save(trainer_); }), saves};
  }

  // One of each round, with all-reduce or without.
  std::vector<StepTiming> turns(bool summing) const {
    std::vector<StepTiming> chosen;
    for (size_t i = 0; i < size_t(rounds()) * 2; ++i)
      if (is_summing(i) == summing) chosen.push_back(turns_[i]);
    return chosen;
  }

 private:
  double slowest(double own) {
    const at::Tensor most = at::full({1}, own, at::kDouble);
    group_.max(most);
    return most.const_data_ptr<double>()[0];
  }

  // The first time is slow.
  template <class Body>
  double second_time(const Body& body) {
    double seconds = 0;
    for (int i = 0; i < 2; ++i) {
      rest(trainer_);
      seconds = slowest(body());
    }
    return seconds;
  }

  static bool is_summing(size_t turn) { return turn % 2 == turn / 2 % 2; }
  int rounds() const { return int(turns_.size() / 2); }

  // False if a rank was cancelled, on all ranks after the same step.
  bool make_steps(int count) {
    for (int i = 0; i < count; ++i)
      if (!trainer_.step()) return false;
    return true;
  }

  // For the time of a turn, at the slowest rank's speed over the timed steps.
  int steps_of_turn(double timed_s) {
    const double steps = asked_.seconds / 2 / asked_.rounds / slowest(timed_s / kTimed);
    return std::max(1, int(std::min(steps, 1e6)) - kSettle);
  }

  bool take_turn(int steps) {
    sum_gradients(trainer_, is_summing(turns_.size()));
    if (!make_steps(kSettle)) return false;
    const Stretch stretch(env_, trainer_);
    if (!make_steps(steps)) return false;
    turns_.push_back(stretch.timing());
    return true;
  }

  Env& env_;
  const DiagnoseOptions& asked_;
  Group& group_;
  const TrainOptions asked_train_;
  std::vector<StepTiming> turns_;
  Trainer trainer_;
};

}  // namespace

std::optional<Measurements> measure(Env& env, const Recipe& recipe,
                                    const std::shared_ptr<Group>& group,
                                    const DiagnoseOptions& options) {
  MeasuredRun run(env, recipe, group, options);
  const bool measured = run.run();
  if (group->any(!measured)) return std::nullopt;
  Measurements found;
  found.recipe = run.recipe();
  found.unit = run.unit();
  const std::vector<StepTiming> turns = run.turns(/*summing=*/true);
  std::vector<PhaseTimes> own;
  for (const StepTiming& turn : turns) own.push_back(divided(turn.phases, double(turn.steps)));
  found.rank_rounds = gather(*group, own);
  for (const auto& rounds : found.rank_rounds) found.ranks.push_back(mean_of(rounds));
  found.phases = found.ranks[0];
  found.without_sums = paired_gain(rates_of(turns), rates_of(run.turns(/*summing=*/false)));
  const StepTiming sum = sum_of(turns);
  found.rate = sum.images_per_s();
  found.cores_used = sum.cores_used();
  found.cores = available_cores();
  found.loader_threads = found.recipe.data.threads;
  found.batch = found.recipe.train.batch;
  found.on_gpu = found.recipe.train.device == "cuda";
  run.time_interludes(found);
  return found;
}

double group_efficiency(const std::vector<PhaseTimes>& ranks) {
  double sum = 0;
  for (const PhaseTimes& rank : ranks) sum += own_s(rank) / rank.total();
  return sum / double(ranks.size());
}

std::vector<WhatIf> group_what_ifs(const Measurements& found) {
  const Straggler straggler = find_straggler(found.ranks);
  std::vector<WhatIf> all = {{.cause = Cause::kCommunication,
                              .note = "without all-reduces: the upper limit for "
                                      "distributed.compress, distributed.bucket_mb and "
                                      "train.accumulate",
                              .gain = found.without_sums}};
  // A GPU waits for other ranks within its stream, where the host's times do not show it.
  if (!found.on_gpu)
    all.insert(all.begin(),
               {.cause = Cause::kStraggler,
                .note = fmt::format("if rank {} were as fast as rank {}, the next slowest",
                                    straggler.rank, straggler.next),
                .gain = without_excess(found.rank_rounds, straggler.rank),
                .measured = false});
  return all;
}

std::string straggler_text(const std::vector<PhaseTimes>& ranks) {
  const Straggler straggler = find_straggler(ranks);
  const PhaseTimes& slowest = ranks[straggler.rank];
  return fmt::format(
      "rank {} works {:.1f} ms a step, {:.1f} ms more than the next, most of it in {}",
      straggler.rank, 1e3 * own_s(slowest), 1e3 * straggler.excess_s,
      phase_name(largest_excess(slowest, ranks[straggler.next])));
}

}  // namespace saturate
