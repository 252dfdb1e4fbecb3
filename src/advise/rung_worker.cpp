// A rung's own process: trains, and rests between the measurements that it is asked for.
#include <c10/util/Exception.h>

#include "advise/measured_recipe.h"
#include "advise/rung_wire.h"
#include "advise/stretch.h"

namespace saturate {
namespace {

constexpr double kLongestWarmUpS = 60;  // where a cache has to be filled

class RungWorker {
 public:
  RungWorker(Env& env, const std::string& recipe, const std::string& folder, double seconds, int in,
             int out)
      : seconds_(seconds),
        reader_(in),
        out_(out),
        stretch_(env),
        // Asked while data is copied, too.
        trainer_(env, measured_recipe(load_recipe(env, recipe)),
                 measured_options(folder, [this] { return running_ && between_steps(); })) {}

  void run() {
    const DataOptions& data = trainer_.recipe().data;
    settle_steps_ = data.prefetch + kSettle;
    fills_cache_ = data.cache.mode != CacheMode::kNone;
    running_ = true;
    stretch_.begin(trainer_);
    trainer_.run();
  }

 private:
  // True when nothing more is wanted.
  bool between_steps() {
    if (settle_ > 0) {
      if (--settle_ == 0) stretch_.begin(trainer_);
      return false;
    }
    if (warm_) {
      if (stretch_.elapsed_s() < seconds_) return false;
      return !tell(to_json(timing())) || !rest();
    }
    if (!is_warm()) return false;
    warm_ = true;
    return !tell({{"ready", true}}) || !rest();
  }

  bool is_warm() {
    if (stretch_.elapsed_s() < seconds_) return false;
    const TrainResult now = trainer_.so_far();
    return now.steps >= settle_steps_ &&
           (!fills_cache_ || now.train || stretch_.elapsed_s() >= kLongestWarmUpS);
  }

  // Until the next measurement is asked for; false where none will be. The loader rests too, so
  // that it does not work ahead while another rung is measured.
  bool rest() {
    trainer_.hold_batch();
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
  bool running_ = false, warm_ = false, fills_cache_ = false;
  int settle_steps_ = 0, settle_ = 0;
  Stretch stretch_;  // of this measurement, or of the warm-up
  Trainer trainer_;
};

}  // namespace

void serve_rung(Env& env, const std::string& recipe, const std::string& folder, double seconds,
                int in, int out) {
  try {
    RungWorker(env, recipe, folder, seconds, in, out).run();
  } catch (const Error& error) {
    write_line(out, to_json(error));
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    write_line(out, to_json(Error(ErrorKind::kRun, "LibTorch: " + text.substr(0, text.find('\n')),
                                  "", "", std::source_location::current())));
  } catch (const std::bad_alloc&) {
    write_line(out, to_json(Error(ErrorKind::kRun, "out of memory", "", "",
                                  std::source_location::current())));
  }
}

}  // namespace saturate
