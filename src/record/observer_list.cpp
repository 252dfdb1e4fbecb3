#include "record/observer_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "record/metrics.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

[[noreturn]] void fail_observer(ErrorKind kind, const Observer& observer, int64_t step,
                                const std::string& reason, const std::string& folder) {
  fail(kind, fmt::format("the observer {} failed at step {}: {}", observer.name(), step, reason),
       folder, "Correct it, and resume from the last checkpoint");
}

}  // namespace

void ObserverList::tell(int64_t step, const Call& call) {
  for (const auto& [observer, is_program] : entries_) {
    try {
      call(*observer);
    } catch (const Error& error) {
      if (!is_program) throw;
      fail_observer(error.kind(), *observer, step, error.reason(), folder_);
    } catch (const std::exception& error) {  // torch's have a backtrace from the second line on
      if (!is_program) throw;
      fail_observer(ErrorKind::kRun, *observer, step, first_line(error.what()), folder_);
    }
  }
}

void ObserverList::tell_record(MetricsRecord& record, const Call& event) {
  Scalars* const before = std::exchange(target_, &record.scalars);
  if (event) tell(record.step, event);
  tell(record.step, [&](Observer& each) { each.on_record(record, *this); });
  target_ = before;
}

void ObserverList::after_step(const StepEvent& event) {
  tell(event.position.step, [&](Observer& each) { each.after_step(event, *this); });
}

void ObserverList::after_epoch(const EpochEvent& event, MetricsRecord record) {
  tell_record(record, [&](Observer& each) { each.after_epoch(event, *this); });
}

void ObserverList::after_evaluation(const EvaluationEvent& event, MetricsRecord record) {
  tell_record(record, [&](Observer& each) { each.after_evaluation(event, *this); });
}

void ObserverList::at_end(const EndEvent& event, MetricsRecord record) {
  tell_record(record, [&](Observer& each) { each.at_end(event, *this); });
}

void ObserverList::on_steps(MetricsRecord record) {
  record.scalars = std::exchange(of_steps_, {});
  tell_record(record);
}

void ObserverList::log(const std::string& name, double value) {
  if (name.empty() || is_record_key(name) || std::ranges::count(reserved_, name) > 0)
    fail(ErrorKind::kUsage, fmt::format("a scalar cannot be named \"{}\"", name), "log",
         "Choose a name that no record has");
  const auto known = std::ranges::find(*target_, name, &std::pair<std::string, double>::first);
  if (known != target_->end())
    known->second = value;
  else
    target_->emplace_back(name, value);
}

void ObserverList::stop(const std::string& reason) {
  if (!stop_reason_) stop_reason_ = reason;
}

}  // namespace saturate
