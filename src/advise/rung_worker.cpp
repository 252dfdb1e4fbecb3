// A rung's own process: trains, and rests between the measurements that it is asked for.
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "advise/measured_recipe.h"
#include "advise/rung_wire.h"
#include "saturate/trainer.h"

namespace saturate {
namespace {

constexpr int kSettle = 2;              // steps after a rest that are not measured
constexpr double kLongestWarmUpS = 60;  // where a cache has to be filled

class RungWorker {
 public:
  RungWorker(Env& env, const std::string& recipe, const std::string& folder, double seconds, int in,
             int out)
      : env_(env),
        seconds_(seconds),
        reader_(in),
        out_(out),
        trainer_(env, measured_recipe(load_recipe(env, recipe)), trainer_options(folder)),
        device_(trainer_.recipe().train.device) {}

  void run() {
    const DataOptions& data = trainer_.recipe().data;
    settle_steps_ = data.prefetch + kSettle;
    fills_cache_ = data.cache.mode != CacheMode::kNone;
    running_ = true;
    begin();
    trainer_.run();
  }

 private:
  TrainerOptions trainer_options(const std::string& folder) {
    TrainerOptions options;
    options.out = folder;
    // Asked while data is copied, too.
    options.should_stop = [this] { return running_ && between_steps(); };
    options.progress = Progress::Style::kSilent;
    options.save = false;
    return options;
  }

  // True when nothing more is wanted.
  bool between_steps() {
    if (settle_ > 0) {
      if (--settle_ == 0) begin();
      return false;
    }
    if (warm_) {
      if (elapsed_s() < seconds_) return false;
      return !tell(to_json(timing())) || !rest();
    }
    if (!is_warm()) return false;
    warm_ = true;
    return !tell({{"ready", true}}) || !rest();
  }

  bool is_warm() {
    if (elapsed_s() < seconds_) return false;
    const TrainResult now = trainer_.so_far();
    return now.steps >= settle_steps_ &&
           (!fills_cache_ || now.train || elapsed_s() >= kLongestWarmUpS);
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

  // Now, in what the trainer counts. A GPU has by then done all that it was given.
  TrainResult mark() {
    if (device_.is_cuda()) at::zeros({}, device_).item();
    return trainer_.so_far();
  }
  void begin() {
    begin_ = mark();
    begin_ns_ = env_.now_ns();
  }
  double elapsed_s() const { return double(env_.now_ns() - begin_ns_) * 1e-9; }

  RungTiming timing() {
    const TrainResult now = mark();
    RungTiming timing;
    timing.steps.steps = now.steps - begin_.steps;
    timing.steps.samples = now.samples - begin_.samples;
    timing.steps.phases = now.phases - begin_.phases;
    timing.steps.wall_s = timing.steps.phases.total();
    timing.steps.cpu_s = now.cores_used * now.wall_s - begin_.cores_used * begin_.wall_s;
    timing.memory_peak_bytes = now.memory_peak_bytes;
    timing.tensor_peak_bytes = now.tensor_peaks.largest();
    return timing;
  }

  Env& env_;
  double seconds_;
  LineReader reader_;
  const int out_;
  bool running_ = false, warm_ = false, fills_cache_ = false;
  int settle_steps_ = 0, settle_ = 0;
  TrainResult begin_;  // of this measurement, or of the warm-up
  int64_t begin_ns_ = 0;
  Trainer trainer_;
  at::Device device_;
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
