// A rung's own process: trains, and rests between the measurements that it is asked for.
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "advise/measured_recipe.h"
#include "advise/rung_wire.h"
#include "advise/stretch.h"
#include "saturate/group.h"

namespace saturate {
namespace {

constexpr double kLongestWarmUpS = 60;  // where a cache has to be filled

class RungWorker {
 public:
  // `group`: null where the process trains by itself.
  RungWorker(Env& env, const Recipe& recipe, const std::string& folder, double seconds, int in,
             int out, const std::shared_ptr<Group>& group)
      : seconds_(seconds),
        reader_(in),
        out_(out),
        group_(group.get()),
        stretch_(env),
        trainer_(env, measured_recipe(recipe), options(folder, group)) {}

  void run() {
    const DataOptions& data = trainer_.recipe().data;
    settle_steps_ = data.prefetch + kSettle;
    fills_cache_ = data.cache.mode != CacheMode::kNone;
    running_ = true;
    begin();
    trainer_.run();
  }

 private:
  TrainerOptions options(const std::string& folder, const std::shared_ptr<Group>& group) {
    // Asked while data is copied, too.
    TrainerOptions made = measured_options(folder, [this] { return running_ && between_steps(); });
    made.group = group;
    return made;
  }

  void begin() {
    stretch_.begin(trainer_);
    steps_ = 0;
    next_look_ = 1;
  }

  // True when nothing more is wanted. Several processes are all asked at the same steps, and each
  // comes to the same answer.
  bool between_steps() {
    if (ended_) return true;
    if (settle_ > 0) {
      if (--settle_ == 0) begin();
      return false;
    }
    if (++steps_ < next_look_) return false;
    const double elapsed = elapsed_s();
    if (elapsed < seconds_ || !(warm_ || is_warm(elapsed))) {
      plan_look(elapsed);
      return false;
    }
    ended_ =
        !tell(warm_ ? to_json(timing()) : nlohmann::json::object({{"ready", true}})) || !rest();
    warm_ = true;
    return ended_;
  }

  // As the process has it that has taken longest. Collective.
  double elapsed_s() {
    if (!group_) return stretch_.elapsed_s();
    const at::Tensor longest = at::full({1}, stretch_.elapsed_s(), at::kDouble);
    group_->max(longest);
    return longest.const_data_ptr<double>()[0];
  }

  // A process alone looks at the clock after each step. Several must agree, which takes time: they
  // look again when it will be over at the speed that they have, or after as many steps again.
  void plan_look(double elapsed) {
    const double left = (seconds_ - elapsed) / elapsed * double(steps_);
    next_look_ =
        steps_ + (group_ ? std::clamp(int64_t(std::min(left, 1e9)), int64_t{1}, steps_) : 1);
  }

  bool is_warm(double elapsed) {
    const TrainResult now = trainer_.so_far();
    return now.steps >= settle_steps_ && (!fills_cache_ || now.train || elapsed >= kLongestWarmUpS);
  }

  // Until the next measurement is asked for; false where none will be. The loader rests too, so
  // that it does not work ahead while another rung is measured.
  bool rest() {
    trainer_.rest();
    const auto line = reader_.next(-1);
    if (!line) return false;
    seconds_ = nlohmann::json::parse(*line).at("measure");
    trainer_.release_batch();
    settle_ = settle_steps_;
    return true;
  }

  bool tell(const nlohmann::json& line) { return write_line(out_, line); }

  RungTiming timing() {
    RungTiming timing;
    timing.steps = stretch_.timing(trainer_);
    const TrainResult now = trainer_.so_far();
    timing.memory_peak_bytes = now.memory_peak_bytes;
    timing.tensor_peak_bytes = now.tensor_peaks.largest();
    return timing;
  }

  double seconds_;
  LineReader reader_;
  const int out_;
  Group* const group_;
  bool running_ = false, warm_ = false, fills_cache_ = false, ended_ = false;
  int settle_steps_ = 0, settle_ = 0;
  int64_t steps_ = 0, next_look_ = 1;  // of this stretch
  Stretch stretch_;                    // of this measurement, or of the warm-up
  Trainer trainer_;
};

}  // namespace

void serve_rung(Env& env, const std::string& recipe, const std::string& folder, double seconds,
                int in, int out, const JoinGroup& join) {
  std::shared_ptr<Group> group;
  const auto tell = [&](const Error& error) {
    if (group) group->report_failure(error.what());
    write_line(out, to_json(error));
  };
  try {
    const Recipe read = load_recipe(env, recipe);
    if (join) group = join(read);
    RungWorker(env, read, folder, seconds, in, out, group).run();
  } catch (const Error& error) {
    tell(error);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    tell(Error(ErrorKind::kRun, "LibTorch: " + text.substr(0, text.find('\n')), "", "",
               std::source_location::current()));
  } catch (const std::bad_alloc&) {
    tell(Error(ErrorKind::kRun, "out of memory", "", "", std::source_location::current()));
  }
}

}  // namespace saturate
