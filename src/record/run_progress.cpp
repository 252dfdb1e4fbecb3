// A run's progress on stderr.
#include <fmt/format.h>

#include "base/printable.h"
#include "record/sinks.h"
#include "saturate/progress.h"

namespace saturate {
namespace {

std::string percent(double share) {
  return fmt::format("{:.2f}%", share * 100);
}

// "acc 91.20%", and the overlap of segmentation.
std::string accuracy_text(double accuracy, const std::optional<double>& iou) {
  return "acc " + percent(accuracy) + (iou ? fmt::format("  iou {:.4f}", *iou) : "");
}

std::string evaluation_line(const char* title, const Metrics& metrics) {
  return fmt::format("          {}  loss {}  {}{}  on {} images", title, format_loss(metrics.loss),
                     accuracy_text(metrics.accuracy, metrics.mean_iou()),
                     metrics.accuracy5 ? "  acc5 " + percent(*metrics.accuracy5) : "",
                     metrics.samples);
}

class RunProgress : public Observer {
 public:
  RunProgress(Progress& progress, double epochs) : progress_(progress), epochs_(epochs) {}

  void after_step(const StepEvent& event, ObserverContext&) override {
    progress_.update(event.position.step, details_);
  }
  void after_evaluation(const EvaluationEvent& event, ObserverContext&) override {
    progress_.note(evaluation_line("eval", event.found.metrics));
    if (event.found.plain)
      progress_.note(evaluation_line("     of the weights without averaging:", *event.found.plain));
  }
  void on_record(MetricsRecord& record, ObserverContext&) override {
    if (record.kind == "step")
      details_ =
          fmt::format("epoch {:.1f}/{:g}  loss {}  {}  {:.0f} img/s", record.epoch, epochs_,
                      format_loss(*record.loss), accuracy_text(*record.accuracy, record.mean_iou),
                      *record.images_per_s);
    if (record.kind == "epoch")
      progress_.note(fmt::format("epoch {:.3g}/{:g}  loss {}  {}  {:.0f} images/s  {}",
                                 record.epoch, epochs_, format_loss(*record.loss),
                                 accuracy_text(*record.accuracy, record.mean_iou),
                                 *record.images_per_s, format_duration(record.phases->total())));
  }

 private:
  Progress& progress_;
  const double epochs_;
  std::string details_;  // of the last "step" record
};

}  // namespace

std::unique_ptr<Observer> make_run_progress(Progress& progress, double epochs) {
  return std::make_unique<RunProgress>(progress, epochs);
}

}  // namespace saturate
