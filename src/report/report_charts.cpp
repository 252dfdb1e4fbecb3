// A report's charts: their elements and their data. page.js draws them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/page_text.h"
#include "report/report_parts.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostPoints = 800;     // per line
constexpr int kTimelineBins = 120;      // per run
constexpr double kLeastShare = 0.0005;  // a phase with a smaller share in every run is not drawn

constexpr std::array<const char*, kPhaseCount> kPhaseMeanings = {
    "starved of input",
    "from host to device",
    "inside the step; loader threads augment beside it",
    "model and loss",
    "gradients",
    "exposed communication",
    "update of the weights",
    "metrics, progress, bookkeeping",
    "copying and writing the weights",
    "on held-out images",
    "set-up, and between epochs"};

std::string name_of(int phase) {
  return std::string(phase_name(Phase(phase)));
}

bool is_shown(const std::vector<ShownRun>& runs, int phase) {
  return std::any_of(runs.begin(), runs.end(), [&](const ShownRun& run) {
    const auto& phases = run.figures.phases;
    return phases && (*phases)[Phase(phase)] >= kLeastShare * phases->total();
  });
}

std::string phase_head(int phase) {
  return fmt::format(
      "<th scope=\"row\"><span class=\"swatch\" style=\"background:var(--phase-{0})\"></span> "
      "{0}</th>",
      name_of(phase));
}

std::string number_cell(const std::string& text) {
  return "<td class=\"number\">" + text + "</td>";
}

std::string number_head(const char* title) {
  return fmt::format("<th scope=\"col\" class=\"number\">{}</th>", title);
}

// One run: share with a bar, time, time per step, the same on a GPU, meaning.
std::string phase_table(const ShownRun& run) {
  const PhaseTimes& phases = *run.figures.phases;
  const auto& device = run.figures.device_phases;
  double most = 0;
  for (const double seconds : phases.seconds) most = std::max(most, seconds);
  std::string body;
  for (int i = 0; i < kPhaseCount; ++i) {
    const double seconds = phases[Phase(i)];
    if (seconds == 0) continue;
    const bool in_step = Phase(i) < Phase::kCheckpoint && run.figures.steps > 0;
    const auto timed = [&](double of) {
      return number_cell(time_text(of)) +
             number_cell(in_step ? fmt::format("{:.2f}", 1e3 * of / double(run.figures.steps))
                                 : "");
    };
    body += fmt::format(
        "<tr>{}<td class=\"meter-cell\"><span class=\"meter\" style=\"width:{:.2f}%;"
        "background:var(--phase-{})\"></span></td>{}{}{}<td class=\"soft meaning\">{}</td></tr>\n",
        phase_head(i), 100 * seconds / most, name_of(i),
        number_cell(percent_text(seconds / phases.total(), 1)), timed(seconds),
        device ? timed((*device)[Phase(i)]) : "", kPhaseMeanings[size_t(i)]);
  }
  return "<table><thead><tr><th scope=\"col\">Phase</th><th class=\"meter-cell\"></th>" +
         number_head("Share") + number_head("Time") + number_head("ms a step") +
         (device ? number_head("On the GPU") + number_head("ms a step") : "") +
         "<th scope=\"col\">What it is</th></tr></thead><tbody>\n" + body + "</tbody></table>";
}

std::string phase_table(const std::vector<ShownRun>& runs) {
  std::string head = "<th scope=\"col\">Phase</th>", body;
  for (const auto& run : runs) head += number_head(escape_html(run.name).c_str());
  for (int i = 0; i < kPhaseCount; ++i) {
    std::string cells;
    double seconds = 0;
    for (const auto& run : runs) {
      const auto& phases = run.figures.phases;
      const auto& device = run.figures.device_phases;
      seconds += phases ? (*phases)[Phase(i)] : 0;
      cells += number_cell(
          phases ? fmt::format("{}<small>{}{}</small>",
                               percent_text((*phases)[Phase(i)] / phases->total(), 1),
                               time_text((*phases)[Phase(i)]),
                               device ? ", on the GPU " + time_text((*device)[Phase(i)]) : "")
                 : "n/a");
    }
    if (seconds > 0) body += "<tr>" + phase_head(i) + cells + "</tr>\n";
  }
  return "<table><thead><tr>" + head + "</tr></thead><tbody>\n" + body + "</tbody></table>";
}

double rounded(double value) {
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

ordered_json or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(rounded(*value)) : ordered_json(nullptr);
}

// Fields that some record has: a page need not carry the rest.
std::vector<TelemetryField> known_fields(const std::vector<MetricsRecord>& records) {
  std::vector<TelemetryField> known;
  for (const auto& field : telemetry_fields())
    if (std::any_of(records.begin(), records.end(), [&](const MetricsRecord& record) {
          return record.telemetry && ((*record.telemetry).*field.member).has_value();
        }))
      known.push_back(field);
  return known;
}

ordered_json columns_of(const std::vector<MetricsRecord>& all) {
  const auto machine_fields = known_fields(all);
  ordered_json columns = {{"step", ordered_json::array()}};
  for (const char* key :
       {"epoch", "time_s", "loss", "accuracy", "lr", "images_per_s", "memory_peak_bytes"})
    columns[key] = ordered_json::array();
  for (const auto& field : machine_fields) columns[field.name] = ordered_json::array();
  for (const auto& record : thinned(all, kMostPoints)) {
    columns["step"].push_back(record.step);
    columns["epoch"].push_back(rounded(record.epoch));
    columns["time_s"].push_back(rounded(record.time_s));
    columns["loss"].push_back(or_null(record.loss));
    columns["accuracy"].push_back(or_null(record.accuracy));
    columns["lr"].push_back(or_null(record.lr));
    columns["images_per_s"].push_back(or_null(record.images_per_s));
    for (const auto& field : machine_fields)
      columns[field.name].push_back(
          or_null(record.telemetry ? (*record.telemetry).*field.member : std::nullopt));
    const auto& bytes = record.memory_peak_bytes;
    columns["memory_peak_bytes"].push_back(bytes ? ordered_json(*bytes) : ordered_json(nullptr));
  }
  return columns;
}

ordered_json timeline_of(const ShownRun& run, const std::vector<ShownRun>& runs) {
  const auto bins = even_spans(time_spans(*run.reading), kTimelineBins);
  ordered_json phases = ordered_json::object();
  for (int i = 0; i < kPhaseCount; ++i) {
    if (bins.empty() || !is_shown(runs, i)) continue;
    ordered_json shares = ordered_json::array();
    for (const auto& bin : bins) {
      const double total = bin.phases.total();
      shares.push_back(total > 0 ? rounded(bin.phases[Phase(i)] / total) : 0);
    }
    phases[name_of(i)] = shares;
  }
  return {{"width_s", bins.empty() ? 0 : rounded(bins.front().end_s)}, {"phases", phases}};
}

// Spans as [name, begin, end] in whole nanoseconds.
ordered_json trace_of(const ShownRun& run) {
  const auto& found = run.reading->timeline;
  if (!found) return nullptr;
  const auto ns = [](double us) { return std::llround(us * 1e3); };
  ordered_json tracks = ordered_json::array();
  for (const auto& track : found->tracks) {
    ordered_json spans = ordered_json::array();
    for (const auto& span : track.spans)
      spans.push_back({span.name, ns(span.begin_us), ns(span.end_us)});
    tracks.push_back({{"name", track.name}, {"spans", spans}});
  }
  return {{"names", found->names}, {"end_ns", ns(found->end_us)}, {"tracks", tracks}};
}

ordered_json shares_of(const RungReading& rung) {
  ordered_json shares = ordered_json::object();
  for (int i = 0; i < kPhaseCount && rung.phases; ++i)
    if (const double share = (*rung.phases)[Phase(i)]; share >= kLeastShare)
      shares[name_of(i)] = rounded(share);
  return shares;
}

ordered_json ladder_data(const LadderReading& ladder) {
  ordered_json rungs = ordered_json::array();
  for (const auto& rung : ladder.rungs)
    rungs.push_back({{"name", rung.name},
                     {"phases", shares_of(rung)},
                     {"rate", or_null(rung.images_per_s ? rung.images_per_s : rung.steps_per_s)},
                     {"gain", or_null(rung.gain_first)},
                     {"low", or_null(rung.low)},
                     {"high", or_null(rung.high)}});
  const bool images =
      std::any_of(ladder.rungs.begin(), ladder.rungs.end(),
                  [](const RungReading& rung) { return rung.images_per_s.has_value(); });
  return {{"title", ladder.title}, {"unit", images ? "images/s" : "steps/s"}, {"rungs", rungs}};
}

ordered_json run_data(const ShownRun& run, const std::vector<ShownRun>& runs) {
  ordered_json totals = ordered_json::object();
  for (int i = 0; i < kPhaseCount && run.figures.phases; ++i)
    if (is_shown(runs, i)) totals[name_of(i)] = rounded((*run.figures.phases)[Phase(i)]);
  return {{"name", run.name},
          {"time_s", rounded(run.figures.time_s)},
          {"steps", columns_of(run.reading->steps)},
          {"evaluations", columns_of(run.reading->evaluations)},
          {"timeline", timeline_of(run, runs)},
          {"trace", trace_of(run)},
          {"totals", totals}};
}

// Whether any run has a value for the line.
template <class Value>
bool any(const std::vector<ShownRun>& runs, const Value& value) {
  for (const auto& run : runs)
    for (const auto* records : {&run.reading->steps, &run.reading->evaluations})
      for (const auto& record : *records)
        if (value(record)) return true;
  return false;
}

}  // namespace

std::string chart_figure(const std::string& chart, const std::string& title,
                         const std::string& detail, const std::string& classes,
                         const std::string& plot_classes) {
  return fmt::format(
      "<figure class=\"{}\"><figcaption>{}<small>{}</small></figcaption>\n<div "
      "class=\"legend\"></div>"
      "<div class=\"plot {}\"><canvas data-chart=\"{}\" tabindex=\"0\" role=\"img\" "
      "aria-label=\"{}. Arrow keys read the values.\"></canvas></div></figure>\n",
      classes, title, detail, plot_classes, chart, title);
}

std::string phases_section(const std::vector<ShownRun>& runs) {
  std::string timelines;
  size_t timed = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].figures.phases) continue;
    ++timed;
    timelines +=
        chart_figure(fmt::format("phases:{}", i),
                     runs.size() == 1 ? "Share of wall time by phase" : escape_html(runs[i].name),
                     "over the time of the run", "wide");
  }
  if (timed == 0) return "";
  if (runs.size() == 1)
    return timelines +
           "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Time by phase\">\n" +
           phase_table(runs.front()) + "</div>\n";
  return fmt::format("<div style=\"--rows:{}\">", runs.size()) +
         chart_figure("totals", "Wall time by phase", "of each run", "wide", "bars") + "</div>\n" +
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Time by phase\">\n" +
         phase_table(runs) +
         "</div>\n<h3>Share of wall time by phase, over the time of each run</h3>\n"
         "<div class=\"charts\">\n" +
         timelines + "</div>\n";
}

std::string curves_section(const std::vector<ShownRun>& runs) {
  std::string learning, speed;
  if (any(runs, [](const MetricsRecord& record) { return record.loss.has_value(); }))
    learning +=
        chart_figure("loss", "Loss", "mean since the point before; held out at each evaluation");
  if (any(runs, [](const MetricsRecord& record) { return record.accuracy.has_value(); }))
    learning += chart_figure("accuracy", "Accuracy",
                             "%, of the first guess; training as the mean of neighbouring records");
  const auto in_steps = [&runs](auto member) {
    return any(runs, [member](const MetricsRecord& record) {
      return record.kind == "step" && (record.*member).has_value();
    });
  };
  if (in_steps(&MetricsRecord::images_per_s))
    speed += chart_figure("images_per_s", "Throughput", "images/s in training");
  if (in_steps(&MetricsRecord::memory_peak_bytes))
    speed += chart_figure("memory", "Peak memory", "GiB of the process, so far");
  if (in_steps(&MetricsRecord::lr))
    speed += chart_figure("lr", "Learning rate", "before factors by layer");
  if (learning.empty() && speed.empty()) return "";
  const auto choice = [](const char* value, const char* text, const char* more) {
    return fmt::format("<label><input type=\"radio\" name=\"axis\" value=\"{}\"{}> {}</label>",
                       value, more, text);
  };
  return "<fieldset><legend>Horizontal axis</legend>" + choice("step", "steps", " checked") +
         choice("epoch", "epochs", "") + choice("time", "time", "") +
         "</fieldset>\n<div class=\"charts\">\n" + learning +
         "</div>\n<div class=\"charts three\">\n" + speed + "</div>\n";
}

std::string chart_data(const std::vector<ShownRun>& runs,
                       const std::vector<LadderReading>& ladders) {
  ordered_json phases = ordered_json::array(), shown = ordered_json::array(),
               measured = ordered_json::array();
  for (const auto& ladder : ladders) measured.push_back(ladder_data(ladder));
  for (int i = 0; i < kPhaseCount; ++i) phases.push_back(name_of(i));
  for (const auto& run : runs) shown.push_back(run_data(run, runs));
  return script_json({{"phases", phases}, {"runs", shown}, {"ladders", measured}});
}

}  // namespace saturate
