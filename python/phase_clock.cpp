#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "parts.h"
#include "saturate/ledger.h"

namespace saturate {
namespace {

namespace nb = nanobind;

constexpr int kHost = int(Phase::kHost);
// Outside `wait`, in steps that are not measured in detail: usual and long ones.
constexpr int kUnknown = kPhaseCount, kUnknownLong = kPhaseCount + 1;
using Spent = std::array<int64_t, kPhaseCount + 2>;  // nanoseconds

// Charges wall time to one phase at a time, like the ledger. See _core.pyi.
class PhaseClock {
 public:
  explicit PhaseClock(nb::object clock) : clock_(std::move(clock)) {
    begin_ = now_ = since_ = read();
    thread = PyThread_get_thread_ident();
  }

  std::optional<unsigned long> thread;
  nb::object device = nb::none(), on_long = nb::none();
  int64_t longest = std::numeric_limits<int64_t>::max();

  bool is_own_thread() const { return thread == PyThread_get_thread_ident(); }
  bool is_detailed() const { return is_detailed_; }
  int phase() const { return phase_; }
  int64_t begin() const { return begin_; }
  int64_t now() const { return now_; }
  const Spent& spent() const { return spent_; }

  void enter(int phase) {
    check(phase);
    if (!is_own_thread()) return;
    charge();
    outer_.push_back(phase_);
    become(phase, phase != kHost);
  }

  void leave() {
    if (!is_own_thread() || outer_.empty()) return;
    charge();
    const int phase = outer_.back();
    outer_.pop_back();
    become(phase, phase != kHost);
  }

  void switch_phase(int before, int phase) {
    check(phase);
    if (phase_ != before) return;
    charge();
    become(phase, true);
  }

  int64_t settle() {
    charge();
    now_ = since_;
    outer_.clear();
    rest_to(is_detailed_);
    const int64_t rest = spent_[kUnknown] - rest_;
    if (rest > longest) {
      spent_[kUnknown] -= rest;
      spent_[kUnknownLong] += rest;
    }
    rest_ = spent_[kUnknown];
    if (rest > longest && !on_long.is_none()) on_long();
    return now_;
  }

  void set_detailed(bool is_detailed) {
    charge();
    rest_to(is_detailed);
  }

  bool is_long() const { return phase_ == kUnknown && spent_[kUnknown] - rest_ > longest; }

  std::pair<int64_t, int64_t> take_unknown() {
    const std::pair taken(spent_[kUnknown], spent_[kUnknownLong]);
    spent_[kUnknown] = spent_[kUnknownLong] = rest_ = 0;
    return taken;
  }

 private:
  static void check(int phase) {
    if (phase < 0 || phase >= int(std::tuple_size_v<Spent>)) throw nb::index_error("no such phase");
  }

  int64_t read() const {
    if (!clock_.is_none()) return nb::cast<int64_t>(clock_());
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void charge() {
    const int64_t time = read();
    spent_[size_t(phase_)] += time - since_;
    since_ = time;
  }

  void become(int phase, bool is_marked) {
    phase_ = phase;
    if (is_marked && !device.is_none()) device.attr("mark")(phase);
  }

  void rest_to(bool is_detailed) {
    is_detailed_ = is_detailed;
    phase_ = is_detailed ? kHost : kUnknown;
  }

  nb::object clock_;
  int64_t begin_, now_, since_;
  Spent spent_{};
  std::vector<int> outer_;  // phases that are interrupted
  int64_t rest_ = 0;        // spent_[kUnknown] at the beginning of the step
  int phase_ = kHost;
  bool is_detailed_ = true;
};

struct StepCounter {
  explicit StepCounter(nb::object kept_clock)
      : kept(std::move(kept_clock)), clock(nb::cast<PhaseClock&>(kept)) {}

  void count_step(nb::handle loss) {
    const int64_t now = clock.settle();
    if (steps < due_step && now < due_ns) {
      ++steps;
    } else {
      nb::find(this).attr("_end_manual_step")(now, loss);
    }
  }

  nb::object kept;
  PhaseClock& clock;
  int64_t steps = 0, due_step = 0, due_ns = 0;
};

nb::tuple phase_names() {
  nb::list names;
  for (int phase = 0; phase < kPhaseCount; ++phase) {
    const std::string_view name = phase_name(Phase(phase));
    names.append(nb::str(name.data(), name.size()));
  }
  return nb::tuple(names);
}

void register_clock(nb::module_& module) {
  nb::class_<PhaseClock>(module, "PhaseClock")
      .def(nb::init<nb::object>(), nb::arg("clock") = nb::none())
      .def("enter", &PhaseClock::enter)
      .def("leave", &PhaseClock::leave)
      .def("switch", &PhaseClock::switch_phase)
      .def("settle", &PhaseClock::settle)
      .def("set_detailed", &PhaseClock::set_detailed)
      .def("is_long", &PhaseClock::is_long)
      .def("take_unknown", &PhaseClock::take_unknown)
      .def_prop_ro("begin", &PhaseClock::begin)
      .def_prop_ro("now", &PhaseClock::now)
      .def_prop_ro("phase", &PhaseClock::phase)
      .def_prop_ro("is_detailed", &PhaseClock::is_detailed)
      .def_prop_ro("spent", &PhaseClock::spent)
      .def_rw("thread", &PhaseClock::thread, nb::arg().none())
      .def_rw("longest", &PhaseClock::longest)
      .def_rw("device", &PhaseClock::device, nb::arg().none())
      .def_rw("on_long", &PhaseClock::on_long, nb::arg().none());
}

}  // namespace

void register_phase_clock(nb::module_& module) {
  module.attr("PHASES") = phase_names();
  register_clock(module);
  nb::class_<StepCounter>(module, "StepCounter")
      .def(nb::init<nb::object>(), nb::arg("clock"))
      .def("_count_step", &StepCounter::count_step, nb::arg().none())
      .def_rw("steps", &StepCounter::steps)
      .def_rw("_due_step", &StepCounter::due_step)
      .def_rw("_due_ns", &StepCounter::due_ns);
}

}  // namespace saturate
