// SPDX-License-Identifier: BSD-3-Clause
// The ledger: accounts for a run's wall time by phase.
//
// Exactly one phase is charged at any time, so the phases and the remainder sum to wall time by
// construction. GPU work is charged to the phase in which the host waits for it; its time on the
// GPU itself is reported separately (device_phases.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "saturate/data/env.h"

namespace saturate {

class DevicePhases;
class TensorMemory;

enum class Phase : int {
  kWait,     // waiting for input
  kCopy,     // host to device
  kAugment,  // augmentation inside the step (loader threads are not included)
  kForward,  // model and loss
  kBackward,
  kReduce,  // exposed communication
  kOptimizer,
  kHost,  // metrics, progress, bookkeeping
  kCheckpoint,
  kEvaluation,
  kOther,  // the remainder: set-up and anything not in another phase
};
inline constexpr int kPhaseCount = int(Phase::kOther) + 1;

std::string_view phase_name(Phase phase);

// Seconds by phase.
struct PhaseTimes {
  std::array<double, kPhaseCount> seconds{};
  // Part of kWait: see Loader::network_wait().
  double network_wait = 0;
  double operator[](Phase phase) const { return seconds[size_t(phase)]; }
  double total() const;  // of the phases
  // Adds `factor` times the other's.
  void add(const PhaseTimes& other, double factor = 1);
  PhaseTimes operator-(const PhaseTimes& earlier) const;
};

// Bytes by phase.
struct PhaseBytes {
  std::array<int64_t, kPhaseCount> bytes{};
  int64_t operator[](Phase phase) const { return bytes[size_t(phase)]; }
  int64_t largest() const;
  // Sets each to the larger of both.
  void merge(const PhaseBytes& other);
};

// Time of one of a GPU's streams.
struct StreamTime {
  std::string stream;
  double busy_s = 0;  // from the start to the end of each piece of work
  double idle_s = 0;  // from the end of one piece to the start of the next
};

// Notified of every change of phase, on the ledger's thread.
class PhaseObserver {
 public:
  virtual ~PhaseObserver() = default;
  // `phase` was charged from `begin_ns` to `end_ns` of the ledger's clock; `next`, possibly the
  // same, is charged from then on.
  virtual void charged(Phase phase, Phase next, int64_t begin_ns, int64_t end_ns) = 0;
};

// Belongs to the thread that runs the steps. Costs two clock reads per phase (some 50 ns).
class Ledger {
 public:
  // `env` and `memory` must outlive the ledger.
  explicit Ledger(Env& env, TensorMemory* memory = nullptr);

  // Charges `phase` until the scope ends, then the previous phase again: scopes nest, and an inner
  // scope's time is not charged to the outer one.
  class Scope {
   public:
    Scope(Ledger& ledger, Phase phase) : ledger_(ledger), before_(ledger.enter(phase)) {}
    ~Scope() { ledger_.enter(before_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Ledger& ledger_;
    Phase before_;
  };

  // While one lives, changes of phase place no device marks: a capture would include them.
  class HostOnly {
   public:
    explicit HostOnly(Ledger& ledger)
        : ledger_(ledger), device_(std::exchange(ledger.device_, nullptr)) {}
    ~HostOnly() { ledger_.device_ = device_; }
    HostOnly(const HostOnly&) = delete;
    HostOnly& operator=(const HostOnly&) = delete;

   private:
    Ledger& ledger_;
    DevicePhases* const device_;
  };

  // Notified of every change of phase from now on; may be null. Must outlive the ledger's use.
  void time_on(DevicePhases* device) { device_ = device; }

  // May be null. The observer must outlive the ledger, or be removed.
  void observe(PhaseObserver* observer) { observer_ = observer; }

  // If disabled, scopes do nothing, and all time is charged to kOther: used to measure the ledger's
  // own cost. REQUIRES: no scope is open.
  void set_enabled(bool enabled);

  // Counts `ns` of the current scope, which charges kWait, as the network's. Ignored in others.
  void add_network_wait(int64_t ns);

  // Everything charged since construction, up to now.
  PhaseTimes times();
  // On the device, up to the last mark passed; empty without one. See DevicePhases.
  std::optional<PhaseTimes> device_times();

  // The present phase. Safe from any thread.
  Phase current() const { return current_.load(std::memory_order_relaxed); }

  // Peak bytes of live tensors in each phase since the last call, 0 for a phase that was not
  // charged. All 0 without a TensorMemory.
  PhaseBytes take_memory_peaks();

 private:
  Phase enter(Phase phase);
  void charge(Phase next);

  Env& env_;
  TensorMemory* memory_;
  PhaseObserver* observer_ = nullptr;
  DevicePhases* device_ = nullptr;
  bool enabled_ = true;
  PhaseBytes peaks_;
  std::atomic<Phase> current_{Phase::kOther};  // written by the owning thread only
  int64_t since_ns_;
  std::array<int64_t, kPhaseCount> spent_ns_{};
  int64_t network_wait_ns_ = 0;
};

}  // namespace saturate
