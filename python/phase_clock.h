// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "saturate/ledger.h"

namespace saturate {

namespace nb = nanobind;

// Outside `wait`, in steps that are not measured in detail: usual and long ones.
inline constexpr int kUnknown = kPhaseCount, kUnknownLong = kPhaseCount + 1;

// Charges wall time to one phase at a time, like the ledger. See _core.pyi.
class PhaseClock {
 public:
  using Spent = std::array<int64_t, kPhaseCount + 2>;  // nanoseconds

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
    become(phase, phase != int(Phase::kHost));
  }

  void leave() {
    if (!is_own_thread() || outer_.empty()) return;
    charge();
    const int phase = outer_.back();
    outer_.pop_back();
    become(phase, phase != int(Phase::kHost));
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
    phase_ = is_detailed ? int(Phase::kHost) : kUnknown;
  }

  nb::object clock_;
  int64_t begin_, now_, since_;
  Spent spent_{};
  std::vector<int> outer_;  // phases that are interrupted
  int64_t rest_ = 0;        // spent_[kUnknown] at the beginning of the step
  int phase_ = int(Phase::kHost);
  bool is_detailed_ = true;
};

}  // namespace saturate
