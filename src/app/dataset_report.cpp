#include "app/dataset_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/printable.h"
#include "record/json_fields.h"

namespace saturate {
namespace {

nlohmann::ordered_json to_json(const Spread& spread) {
  return {{"min", spread.min}, {"median", spread.median}, {"max", spread.max}};
}

nlohmann::ordered_json to_json(const std::vector<FieldReport>& fields) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const FieldReport& of : fields)
    json.push_back({{"name", as_utf8(of.field.name)},
                    {"type", element_name(of.field.type)},
                    {"shape", of.field.shape},
                    {"target", of.field.is_target},
                    {"min", of.min},
                    {"max", of.max},
                    {"mean", of.mean},
                    {"not_finite", of.not_finite}});
  return json;
}

// For masks and labels of voxels: the share of each class among those that are not ignored.
void print_pixels(const DatasetReport& report) {
  const uint64_t labelled =
      std::accumulate(report.class_pixels.begin(), report.class_pixels.end(), uint64_t{0});
  if (labelled == 0) return;
  fmt::print("  {}   {:.2f}% of the {} are ignored; of the others\n",
             report.has_voxels ? "labels" : "masks ",
             100.0 * double(report.ignored_pixels) / double(labelled + report.ignored_pixels),
             report.has_voxels ? "voxels" : "pixels");
  for (size_t i = 0; i < report.classes.size(); ++i)
    fmt::print("    {:>7.2f}%  {}\n", 100.0 * double(report.class_pixels[i]) / double(labelled),
               printable(report.classes[i]));
}

std::string sizes_text(const TensorField& field) {
  return fmt::format("{}{}", field.is_sequence ? "up to " : "", fmt::join(field.shape, ", "));
}

void print_fields(const DatasetReport& report) {
  for (const FieldReport& of : report.fields)
    fmt::print("  field    {}: {} [{}]{}, {:.6g} to {:.6g}, mean {:.6g}{}\n",
               printable(of.field.name), element_name(of.field.type), sizes_text(of.field),
               of.field.is_target ? ", the target" : "", of.min, of.max, of.mean,
               of.not_finite == 0 ? "" : fmt::format("; {} not finite", of.not_finite));
}

void print_images(const DatasetReport& report) {
  fmt::print("  format   {} JPEG, {} PNG, {}{} raw; {} grey, {} colour, {} CMYK or RGBA\n",
             report.jpeg, report.png,
             report.webp + report.avif > 0
                 ? fmt::format("{} WebP, {} AVIF, ", report.webp, report.avif)
                 : "",
             report.raw, report.components[1] + report.components[2], report.components[3],
             report.components[4]);
  if (report.looked_at > report.broken.size()) {
    fmt::print("  width    {} to {}, median {}\n", report.width.min, report.width.max,
               report.width.median);
    fmt::print("  height   {} to {}, median {}\n", report.height.min, report.height.max,
               report.height.median);
  }
}

}  // namespace

nlohmann::ordered_json to_json(const std::vector<BrokenSample>& samples) {
  nlohmann::ordered_json broken = nlohmann::ordered_json::array();
  for (const auto& sample : samples)
    broken.push_back({{"index", sample.index}, {"name", sample.name}, {"reason", sample.reason}});
  return broken;
}

std::string to_json(const DatasetReport& report) {
  nlohmann::ordered_json classes = nlohmann::ordered_json::object();
  for (size_t i = 0; i < report.classes.size(); ++i)
    classes[as_utf8(report.classes[i])] = report.class_samples[i];
  nlohmann::ordered_json json = {{"samples", report.samples},
                                 {"looked_at", report.looked_at},
                                 {"bytes", report.bytes},
                                 {"jpeg", report.jpeg},
                                 {"png", report.png},
                                 {"webp", report.webp},
                                 {"avif", report.avif},
                                 {"raw", report.raw},
                                 {"grey", report.components[1] + report.components[2]},
                                 {"width", to_json(report.width)},
                                 {"height", to_json(report.height)},
                                 {"classes", classes},
                                 {"broken", to_json(report.broken)}};
  if (!report.fields.empty()) json["fields"] = to_json(report.fields);
  if (!report.note.empty()) json["note"] = as_utf8(report.note);
  if (!report.has_masks && !report.has_voxels) return json_text(json);
  nlohmann::ordered_json pixels = nlohmann::ordered_json::object();
  for (size_t i = 0; i < report.classes.size(); ++i)
    pixels[as_utf8(report.classes[i])] = report.class_pixels[i];
  json[report.has_voxels ? "class_voxels" : "class_pixels"] = pixels;
  json[report.has_voxels ? "ignored_voxels" : "ignored_pixels"] = report.ignored_pixels;
  return json_text(json);
}

void print_broken(const DatasetReport& report, const char* indent) {
  for (const auto& sample : report.broken)
    fmt::print("{}{}: {}\n", indent, printable(sample.name), printable(sample.reason));
}

void print_report(const DatasetReport& report, const std::string& source) {
  const bool sampled = report.looked_at < report.samples;
  const double scale = double(report.samples) / double(std::max<size_t>(1, report.looked_at));
  const bool has_classes = report.fields.empty() || !report.classes.empty();
  fmt::print("{}\n  {}  {}{}, {}{:.1f} MB\n", printable(source),
             report.fields.empty() ? "images " : "samples", report.samples,
             has_classes ? fmt::format(" in {} classes", report.classes.size()) : "",
             sampled ? "about " : "", double(report.bytes) * scale * 1e-6);
  if (sampled)
    fmt::print("  all below{} is for {} of them, evenly spread; --all inspects all\n",
               report.class_pixels.empty() ? " except classes" : "", report.looked_at);
  report.fields.empty() ? print_images(report) : print_fields(report);
  print_pixels(report);
  constexpr size_t kShownNote = 400;
  if (!report.note.empty())
    fmt::print("  note     {}{}\n",
               printable(report.note.substr(
                   0, whole_characters(std::string_view(report.note).substr(0, kShownNote)))),
               report.note.size() > kShownNote ? "... (all of it with --json FILE)" : "");
  constexpr size_t kShown = 20;
  if (!report.classes.empty()) fmt::print("  classes\n");
  for (size_t i = 0; i < std::min(kShown, report.classes.size()); ++i)
    fmt::print("    {:>8}  {}\n", report.class_samples[i], printable(report.classes[i]));
  if (report.classes.size() > kShown)
    fmt::print("    and {} more (--json FILE lists all)\n", report.classes.size() - kShown);
  fmt::print("  broken   {} {}; saturate data verify {} every {}\n", report.broken.size(),
             report.fields.empty() ? "by their headers" : "of those read",
             report.fields.empty() ? "decodes" : "reads",
             report.fields.empty() ? "image" : "sample");
  print_broken(report, "    ");
}

}  // namespace saturate
