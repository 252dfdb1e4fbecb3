// A report's section on the last evaluation by class.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/page_text.h"
#include "report/report_parts.h"

namespace saturate {
namespace {

constexpr size_t kMatrixClasses = 24;  // most classes with a full confusion matrix
constexpr size_t kShownClasses = 24;   // most rows of the other tables

std::string number_cell(const std::string& text) {
  return "<td class=\"number\">" + text + "</td>";
}

std::string class_cell(const std::string& name) {
  return "<th scope=\"row\" class=\"data\">" + escape_html(name) + "</th>";
}

std::string scrolled_classes(const char* label, const std::string& head, const std::string& body) {
  return fmt::format("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n",
                     label) +
         "<table><thead><tr>" + head + "</tr></thead><tbody>\n" + body + "</tbody></table></div>\n";
}

// "dog 41, deer 12".
std::string answers_html(const ClassResults& results, size_t label) {
  std::string html;
  for (const ConfusionCell& cell : worst_confusions(results, 3, int64_t(label)))
    html += (html.empty() ? "" : ", ") +
            ("<span class=\"data\">" + escape_html(results.classes[size_t(cell.prediction)].name) +
             "</span>&nbsp;") +
            count_text(cell.count);
  return html;
}

std::string class_row(const ClassResults& results, size_t at) {
  const ClassResult& of = results.classes[at];
  std::string cells = class_cell(of.name) + number_cell(count_text(of.count));
  if (results.of_pixels) cells += number_cell(decimal_text(of.iou(), 4));
  cells += number_cell(percent_text(of.accuracy()));
  if (!results.of_pixels) cells += "<td>" + answers_html(results, at) + "</td>";
  return "<tr>" + cells + "</tr>\n";
}

std::string class_table(const ClassResults& results) {
  std::string head = "<th scope=\"col\">Class</th>", body;
  const auto column = [&](const char* title) {
    head += fmt::format("<th scope=\"col\" class=\"number\">{}</th>", title);
  };
  column(results.of_pixels ? "Pixels" : "Images");
  if (results.of_pixels) column("IoU");
  column("Accuracy");
  if (!results.of_pixels) head += "<th scope=\"col\">Most often taken for</th>";
  for (const size_t at : worst_classes(results, kShownClasses)) body += class_row(results, at);
  return scrolled_classes("Classes, the worst first", head, body);
}

// Tinted by the share of the row's images; wrong ones are emphasised.
std::string matrix_cell(int64_t count, int64_t images, bool right) {
  if (count == 0) return "<td class=\"number soft\">0</td>";
  const double share = double(count) / double(std::max<int64_t>(images, 1));
  return fmt::format("<td class=\"number cell {}\" style=\"--share:{:.0f}%\">{}</td>",
                     right ? "right" : "wrong", 60 * (right ? share : std::sqrt(share)),
                     count_text(count));
}

std::string matrix_html(const ClassResults& results) {
  const size_t count = results.classes.size();
  std::vector<int64_t> cells(count * count);
  for (const ConfusionCell& cell : results.confusion)
    cells[size_t(cell.label) * count + size_t(cell.prediction)] = cell.count;
  std::string head = "<th scope=\"col\">Class \\ answer</th>", body;
  for (const ClassResult& of : results.classes)
    head += "<th scope=\"col\" class=\"number data answer\">" + escape_html(of.name) + "</th>";
  for (size_t i = 0; i < count; ++i) {
    body += "<tr>" + class_cell(results.classes[i].name);
    for (size_t j = 0; j < count; ++j)
      body += matrix_cell(cells[i * count + j], results.classes[i].count, i == j);
    body += "</tr>\n";
  }
  return "<h3>Confusion matrix</h3>\n<p class=\"soft\">A row for each class, a column for "
         "each "
         "answer, in images.</p>\n" +
         scrolled_classes("Confusion matrix", head, body);
}

std::string confusion_table(const ClassResults& results) {
  std::string head =
      "<th scope=\"col\">Class</th><th scope=\"col\">Taken for</th>"
      "<th scope=\"col\" class=\"number\">Images</th><th scope=\"col\" class=\"number\">Of "
      "its</th>";
  std::string body;
  for (const ConfusionCell& cell : worst_confusions(results, kShownClasses)) {
    const ClassResult& of = results.classes[size_t(cell.label)];
    body += "<tr>" + class_cell(of.name) + "<td class=\"data\">" +
            escape_html(results.classes[size_t(cell.prediction)].name) + "</td>" +
            number_cell(count_text(cell.count)) + number_cell(count_text(of.count)) + "</tr>\n";
  }
  if (body.empty()) return "";
  return "<h3>Most frequent confusions</h3>\n" + scrolled_classes("Confusions", head, body);
}

std::string classes_intro(const ClassResults& results, size_t seen) {
  const std::string order = results.of_pixels ? "the least overlap" : "the least accurate";
  const std::string which =
      seen > kShownClasses
          ? fmt::format("The {} worst of {} classes, {} first", kShownClasses, seen, order)
          : fmt::format("All classes, {} first", order);
  return fmt::format("<p class=\"soft\">{}, in the evaluation after step {}.</p>\n", which,
                     results.step);
}

std::string results_html(const ClassResults& results) {
  const size_t seen = worst_classes(results, results.classes.size()).size();
  std::string html = classes_intro(results, seen) + class_table(results);
  if (results.of_pixels) return html;
  return html + (results.classes.size() <= kMatrixClasses ? matrix_html(results)
                                                          : confusion_table(results));
}

}  // namespace

std::string classes_section(const std::vector<ShownRun>& runs) {
  std::string html;
  for (const auto& run : runs) {
    const auto& found = run.reading->by_class;
    if (!found || worst_classes(*found, 1).empty()) continue;
    if (runs.size() > 1) html += "<h3>" + escape_html(run.name) + "</h3>\n";
    html += results_html(*found);
  }
  return html;
}

}  // namespace saturate
