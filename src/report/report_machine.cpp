// A report's other sections: the machine, a few steps, images, ladders and sweeps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "report/page_text.h"
#include "report/report_parts.h"

namespace saturate {
namespace {

struct MachineChart {
  const char *field, *title, *detail;
};

// In the order of the page. Shown if a run has the value and it is not always 0.
constexpr std::array<MachineChart, 14> kCharts = {
    {{"gpu_busy", "GPU busy", "%, of the time a kernel ran"},
     {"gpu_sm_active", "SMs active", "%, of the GPU's multiprocessors, in the mean"},
     {"gpu_power_w", "Power", "W, of the GPU"},
     {"gpu_clock_mhz", "Clock", "MHz, of the GPU's SMs"},
     {"gpu_memory_bytes", "Memory of the GPU", "GiB in use, by all processes"},
     {"gpu_throttled", "Throttled", "%, of the readings"},
     {"tflop_per_s", "Computed", "TFLOP/s in convolutions and matrix products"},
     {"cores", "Cores in use", "CPU seconds a second, of the process"},
     {"queue_batches", "Loader queue", "batches ready; 0: the step waits for input"},
     {"rss_bytes", "Memory", "GiB resident, of the process"},
     {"disk_read_bytes_per_s", "Disk reads", "MB/s, of the process"},
     {"disk_write_bytes_per_s", "Disk writes", "MB/s, of the process"},
     {"net_receive_bytes_per_s", "Network, received", "MB/s, of the machine"},
     {"net_send_bytes_per_s", "Network, sent", "MB/s, of the machine"}}};

bool is_shown(const std::vector<ShownRun>& runs, const char* name) {
  for (const auto& field : telemetry_fields()) {
    if (std::string_view(field.name) != name) continue;
    for (const auto& run : runs)
      for (const auto& record : run.reading->steps)
        if (record.telemetry && ((*record.telemetry).*field.member).value_or(0) != 0) return true;
  }
  return false;
}

std::string titled(const std::vector<ShownRun>& runs, const ShownRun& run) {
  return runs.size() > 1 ? "<h3>" + escape_html(run.name) + "</h3>\n" : "";
}

std::string scrolled_table(const char* label, const std::string& head, const std::string& body) {
  return fmt::format(
             "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n"
             "<table><thead><tr>",
             label) +
         head + "</tr></thead><tbody>\n" + body + "</tbody></table></div>\n";
}

// A GPU's streams: how long each was busy, and how long idle between its work.
std::string stream_table(const ShownRun& run) {
  std::string body;
  for (const auto& time : run.figures.streams) {
    const double total = time.busy_s + time.idle_s;
    body += "<tr><th scope=\"row\" class=\"data\">" + escape_html(time.stream) + "</th>";
    for (const std::string& text :
         {percent_text(total > 0 ? std::optional(time.busy_s / total) : std::nullopt, 1),
          time_text(time.busy_s), time_text(time.idle_s)})
      body += "<td class=\"number\">" + text + "</td>";
    body += "</tr>\n";
  }
  if (body.empty()) return "";
  std::string head = "<th scope=\"col\">Stream</th>";
  for (const char* title : {"Share busy", "Busy", "Idle between its work"})
    head += fmt::format("<th scope=\"col\" class=\"number\">{}</th>", title);
  return scrolled_table("GPU streams", head, body);
}

std::string gallery(const KeptImages& kept) {
  std::string html;
  for (const auto& image : kept.images) {
    const std::string title = escape_html(image.title);
    html += "<li><img alt=\"" + title + "\" src=\"" + image.uri + "\"><span class=\"data\">" +
            title + "</span>";
    if (!image.detail.empty())
      html += "<small class=\"data\">" + escape_html(image.detail) + "</small>";
    if (!image.name.empty())
      html += "<small class=\"data\">" + escape_html(image.name) + "</small>";
    html += "</li>\n";
  }
  return "<ul class=\"gallery\">\n" + html + "</ul>\n";
}

std::string gain_text(const std::optional<double>& gain) {
  return gain ? fmt::format("{:+.1f}\u202f%", 100 * (*gain - 1)) : "";
}

std::string interval_text(const RungReading& rung) {
  if (!rung.gain_first || !rung.low || !rung.high || *rung.low <= 0) return "";
  return fmt::format("<small>{} to {}</small>", gain_text(rung.low), gain_text(rung.high));
}

std::string rung_row(const RungReading& rung) {
  const auto number = [](const std::string& text) {
    return "<td class=\"number\">" + text + "</td>";
  };
  std::string cells;
  if (!rung.skipped.empty()) {
    cells = "<td colspan=\"5\" class=\"soft\">skipped: " + escape_html(rung.skipped) + "</td>";
  } else {
    const auto memory = rung.memory_peak_bytes;
    cells = number(decimal_text(rung.steps_per_s, 2)) + number(rate_text(rung.images_per_s)) +
            number(gain_text(rung.gain_previous)) +
            number(gain_text(rung.gain_first) + interval_text(rung)) +
            number(memory_text(memory ? std::optional(int64_t(*memory)) : std::nullopt));
  }
  return "<tr><th scope=\"row\" class=\"data\">" + escape_html(rung.name) + "</th>" + cells +
         "<td class=\"data\">" + escape_html(rung.seed_figure) + "</td><td class=\"data\">" +
         escape_html(rung.set) + "</td></tr>\n";
}

bool has_phases(const LadderReading& ladder) {
  return std::any_of(ladder.rungs.begin(), ladder.rungs.end(),
                     [](const RungReading& rung) { return rung.phases.has_value(); });
}

std::string rung_table(const LadderReading& ladder) {
  std::string head = "<th scope=\"col\">Rung</th>", body;
  for (const char* title : {"Steps/s", "Images/s", "Over previous", "Over first", "Memory"})
    head += fmt::format("<th scope=\"col\" class=\"number\">{}</th>", title);
  for (const auto& rung : ladder.rungs) body += rung_row(rung);
  head += "<th scope=\"col\">Published</th><th scope=\"col\">Settings</th>";
  return scrolled_table("Rungs", head, body);
}

}  // namespace

std::string machine_section(const std::vector<ShownRun>& runs) {
  std::string charts, streams;
  for (const auto& chart : kCharts)
    if (is_shown(runs, chart.field)) charts += chart_figure(chart.field, chart.title, chart.detail);
  for (const auto& run : runs)
    if (const std::string table = stream_table(run); !table.empty())
      streams += titled(runs, run) + table;
  if (!charts.empty()) charts = "<div class=\"charts three\">\n" + charts + "</div>\n";
  if (streams.empty()) return charts;
  return charts + "<h3>GPU streams: busy, idle</h3>\n" + streams;
}

std::string timeline_section(const std::vector<ShownRun>& runs) {
  std::string html;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& timeline = runs[i].reading->timeline;
    if (!timeline) continue;
    const std::string left_out =
        timeline->left_out > 0
            ? fmt::format("; {} of the shortest spans are left out", timeline->left_out)
            : "";
    html +=
        titled(runs, runs[i]) +
        fmt::format(
            "<figure class=\"wide\"><figcaption>{} traced steps<small>of trace.json, which "
            "ui.perfetto.dev shows whole{}</small></figcaption>\n<div class=\"zoom\"></div><div "
            "class=\"plot timeline\"><canvas data-timeline=\"{}\" tabindex=\"0\" role=\"img\" "
            "aria-label=\"Timeline. Plus and minus zoom, arrow keys move, Tab leaves.\"></canvas>"
            "</div></figure>\n",
            timeline->steps, left_out, i);
  }
  return html;
}

std::string samples_section(const std::vector<ShownRun>& runs) {
  std::string html;
  for (const auto& run : runs)
    if (const auto& kept = run.reading->training; kept && !kept->images.empty())
      html += titled(runs, run) +
              fmt::format("<p class=\"soft\">The first images of step {}, as augmented.</p>\n",
                          kept->step) +
              gallery(*kept);
  return html;
}

std::string mistakes_section(const std::vector<ShownRun>& runs) {
  std::string html;
  for (const auto& run : runs)
    if (const auto& kept = run.reading->mistakes; kept && !kept->images.empty())
      html += titled(runs, run) +
              fmt::format(
                  "<p class=\"soft\">Wrong answers of the highest loss in the evaluation after "
                  "step {}.</p>\n",
                  kept->step) +
              gallery(*kept);
  return html;
}

std::string ladders_section(const std::vector<LadderReading>& ladders) {
  std::string html;
  for (size_t i = 0; i < ladders.size(); ++i)
    html +=
        fmt::format("<div style=\"--rows:{}\">", ladders[i].rungs.size()) +
        chart_figure(fmt::format("ladder:{}", i), escape_html(ladders[i].title),
                     "speed of each rung, whiskers: its gain over the first with 95 % confidence",
                     "wide", "bars") +
        (has_phases(ladders[i])
             ? chart_figure(fmt::format("rungs:{}", i), "Where the time of each rung goes",
                            "% of its wall time, by phase", "wide", "bars")
             : "") +
        "</div>\n" + rung_table(ladders[i]);
  return html;
}

}  // namespace saturate
