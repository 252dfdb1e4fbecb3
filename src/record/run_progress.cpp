// A run's progress on stderr.
#include <fmt/format.h>

#include "base/printable.h"
#include "record/metric_text.h"
#include "record/sinks.h"
#include "saturate/progress.h"

namespace saturate {
namespace {

// "acc 91.20%  ", and all others of the record, with two spaces after each.
std::string record_text(const MetricsRecord& record) {
  Metrics metrics;
  if (record.accuracy) metrics.set("accuracy", *record.accuracy);
  if (record.mean_iou) metrics.set("iou", *record.mean_iou);
  for (const auto& [name, value] : record.values) metrics.set(name, value);
  return metrics_text(metrics, /*is_short=*/true);
}

class RunProgress : public Observer {
 public:
  RunProgress(Progress& progress, double epochs, bool has_images)
      : progress_(progress), epochs_(epochs), has_images_(has_images) {}

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
      details_ = fmt::format("epoch {:.1f}/{:g}  loss {}  {}{:.0f} {}/s", record.epoch, epochs_,
                             format_loss(*record.loss), record_text(record), *record.images_per_s,
                             has_images_ ? "img" : "samples");
    if (record.kind == "epoch")
      progress_.note(fmt::format("epoch {:.6g}/{:g}  loss {}  {}{:.0f} {}/s  {}", record.epoch,
                                 epochs_, format_loss(*record.loss), record_text(record),
                                 *record.images_per_s, unit(),
                                 format_duration(record.phases->total())));
  }

 private:
  const char* unit() const { return has_images_ ? "images" : "samples"; }
  std::string evaluation_line(const char* title, const Metrics& metrics) const {
    if (metrics.weight() == 0)
      return fmt::format("          {}  {}", title, result_text(metrics, unit()));
    return fmt::format("          {}  loss {}  {}on {} {}", title, format_loss(metrics.loss),
                       metrics_text(metrics, /*is_short=*/true), metrics.samples, unit());
  }

  Progress& progress_;
  const double epochs_;
  const bool has_images_;
  std::string details_;  // of the last "step" record
};

}  // namespace

std::unique_ptr<Observer> make_run_progress(Progress& progress, double epochs, bool has_images) {
  return std::make_unique<RunProgress>(progress, epochs, has_images);
}

}  // namespace saturate
