#include "record/class_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "base/printable.h"
#include "record/json_fields.h"
#include "saturate/metrics.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;

std::optional<double> ratio_of_counts(int64_t count, int64_t total) {
  return total > 0 ? std::optional(double(count) / double(total)) : std::nullopt;
}

ClassResults named_classes(size_t outputs, const std::vector<std::string>& names) {
  ClassResults results;
  results.classes.resize(outputs);
  for (size_t i = 0; i < outputs; ++i)
    results.classes[i].name = i < names.size() ? names[i] : std::to_string(i);
  return results;
}

std::optional<ConfusionCell> confusion_cell(const nlohmann::json& json, size_t classes) {
  if (!json.is_array() || json.size() != 3) return std::nullopt;
  for (const auto& number : json)
    if (!number.is_number_unsigned() || number.get<uint64_t>() > (uint64_t{1} << 53))
      return std::nullopt;
  const ConfusionCell cell{json[0], json[1], json[2]};
  const int64_t count = int64_t(classes);
  return cell.label < count && cell.prediction < count ? std::optional(cell) : std::nullopt;
}

// The sort key of worst_classes(): lower is worse.
double class_score(const ClassResults& results, size_t at) {
  const ClassResult& of = results.classes[at];
  return (results.of_pixels ? of.iou() : of.accuracy()).value_or(1);
}

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

std::optional<double> ClassResult::accuracy() const {
  return ratio_of_counts(correct, count);
}

std::optional<double> ClassResult::iou() const {
  return ratio_of_counts(correct, count + predicted - correct);
}

ClassResults class_results(std::span<const int64_t> cells, int64_t outputs,
                           const std::vector<std::string>& names) {
  ClassResults results = named_classes(size_t(outputs), names);
  std::vector<int64_t> sorted;
  std::ranges::copy_if(cells, std::back_inserter(sorted),
                       [outputs](int64_t cell) { return cell >= 0 && cell / outputs < outputs; });
  std::ranges::sort(sorted);
  for (auto at = sorted.begin(); at != sorted.end();) {
    const auto end = std::upper_bound(at, sorted.end(), *at);
    const ConfusionCell cell{*at / outputs, *at % outputs, end - at};
    ClassResult& own = results.classes[size_t(cell.label)];
    own.count += cell.count;
    own.correct += cell.label == cell.prediction ? cell.count : 0;
    results.classes[size_t(cell.prediction)].predicted += cell.count;
    results.confusion.push_back(cell);
    at = end;
  }
  return results;
}

ClassResults class_results(const std::vector<ClassPixels>& pixels,
                           const std::vector<std::string>& names) {
  ClassResults results = named_classes(pixels.size(), names);
  results.of_pixels = true;
  for (size_t i = 0; i < pixels.size(); ++i) {
    results.classes[i].count = pixels[i].labelled;
    results.classes[i].predicted = pixels[i].predicted;
    results.classes[i].correct = pixels[i].hits;
  }
  return results;
}

std::vector<size_t> worst_classes(const ClassResults& results, size_t most) {
  std::vector<size_t> order(results.classes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return results.classes[i].count == 0; });
  std::ranges::stable_sort(order, {}, [&](size_t i) { return class_score(results, i); });
  if (order.size() > most) order.resize(most);
  return order;
}

std::vector<ConfusionCell> worst_confusions(const ClassResults& results, size_t most,
                                            std::optional<int64_t> label) {
  std::vector<ConfusionCell> wrong;
  for (const ConfusionCell& cell : results.confusion)
    if (cell.label != cell.prediction && cell.label == label.value_or(cell.label))
      wrong.push_back(cell);
  std::ranges::stable_sort(wrong, std::greater(), &ConfusionCell::count);
  if (wrong.size() > most) wrong.resize(most);
  return wrong;
}

void add_json(ordered_json& json, const ClassResults& results) {
  ordered_json classes = ordered_json::array(), confusion = ordered_json::array();
  for (const ClassResult& of : results.classes) {
    classes.push_back({{"name", of.name},
                       {"count", of.count},
                       {"predicted", of.predicted},
                       {"correct", of.correct},
                       {"accuracy", or_null(of.accuracy())}});
    if (results.of_pixels) classes.back()["iou"] = or_null(of.iou());
  }
  for (const ConfusionCell& cell : results.confusion)
    confusion.push_back({cell.label, cell.prediction, cell.count});
  json["counted"] = results.of_pixels ? "pixels" : "images";
  json["classes"] = std::move(classes);
  json["confusion"] = results.of_pixels ? ordered_json() : std::move(confusion);
}

std::string class_results_json(const ClassResults& results) {
  ordered_json json = {{"step", results.step}};
  add_json(json, results);
  return json_text(json, -1);
}

std::optional<ClassResults> parse_class_results(const std::string& text) {
  const auto json = parsed_json(text);
  if (!json.is_object() || !json.contains("classes") || !json["classes"].is_array())
    return std::nullopt;
  ClassResults results;
  results.step = integer_at(json, "step").value_or(0);
  results.of_pixels = text_at(json, "counted") == "pixels";
  for (const auto& of : json["classes"]) {
    if (!of.is_object()) return std::nullopt;
    const auto number = [&](const char* key) {
      return std::max<int64_t>(0, integer_at(of, key).value_or(0));
    };
    results.classes.push_back(
        {text_at(of, "name"), number("count"), number("predicted"), number("correct")});
  }
  for (const auto& entry : array_at(json, "confusion"))
    if (const auto cell = confusion_cell(entry, results.classes.size()))
      results.confusion.push_back(*cell);
  return results;
}

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
