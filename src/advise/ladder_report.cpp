// A measured ladder as text, Markdown and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "advise/ladder.h"
#include "base/printable.h"
#include "record/json_fields.h"
#include "trace/host.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;

constexpr double kWidest = 10;  // no interval beyond it says anything

std::string gain_text(const std::optional<Gain>& gain) {
  if (!gain) return "";
  const std::string text = fmt::format("{:+.1f} %", 100 * (gain->ratio - 1));
  if (gain->low == 0) return text;  // one round has no interval
  if (gain->high > kWidest) return text + " (unclear)";
  return text + fmt::format(" ({:+.1f} to {:+.1f})", 100 * (gain->low - 1), 100 * (gain->high - 1));
}

std::string seed_text(const Rung& rung, const RungResult& found) {
  return found.seed_gain
             ? fmt::format("{} ({:+.1f} %)", rung.seed_figure, 100 * (*found.seed_gain - 1))
             : rung.seed_figure;
}

// Over all rounds.
StepTiming sum_of(const RungResult& rung) {
  StepTiming sum;
  for (const RungTiming& timing : rung.rounds) sum.add(timing.steps);
  return sum;
}

// "samples" if any rung trains on tensors.
std::string unit_of(const LadderResult& result) {
  for (const RungResult& rung : result.rungs)
    for (const RungTiming& timing : rung.rounds)
      if (timing.unit != "images") return timing.unit;
  return "images";
}

PhaseTimes phase_shares(const RungResult& rung) {
  const StepTiming sum = sum_of(rung);
  return divided(sum.phases, sum.wall_s);
}

// "wait 61 %, forward 20 %": phases of at least 1 %, largest first.
std::string phases_text(const RungResult& rung) {
  const PhaseTimes shares = phase_shares(rung);
  std::vector<Phase> phases;
  for (int i = 0; i < kPhaseCount; ++i)
    if (shares[Phase(i)] >= 0.01) phases.push_back(Phase(i));
  std::ranges::stable_sort(phases, std::ranges::greater(), [&](Phase of) { return shares[of]; });
  std::string text;
  for (const Phase phase : phases)
    text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", phase_name(phase),
                        100 * shares[phase]);
  return text;
}

// Rows of cells; the first is the head.
using Table = std::vector<std::vector<std::string>>;

Table table_of(const Ladder& ladder, const LadderResult& result) {
  const bool seed =
      std::ranges::any_of(ladder.rungs, [](const Rung& rung) { return !rung.seed_figure.empty(); });
  Table table = {{"rung", "steps/s", unit_of(result) + "/s", "over previous", "over first", "cores",
                  "memory"}};
  if (seed) table[0].push_back("published");
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    const RungResult& found = result.rungs[i];
    std::vector<std::string> row = {ladder.rungs[i].name};
    if (found.rounds.empty()) {
      row.insert(row.end(), {"", "", "", "", "", ""});
    } else {
      const double memory_gib = double(found.rounds.back().memory_peak_bytes) / (1 << 30);
      row.insert(
          row.end(),
          {fmt::format("{:.2f}", steps_per_s(found)), fmt::format("{:.1f}", images_per_s(found)),
           gain_text(found.over_previous), i == 0 ? "" : gain_text(found.over_first),
           fmt::format("{:.2f}", sum_of(found).cores_used()),
           fmt::format("{:.2f} GiB", memory_gib)});
    }
    if (seed) row.push_back(seed_text(ladder.rungs[i], found));
    table.push_back(std::move(row));
  }
  return table;
}

std::string aligned(const Table& table) {
  std::vector<size_t> widths(table[0].size());
  for (const auto& row : table)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : table) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool number = i == 1 || i == 2 || i == 5;
      line += number ? fmt::format("{:>{}}  ", row[i], widths[i])
                     : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// "name: text" for each rung that has one.
template <class Text>
std::string notes(const Ladder& ladder, const LadderResult& result, const char* title,
                  const Text& text_of) {
  std::string lines;
  for (size_t i = 0; i < ladder.rungs.size(); ++i)
    if (const std::string text = text_of(result.rungs[i]); !text.empty())
      lines += fmt::format("  {}: {}\n", ladder.rungs[i].name, text);
  return lines.empty() ? "" : fmt::format("\n{}\n{}", title, lines);
}

std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.replace(at, 1, "\\|");
  return text;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts)
    all += (all.empty() ? "" : ", ") + ("`" + without_queries(text) + "`");
  return all;
}

ordered_json settings_json(const std::vector<std::string>& settings) {
  ordered_json json = ordered_json::array();
  for (const auto& setting : settings) json.push_back(without_queries(setting));
  return json;
}

ordered_json to_json(const Rung& rung, const RungResult& found) {
  // One round has no interval: 0 and infinity, which JSON does not have.
  const auto value_of = [](const std::optional<Gain>& gain, double Gain::*member) {
    return gain && (*gain).*member > 0 ? ordered_json((*gain).*member) : ordered_json();
  };
  const auto text_of = [](const std::string& text) {
    return text.empty() ? ordered_json() : ordered_json(text);
  };
  const bool measured = !found.rounds.empty();
  const RungTiming last = measured ? found.rounds.back() : RungTiming();
  ordered_json json = {
      {"name", rung.name},
      {"set", settings_json(rung.set)},
      {"processes", rung.processes},
      {"steps_per_s", measured ? ordered_json(steps_per_s(found)) : ordered_json()},
      {"images_per_s", measured ? ordered_json(images_per_s(found)) : ordered_json()},
      {"n", found.rounds.size()},
      {"gain_previous", value_of(found.over_previous, &Gain::ratio)},
      {"low_previous", value_of(found.over_previous, &Gain::low)},
      {"high_previous", value_of(found.over_previous, &Gain::high)},
      {"gain_first", value_of(found.over_first, &Gain::ratio)},
      {"low", value_of(found.over_first, &Gain::low)},
      {"high", value_of(found.over_first, &Gain::high)},
      {"phases", nullptr},
      {"cores_used", measured ? ordered_json(sum_of(found).cores_used()) : ordered_json()},
      {"memory_peak_bytes", measured ? ordered_json(last.memory_peak_bytes) : ordered_json()},
      {"tensor_peak_bytes", measured ? ordered_json(last.tensor_peak_bytes) : ordered_json()},
      {"skipped", text_of(without_queries(found.skipped))},
      {"seed_figure", text_of(rung.seed_figure)},
      {"seed_gain_first", or_null(found.seed_gain)}};
  if (!measured) return json;
  json["phases"] = ordered_json::object();
  const PhaseTimes shares = phase_shares(found);
  for (int i = 0; i < kPhaseCount; ++i)
    if (shares[Phase(i)] > 0) json["phases"][std::string(phase_name(Phase(i)))] = shares[Phase(i)];
  return json;
}

}  // namespace

std::string format_ladder(const Ladder& ladder, const LadderResult& result) {
  return ladder.title + "\n\n" + aligned(table_of(ladder, result)) +
         notes(ladder, result, "where time goes",
               [](const RungResult& found) { return phases_text(found); }) +
         notes(ladder, result, "skipped",
               [](const RungResult& found) { return printable(found.skipped); }) +
         (result.interrupted ? "\ninterrupted: what was measured until then\n" : "");
}

std::string ladder_markdown(const Ladder& ladder, const LadderResult& result) {
  Table table = table_of(ladder, result);
  table[0].insert(table[0].end(), {"where time goes", "settings"});
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    const RungResult& found = result.rungs[i];
    table[i + 1].push_back(found.rounds.empty() ? "skipped: " + printable(found.skipped)
                                                : phases_text(found));
    table[i + 1].push_back(joined(ladder.rungs[i].set));
  }
  std::string text = fmt::format("## {}\n\n", ladder.title);
  for (size_t row = 0; row < table.size(); ++row) {
    for (const auto& entry : table[row]) text += "| " + cell(entry) + " ";
    text += "|\n";
    for (size_t i = 0; row == 0 && i < table[0].size(); ++i) text += "|---";
    if (row == 0) text += "|\n";
  }
  if (!ladder.set.empty())
    text += fmt::format("\nAll rungs with {}, unless their settings differ.\n", joined(ladder.set));
  return text;
}

std::string ladder_json(const Ladder& ladder, const LadderResult& result,
                        const LadderOptions& options) {
  ordered_json json = {{"title", ladder.title},
                       {"recipe", ladder.recipe},
                       {"set", settings_json(ladder.set)},
                       {"unit", unit_of(result)},
                       {"host", ordered_json::parse(host_json())},
                       {"commit", build_commit()},
                       {"rounds", options.rounds},
                       {"seconds", options.seconds},
                       {"interrupted", result.interrupted},
                       {"rungs", ordered_json::array()}};
  for (size_t i = 0; i < ladder.rungs.size(); ++i)
    json["rungs"].push_back(to_json(ladder.rungs[i], result.rungs[i]));
  return json_text(json);
}

}  // namespace saturate
