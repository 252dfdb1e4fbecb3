// A rung's own process: trains, and rests between the requested measurements.
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "advise/measured_trainer.h"
#include "advise/rung_wire.h"
#include "base/printable.h"
#include "saturate/group.h"

namespace saturate {
namespace {

constexpr double kLongestWarmUpS = 60;  // if a cache has to be filled

class RungWorker {
 public:
  // `group`: null if the process trains alone.
  RungWorker(Env& env, const Recipe& recipe, const std::string& folder, double seconds, Wire& wire,
             const std::shared_ptr<Group>& group)
      : wire_(wire),
        group_(group.get()),
        trainer_(env, measured_recipe(recipe),
                 measured_options(
                     folder, [] { return false; }, group)),
        stretch_(env, trainer_) {
    const DataOptions& data = trainer_.recipe().data;
    settle_steps_ = data.prefetch + kSettle;
    fills_cache_ = data.cache.mode != CacheMode::kNone;
    goes_on_ = run_for(seconds, /*until_warm=*/true);
  }

  // Until the requests end, or the run is over.
  void serve() {
    nlohmann::json answer = {{"ready", true}};
    while (goes_on_) {
      wire_.say(answer);
      const auto seconds = rest();
      if (!seconds) return;
      for (int i = 0; i < settle_steps_; ++i) goes_on_ = trainer_.step();
      goes_on_ = goes_on_ && run_for(*seconds, /*until_warm=*/false);
      answer = timing();
    }
  }

 private:
  // A process alone reads the clock after each step. Several must agree, which takes time: they
  // read it again when the time will be over at the present speed, but at most after twice as many
  // steps. All read it after the same steps, with the same result. False if the run is over.
  bool run_for(double seconds, bool until_warm) {
    stretch_.begin();
    int64_t steps = 0, next_look = 1;
    while (true) {
      if (!trainer_.step()) return false;
      if (++steps < next_look) continue;
      const double elapsed = elapsed_s();
      if (elapsed >= seconds && (!until_warm || is_warm(elapsed))) return true;
      const double left = (seconds - elapsed) / elapsed * double(steps);
      next_look =
          steps + (group_ ? std::clamp(int64_t(std::min(left, 1e9)), int64_t{1}, steps) : 1);
    }
  }

  // The slowest process's. Collective.
  double elapsed_s() {
    if (!group_) return stretch_.elapsed_s();
    const at::Tensor longest = at::full({1}, stretch_.elapsed_s(), at::kDouble);
    group_->max(longest);
    return longest.const_data_ptr<double>()[0];
  }

  bool is_warm(double elapsed) {
    const TrainResult now = trainer_.so_far();
    return now.steps >= settle_steps_ && (!fills_cache_ || now.train || elapsed >= kLongestWarmUpS);
  }

  // Until the next request; returns its seconds, or nothing at the end. The loader rests too, so
  // that it does not work ahead while another rung is measured.
  std::optional<double> rest() {
    saturate::rest(trainer_);
    std::optional<nlohmann::json> request;
    while (!request && wire_.open()) request = next_message(wire_, -1);
    if (!request) return std::nullopt;
    const double seconds = request->at("measure");
    release_batch(trainer_);
    return seconds;
  }

  RungTiming timing() {
    RungTiming timing;
    timing.steps = stretch_.timing();
    const TrainResult now = trainer_.so_far();
    timing.memory_peak_bytes = now.memory_peak_bytes;
    timing.tensor_peak_bytes = now.tensor_peaks.largest();
    timing.unit = now.unit;
    return timing;
  }

  Wire& wire_;
  Group* const group_;
  bool fills_cache_ = false, goes_on_ = true;
  int settle_steps_ = 0;
  Trainer trainer_;
  Stretch stretch_;  // of this measurement, or of the warm-up
};

}  // namespace

void serve_rung(Env& env, const std::string& recipe, const std::string& folder, double seconds,
                const JoinGroup& join) {
  Wire wire(kRungSocket);
  std::shared_ptr<Group> group;
  const auto tell = [&](const Error& error) {
    if (group) group->report_failure(error.what());
    wire.say(to_json(error));
  };
  try {
    const Recipe read = load_recipe(env, recipe);
    if (join) group = join(read);
    RungWorker(env, read, folder, seconds, wire, group).serve();
  } catch (const Error& error) {
    tell(error);
  } catch (const c10::Error& error) {
    tell(Error(ErrorKind::kRun, "LibTorch: " + first_line(error.what()), "", "",
               std::source_location::current()));
  } catch (const std::bad_alloc&) {
    tell(Error(ErrorKind::kRun, "out of memory", "", "", std::source_location::current()));
  }
}

}  // namespace saturate
