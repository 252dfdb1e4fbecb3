#include "advise/seed_figure.h"

#include <charconv>
#include <cmath>

namespace saturate {

std::optional<SeedFigure> parse_seed_figure(const std::string& text) {
  SeedFigure figure{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, figure.value);
  if (error != std::errc() || rest == end || *rest != ' ') return std::nullopt;
  figure.unit.assign(rest + 1, end);
  const bool known = figure.unit == "steps/s" || figure.unit == "images/s" || figure.unit == "s" ||
                     figure.unit == "ms";
  if (!known || !std::isfinite(figure.value) || figure.value <= 0) return std::nullopt;
  return figure;
}

std::optional<double> seed_gain(const std::string& before, const std::string& after) {
  const auto from = parse_seed_figure(before), to = parse_seed_figure(after);
  if (!from || !to || from->unit != to->unit) return std::nullopt;
  return to->is_rate() ? to->value / from->value : from->value / to->value;
}

}  // namespace saturate
