// A figure that the source of an experiment gives: "35.22 steps/s", "336.5 s".
#pragma once

#include <optional>
#include <string>

namespace saturate {

struct SeedFigure {
  double value;      // above 0
  std::string unit;  // a rate where it ends in "/s", else a duration
  bool is_rate() const { return unit.ends_with("/s"); }
};

// Empty where it is not a number above 0 and one of the units steps/s, images/s, s and ms.
std::optional<SeedFigure> parse_seed_figure(const std::string& text);

// How much faster `after` is than `before`; empty where they do not compare.
std::optional<double> seed_gain(const std::string& before, const std::string& after);

}  // namespace saturate
