// The measurements of one diagnosis.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "advise/diagnose.h"
#include "advise/trial.h"
#include "advise/warm_source.h"

namespace saturate {

// The recipe with further settings ("section.key=value").
Recipe with_settings(const Recipe& recipe, const std::vector<std::string>& settings);

// The rates of two runs that took turns, one of each round.
struct Rounds {
  std::vector<double> before, after;  // images/s
  Gain gain() const { return paired_gain(before, after); }
};

class Measuring {
 public:
  // Opens the source and builds the recipe's own run; fails as those do.
  Measuring(Env& env, const Recipe& recipe, const DiagnoseOptions& options);
  ~Measuring();

  // Empty where should_stop gave up.
  std::optional<Measurements> run();
  // The recipe's run beside another one's, for about `seconds`; empty likewise.
  std::optional<Rounds> compare(const Recipe& other, double seconds);

 private:
  double elapsed_s() const;
  void show(const std::string& what);
  bool wants(Cause cause) const;
  Recipe recipe_of_trial(const Recipe& recipe) const;
  std::unique_ptr<Trial> make_trial(const Recipe& recipe, bool save);
  struct Plan {
    int rounds;
    double turn_s;
  };
  // The plan for a share of the time, for rounds of so many turns.
  Plan plan_of(double share_s, int turns) const;
  // These are false, or empty, where should_stop gave up.
  bool measure_base();
  bool measure_interludes();
  bool time_one(Turn turn, double limit_s, double& seconds);
  bool look_at(std::vector<WhatIf> what_ifs);
  bool measure_promising();
  bool measure_one(WhatIf& what_if, double share_s);
  std::optional<Rounds> take_turns(Trial& trial, double share_s);
  void summarise(const std::vector<StepTiming>& whole, const std::vector<StepTiming>& held,
                 const std::vector<StepTiming>& input);
  std::optional<Gain> bound_of(const WhatIf& what_if) const;

  Env& env_;
  const DiagnoseOptions options_;
  const double epochs_;  // of the training
  const int64_t begin_ns_;
  std::optional<Progress> progress_;
  std::string doing_;
  std::unique_ptr<Dataset> source_;
  SourceFacts facts_;
  Measurements found_;
  bool has_evaluation_ = false, has_enough_ = false;
  int trials_ = 0;               // made so far
  std::unique_ptr<Trial> base_;  // last: it uses all of the above
};

}  // namespace saturate
