#include "record/run_progress.h"

#include <fmt/format.h>

#include "base/printable.h"

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

}  // namespace

void RunProgress::after_evaluation(const EvaluationEvent& event, ObserverContext&) {
  progress_.note(evaluation_line("eval", event.found.metrics));
  if (event.found.plain)
    progress_.note(evaluation_line("     of the weights without averaging:", *event.found.plain));
}

void RunProgress::on_record(MetricsRecord& record, ObserverContext&) {
  if (record.kind == "step")
    details_ = fmt::format("epoch {:.1f}/{:g}  loss {}  {}  {:.0f} img/s", record.epoch, epochs_,
                           format_loss(*record.loss),
                           accuracy_text(*record.accuracy, record.mean_iou), *record.images_per_s);
  if (record.kind == "epoch")
    progress_.note(fmt::format("epoch {:.3g}/{:g}  loss {}  {}  {:.0f} images/s  {}", record.epoch,
                               epochs_, format_loss(*record.loss),
                               accuracy_text(*record.accuracy, record.mean_iou),
                               *record.images_per_s, format_duration(record.phases->total())));
}

}  // namespace saturate
