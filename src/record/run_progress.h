// A run's progress on stderr.
#pragma once

#include <string>

#include "saturate/observer.h"
#include "saturate/progress.h"

namespace saturate {

class RunProgress : public Observer {
 public:
  // `progress` must outlive this. `epochs`: of the whole run.
  RunProgress(Progress& progress, double epochs) : progress_(progress), epochs_(epochs) {}

  void after_step(const StepEvent& event, ObserverContext&) override {
    progress_.update(event.position.step, details_);
  }
  void after_evaluation(const EvaluationEvent& event, ObserverContext&) override;
  void on_record(MetricsRecord& record, ObserverContext&) override;

 private:
  Progress& progress_;
  const double epochs_;
  std::string details_;  // of the last "step" record
};

}  // namespace saturate
