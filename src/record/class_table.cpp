// An evaluation's results by class, as text for a terminal.
#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "record/class_results.h"

namespace saturate {
namespace {

constexpr size_t kAllClasses = 20;     // up to this many classes, all are shown
constexpr size_t kWorstClasses = 10;   // shown of more classes
constexpr size_t kTerminalWidth = 80;  // columns

std::string percent_of_class(std::optional<double> share) {
  return share ? fmt::format("{:.2f}%", *share * 100) : "n/a";
}

// Shortens a long name in the middle: many differ only at their ends.
std::string short_name(const ClassResult& of, size_t most) {
  const std::string name = printable(of.name);
  std::vector<size_t> begins;  // byte offsets of characters
  for (size_t at = 0; at < name.size(); ++at)
    if ((static_cast<unsigned char>(name[at]) & 0xc0) != 0x80) begins.push_back(at);
  if (begins.size() <= most) return name;
  const size_t tail = most / 3, head = most - tail - 1;
  return name.substr(0, begins[head]) + "\u2026" + name.substr(begins[begins.size() - tail]);
}

std::string class_column(const ClassResult& of) {
  return fmt::format("  {:<24}", short_name(of, 24));
}

// "dog 41, deer 12": as many as fit on the line.
std::string answers_text(const ClassResults& results, size_t label) {
  constexpr size_t kRoom = kTerminalWidth - 46;
  std::string text;
  for (const ConfusionCell& cell : worst_confusions(results, 3, int64_t(label))) {
    const std::string next =
        fmt::format("{}{} {}", text.empty() ? "" : ", ",
                    short_name(results.classes[size_t(cell.prediction)], 16), cell.count);
    if (text.size() + next.size() > kRoom) break;
    text += next;
  }
  return text;
}

std::string class_line(const ClassResults& results, size_t at) {
  const ClassResult& of = results.classes[at];
  if (results.of_pixels)
    return class_column(of) + fmt::format("{:>12}{:>10}{:>12}\n", of.count,
                                          of.iou() ? fmt::format("{:.4f}", *of.iou()) : "n/a",
                                          percent_of_class(of.accuracy()));
  return class_column(of) + fmt::format("{:>8}{:>10}  {}\n", of.count,
                                        percent_of_class(of.accuracy()), answers_text(results, at));
}

std::string class_lines(const ClassResults& results, size_t shown) {
  std::string text =
      results.of_pixels
          ? fmt::format("  {:<24}{:>12}{:>10}{:>12}\n", "class", "pixels", "IoU", "accuracy")
          : fmt::format("  {:<24}{:>8}{:>10}  {}\n", "class", "images", "accuracy", "predicted as");
  for (const size_t at : worst_classes(results, shown)) text += class_line(results, at);
  return text;
}

// One row per class and one column per answer, numbered alike. Empty if the lines would be too
// long.
std::string matrix_text(const ClassResults& results) {
  const size_t count = results.classes.size();
  std::vector<int64_t> cells(count * count);
  int64_t largest = 0;
  for (const ConfusionCell& cell : results.confusion) {
    cells[size_t(cell.label) * count + size_t(cell.prediction)] = cell.count;
    largest = std::max(largest, cell.count);
  }
  const size_t width = std::max<size_t>(3, fmt::formatted_size("{}", largest) + 1);
  if (20 + count * width > kTerminalWidth) return "";
  std::string text = fmt::format("\n{:<20}", "answers, by number");
  for (size_t i = 0; i < count; ++i) text += fmt::format("{:>{}}", i, width);
  for (size_t i = 0; i < count; ++i) {
    text += fmt::format("\n  {:>2}  {:<14}", i, short_name(results.classes[i], 14));
    for (size_t j = 0; j < count; ++j) {
      const int64_t cell = cells[i * count + j];
      text += fmt::format("{:>{}}", cell == 0 ? "." : std::to_string(cell), width);
    }
  }
  return text + "\n";
}

}  // namespace

std::string format_class_results(const ClassResults& results) {
  const size_t seen = worst_classes(results, results.classes.size()).size();
  const bool all = results.classes.size() <= kAllClasses;
  const std::string title =
      all ? "by class, worst first\n"
          : fmt::format("the worst {} of {} classes\n", std::min(seen, kWorstClasses), seen);
  return title + class_lines(results, all ? kAllClasses : kWorstClasses) +
         (all && !results.of_pixels ? matrix_text(results) : "");
}

}  // namespace saturate
