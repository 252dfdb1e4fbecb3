// The observers of a run, in order, and their requests to it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "saturate/observer.h"
#include "saturate/progress.h"

namespace saturate {

class ObserverList : public ObserverContext {
 public:
  struct Entry {
    std::shared_ptr<Observer> observer;
    bool is_program = false;  // TrainerOptions::observers: errors name it
  };

  // `progress` must outlive this. `folder`: the run's, for error messages.
  ObserverList(Progress& progress, std::string folder, int rank)
      : progress_(progress), folder_(std::move(folder)), rank_(rank) {}

  // Names that log() refuses, beside those of all records.
  void reserve(std::vector<std::string> names) { reserved_ = std::move(names); }
  void add(Entry entry) { entries_.push_back(std::move(entry)); }

  void after_step(const StepEvent& event);
  // The event, then its record.
  void after_epoch(const EpochEvent& event, MetricsRecord record);
  void after_evaluation(const EvaluationEvent& event, MetricsRecord record);
  void at_end(const EndEvent& event, MetricsRecord record);
  // A "step" record.
  void on_steps(MetricsRecord record);

  // The reason of the first stop() on this rank.
  const std::optional<std::string>& stop_reason() const { return stop_reason_; }

  void log(const std::string& name, double value) override;
  void stop(const std::string& reason) override;
  void note(const std::string& line) override { progress_.note(line); }
  void warn(const std::string& line) override { progress_.warn(line); }
  int rank() const override { return rank_; }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;

  using Call = std::function<void(Observer&)>;

  void tell(int64_t step, const Call& call);
  // First tells an event, if given.
  void tell_record(MetricsRecord& record, const Call& event = {});

  Progress& progress_;
  const std::string folder_;
  const int rank_;
  std::vector<Entry> entries_;
  std::vector<std::string> reserved_;
  Scalars of_steps_;              // logged after steps since the last "step" record
  Scalars* target_ = &of_steps_;  // of log()
  std::optional<std::string> stop_reason_;
};

}  // namespace saturate
