// The head of a report: what was run, how it ended, and the key figures.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "report/page_text.h"
#include "report/report_parts.h"

namespace saturate {
namespace {

std::optional<std::string> recipe_value(const RunReading& run, const std::string& key) {
  for (const auto& [name, value] : run.recipe)
    if (name == key) return value;
  return std::nullopt;
}

std::optional<double> planned_epochs(const RunReading& run) {
  const auto text = recipe_value(run, "train.epochs");
  if (!text) return std::nullopt;
  const double epochs = std::strtod(text->c_str(), nullptr);
  return epochs > 0 ? std::optional(epochs) : std::nullopt;
}

std::string epochs_text(const ShownRun& run) {
  const auto planned = planned_epochs(*run.reading);
  const std::string done = fmt::format("{:.4g}", run.figures.epochs);
  // Runs of a fraction of an epoch are rounded up to whole steps.
  if (!planned || run.figures.epochs >= *planned - 1e-9) return done + " epochs";
  return fmt::format("{} of {:g} epochs", done, *planned);
}

std::string state_badge(const ShownRun& run) {
  switch (run.reading->state) {
    case RunState::kRunning:
      return "<span class=\"state running\">still running</span>";
    case RunState::kStopped:
      return "<span class=\"state stopped\">stopped without an end</span>";
    case RunState::kEnded:
      break;
  }
  const auto planned = planned_epochs(*run.reading);
  const bool early = planned && run.figures.epochs < *planned - 1e-9;
  return early ? "<span class=\"state stopped\">ended early</span>"
               : "<span class=\"state\">finished</span>";
}

// "resnet9 on tar:photos, 15 epochs".
std::string subject(const ShownRun& run) {
  std::string text;
  if (const auto model = recipe_value(*run.reading, "model.name"))
    text += "<span class=\"data\">" + escape_html(*model) + "</span> ";
  if (const auto source = recipe_value(*run.reading, "data.source"))
    text += "on <span class=\"data\">" + escape_html(*source) + "</span>, ";
  return text + epochs_text(run) + " " + state_badge(run);
}

std::string warnings_of(const std::vector<ShownRun>& runs) {
  std::string items;
  for (const auto& run : runs)
    for (const auto& warning : run.reading->warnings)
      items += "<li>" + (runs.size() > 1 ? escape_html(run.name) + ": " : "") +
               escape_html(warning) + "</li>";
  if (items.empty()) return "";
  return "<div class=\"note\" role=\"note\"><strong>Not everything could be read</strong><ul>" +
         items + "</ul></div>\n";
}

double share(const ShownRun& run, std::initializer_list<Phase> phases) {
  double seconds = 0;
  for (const Phase phase : phases) seconds += (*run.figures.phases)[phase];
  return seconds / run.figures.phases->total();
}

std::optional<double> computing(const ShownRun& run) {
  if (!run.figures.phases) return std::nullopt;
  return share(run, {Phase::kForward, Phase::kBackward, Phase::kOptimizer});
}

std::optional<double> waiting(const ShownRun& run) {
  if (!run.figures.phases) return std::nullopt;
  return share(run, {Phase::kWait});
}

// Units, which follow a narrow space, are set in smaller type.
std::string with_small_units(const std::string& value) {
  const std::string gap = "\u202f";
  std::string html;
  for (size_t at = 0; at < value.size();) {
    const size_t unit = std::min(value.find(gap, at), value.size());
    const size_t end = std::min(value.find(' ', unit), value.size());
    html.append(value, at, unit - at);
    if (unit < end) html += "<span class=\"unit\">" + value.substr(unit, end - unit) + "</span>";
    if (end < value.size()) html += ' ';
    at = end + 1;
  }
  return html;
}

std::string card(const std::string& title, const std::string& value, const std::string& detail) {
  return "<div><dt>" + title + "</dt><dd class=\"value\">" + with_small_units(value) +
         "</dd><dd class=\"detail\">" + detail + "</dd></div>\n";
}

std::string accuracy_detail(const RunFigures& figures) {
  std::string detail = "loss " + decimal_text(figures.loss, 4);
  if (figures.mean_iou) detail += ", mean IoU " + decimal_text(figures.mean_iou, 4);
  if (figures.accuracy5) detail += ", top-5 " + percent_text(figures.accuracy5);
  if (figures.best_accuracy && figures.best_accuracy > figures.accuracy)
    detail += ", best " + percent_text(figures.best_accuracy);
  return detail;
}

// Unknown values have no card.
std::string telemetry_cards(const Telemetry& found) {
  std::string html;
  if (found.cores) html += card("Cores in use", decimal_text(found.cores, 2), "mean of the run");
  if (found.tflop_per_s)
    html += card("Computed", decimal_text(found.tflop_per_s, 2) + "\u202fTFLOP/s",
                 percent_text(found.peak_share, 1) + " of the device's peak");
  if (found.gpu_busy)
    html += card("GPU busy", percent_text(found.gpu_busy, 0),
                 found.throttle_reasons.empty()
                     ? "clocks were not throttled"
                     : "throttled by " + escape_html(found.throttle_reasons));
  if (found.joules_per_sample)
    html += card("Energy", decimal_text(found.joules_per_sample, 3) + "\u202fJ",
                 "of the GPU, an image");
  return html;
}

std::string cards(const ShownRun& run) {
  const RunFigures& figures = run.figures;
  std::string html = card(figures.held_out ? "Accuracy, held out" : "Accuracy, training",
                          percent_text(figures.accuracy), accuracy_detail(figures));
  const bool ended = run.reading->state == RunState::kEnded;
  html += card(ended ? "Time to train" : "Time so far", time_text(figures.time_s),
               epochs_text(run) + ", " + count_text(figures.steps) + " steps");
  html += card("Throughput", rate_text(figures.images_per_s), "in training");
  if (figures.phases) {
    html += card("Computing", percent_text(computing(run), 1), "forward, backward, optimizer");
    html += card("Waiting for input", percent_text(waiting(run), 1), "of the wall time");
  }
  if (figures.memory_peak_bytes)
    html += card("Peak memory", memory_text(figures.memory_peak_bytes), "of the process");
  if (figures.telemetry) html += telemetry_cards(*figures.telemetry);
  return "<dl class=\"cards\">\n" + html + "</dl>\n";
}

struct Row {
  const char* title;
  std::function<std::optional<double>(const ShownRun&)> value;
  std::function<std::string(std::optional<double>)> format;
  bool in_points;  // differences in percentage points, not in percent of the first
};

std::vector<Row> rows() {
  const auto exact = [](std::optional<double> value) { return percent_text(value); };
  const auto coarse = [](std::optional<double> value) { return percent_text(value, 1); };
  const auto loss = [](std::optional<double> value) { return decimal_text(value, 4); };
  const auto time = [](std::optional<double> value) { return value ? time_text(*value) : "n/a"; };
  const auto count = [](std::optional<double> value) {
    return value ? count_text(std::llround(*value)) : "n/a";
  };
  const auto memory = [](std::optional<double> value) {
    return memory_text(value ? std::optional(int64_t(*value)) : std::nullopt);
  };
  const auto of = [](auto member) {
    return [member](const ShownRun& run) {
      const auto value = run.figures.*member;
      return std::optional<double>(value);
    };
  };
  const auto plain = [](std::optional<double> value) { return decimal_text(value, 2); };
  const auto telemetry = [](auto member) {
    return [member](const ShownRun& run) {
      const auto& found = run.figures.telemetry;
      return found ? (*found).*member : std::optional<double>();
    };
  };
  return {{"Accuracy", of(&RunFigures::accuracy), exact, true},
          {"Top-5 accuracy", of(&RunFigures::accuracy5), exact, true},
          {"Mean IoU", of(&RunFigures::mean_iou), loss, false},
          {"Best accuracy", of(&RunFigures::best_accuracy), exact, true},
          {"Loss", of(&RunFigures::loss), loss, false},
          {"Time", of(&RunFigures::time_s), time, false},
          {"Steps", of(&RunFigures::steps), count, false},
          {"Throughput in training", of(&RunFigures::images_per_s), rate_text, false},
          {"Computing", computing, coarse, true},
          {"Waiting for input", waiting, coarse, true},
          {"Peak memory", of(&RunFigures::memory_peak_bytes), memory, false},
          {"Cores in use", telemetry(&Telemetry::cores), plain, false},
          {"TFLOP/s", telemetry(&Telemetry::tflop_per_s), plain, false},
          {"GPU busy", telemetry(&Telemetry::gpu_busy), coarse, true},
          {"Joules an image", telemetry(&Telemetry::joules_per_sample), loss, false}};
}

std::string difference(const Row& row, const ShownRun& first, const ShownRun& run) {
  const auto from = row.value(first), to = row.value(run);
  if (!from || !to) return "";
  if (*from == *to) return "<small>the same</small>";
  if (row.in_points) return fmt::format("<small>{:+.2f} points</small>", (*to - *from) * 100);
  if (*from == 0) return "";
  return fmt::format("<small>{:+.1f}\u202f%</small>", (*to / *from - 1) * 100);
}

std::string difference_table(const std::vector<ShownRun>& runs) {
  std::string head = "<th scope=\"col\">Figure</th>", body;
  for (const auto& run : runs)
    head += "<th scope=\"col\" class=\"number\">" + escape_html(run.name) + "</th>";
  for (const auto& row : rows()) {
    std::string cells;
    bool known = false;
    for (const auto& run : runs) {
      known = known || row.value(run);
      cells += "<td class=\"number\">" + row.format(row.value(run)) +
               (&run == &runs.front() ? "" : difference(row, runs.front(), run)) + "</td>";
    }
    if (known)
      body += std::string("<tr><th scope=\"row\">") + row.title + "</th>" + cells + "</tr>\n";
  }
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Figures of all "
         "runs\">\n"
         "<table><thead><tr>" +
         head + "</tr></thead><tbody>\n" + body +
         "</tbody></table></div>\n<p class=\"soft\"><small>Accuracy and loss are those of the last "
         "evaluation, or of training in a run without one. Differences are to the first run." +
         "</small></p>\n";
}

}  // namespace

std::string head_section(const std::vector<ShownRun>& runs,
                         const std::vector<LadderReading>& ladders) {
  std::string html = "<p class=\"brand\">saturate · run report</p>\n";
  if (runs.empty()) {
    html += "<h1>" + escape_html(ladders.front().title) + "</h1>\n";
  } else if (runs.size() == 1) {
    html += "<h1>" + escape_html(runs.front().name) + "</h1>\n<p class=\"lead\">" +
            subject(runs.front()) + "</p>\n";
  } else {
    html += fmt::format("<h1>{} runs compared</h1>\n", runs.size());
    for (size_t i = 0; i < runs.size(); ++i)
      html += fmt::format(
          "<p class=\"lead\"><span class=\"swatch\" style=\"background:var(--run-{})\"></span> "
          "<strong class=\"data\">{}</strong> {}</p>\n",
          i % 8, escape_html(runs[i].name), subject(runs[i]));
  }
  return html + warnings_of(runs);
}

std::string figures_section(const std::vector<ShownRun>& runs) {
  if (runs.size() > 1) return difference_table(runs);
  const ShownRun& run = runs.front();
  if (run.reading->steps.empty() && run.reading->evaluations.empty())
    return "<p class=\"note\">The run has recorded no step yet.</p>\n";
  std::string verdict;
  if (run.figures.phases)
    verdict = fmt::format(
        "<p class=\"verdict\">Of {}, {} went into forward, backward and optimizer, {} into "
        "evaluation, and {} were spent waiting for input.</p>\n",
        time_text(run.figures.phases->total()), percent_text(computing(run), 1),
        percent_text(share(run, {Phase::kEvaluation}), 1), percent_text(waiting(run), 1));
  return verdict + cards(run);
}

}  // namespace saturate
