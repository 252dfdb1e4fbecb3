#include "report/run_extras.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "record/json_fields.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

using nlohmann::json;

constexpr size_t kMostImages = 256;
// Bytes.
constexpr uint64_t kLargestImage = uint64_t{4} << 20;
constexpr uint64_t kLargestList = uint64_t{64} << 20;  // all images of a list
constexpr uint64_t kLargestTrace = uint64_t{64} << 20;

// "training-007.png"; rejects names that could leave the folder.
bool is_kept_name(const std::string& name) {
  return !name.empty() && name.size() < 64 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
         });
}

// Empty if the bytes are not an image format that a run writes.
std::string image_uri(std::span<const std::byte> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()),
                              std::min<size_t>(8, bytes.size()));
  if (head == "\x89PNG\r\n\x1a\n") return "data:image/png;base64," + base64(bytes);
  if (head.starts_with("\xff\xd8\xff")) return "data:image/jpeg;base64," + base64(bytes);
  return "";
}

// The image's URI; empty if it is none, or larger than a run's. `bytes_left`: of the list.
std::string read_image(Env& env, const std::string& path, uint64_t& bytes_left) {
  const auto file = env.open_readable(path);
  if (file->size() > kLargestImage) return "";
  if (file->size() > bytes_left)
    fail(ErrorKind::kData, "its images are too large for a page", path, "Remove some of them");
  bytes_left -= file->size();
  std::vector<std::byte> bytes(file->size());
  file->read_at(0, bytes);
  return image_uri(bytes);
}

std::string labels_text(const json& image) {
  std::string text;
  const json& labels = array_at(image, "labels");
  for (const auto& label : labels) {
    if (!label.is_object()) continue;
    const std::string name = text_at(label, "class");
    text += text.empty() ? name : fmt::format(", {}", name);
    if (labels.size() > 1)
      text += fmt::format(" {:.0f} %", 100 * number_at(label, "weight").value_or(0));
  }
  return text;
}

KeptImage kept_image(const json& image, std::string uri) {
  return {.uri = std::move(uri),
          .title = image.contains("labels") ? labels_text(image) : text_at(image, "class"),
          .predicted = text_at(image, "predicted"),
          .probability = number_at(image, "probability").value_or(0),
          .loss = number_at(image, "loss").value_or(0),
          .name = text_at(image, "name")};
}

// ---- the timeline ------------------------------------------------------------------------------

struct RawSpan {
  size_t index;  // in the file
  int64_t track;
  std::string name;
  double begin_us, end_us;
};

struct RawTrace {
  std::map<int64_t, std::string> tracks;
  std::vector<RawSpan> spans;
  std::vector<double> step_ends_us;
  double begin_us = 0;  // of the first step
};

RawTrace raw_trace(const json& root) {
  RawTrace raw;
  for (const auto& event : array_at(root, "traceEvents")) {
    if (!event.is_object()) continue;
    const int64_t track = integer_at(event, "tid").value_or(0);
    const std::string kind = text_at(event, "ph"), name = text_at(event, "name");
    if (kind == "M" && name == "thread_name" && event.contains("args") && event["args"].is_object())
      raw.tracks[track] = text_at(event["args"], "name");
    const auto begin = number_at(event, "ts"), length = number_at(event, "dur");
    if (kind != "X" || !begin || !length || *length < 0) continue;
    raw.spans.push_back({raw.spans.size(), track, name, *begin, *begin + *length});
    if (text_at(event, "cat") == "phase" && name.starts_with("step ")) {
      if (raw.step_ends_us.empty()) raw.begin_us = *begin;
      raw.step_ends_us.push_back(*begin + *length);
    }
  }
  std::ranges::sort(raw.step_ends_us);
  return raw;
}

// Drops spans outside the steps shown, and the shortest if there are still too many.
size_t choose_spans(RawTrace& raw, double end_us, size_t most) {
  std::erase_if(raw.spans, [&](const RawSpan& span) {
    return span.end_us <= raw.begin_us || span.begin_us >= end_us;
  });
  if (raw.spans.size() <= most) return 0;
  const auto longer = [](const RawSpan& a, const RawSpan& b) {
    return a.end_us - a.begin_us > b.end_us - b.begin_us;
  };
  const size_t skipped = raw.spans.size() - most;
  std::nth_element(raw.spans.begin(), raw.spans.begin() + ptrdiff_t(most), raw.spans.end(), longer);
  raw.spans.resize(most);
  return skipped;
}

Timeline timeline_of(RawTrace raw, int steps, size_t most) {
  Timeline line;
  line.steps = int(std::min(raw.step_ends_us.size(), size_t(steps)));
  const double end_us = raw.step_ends_us[size_t(line.steps) - 1];
  line.end_us = end_us - raw.begin_us;
  line.skipped = choose_spans(raw, end_us, most);
  std::sort(raw.spans.begin(), raw.spans.end(), [](const RawSpan& a, const RawSpan& b) {
    if (a.begin_us != b.begin_us) return a.begin_us < b.begin_us;
    return a.end_us != b.end_us ? a.end_us > b.end_us : a.index < b.index;
  });
  std::map<std::string, size_t> numbers;
  std::map<int64_t, size_t> indices;
  for (const auto& [track, name] : raw.tracks) {
    indices[track] = line.tracks.size();
    line.tracks.push_back({name, {}});
  }
  for (const RawSpan& span : raw.spans) {
    const auto track = indices.find(span.track);
    if (track == indices.end()) continue;
    const auto [name, is_new] = numbers.try_emplace(span.name, line.names.size());
    if (is_new) line.names.push_back(span.name);
    line.tracks[track->second].spans.push_back({name->second,
                                                std::max(0.0, span.begin_us - raw.begin_us),
                                                std::min(line.end_us, span.end_us - raw.begin_us)});
  }
  std::erase_if(line.tracks, [](const TimelineTrack& track) { return track.spans.empty(); });
  return line;
}

// The settings of a ladder or a rung.
std::string settings_of(const json& holder) {
  std::string all;
  for (const auto& setting : array_at(holder, "set"))
    if (setting.is_string()) all += (all.empty() ? "" : ", ") + setting.get<std::string>();
  return all;
}

RungReading rung_of(const json& rung) {
  RungReading found;
  found.name = text_at(rung, "name");
  for (const auto& [name, member] : kRungNumbers) found.*member = number_at(rung, name);
  found.phases = phases_at(rung);
  found.skipped = text_at(rung, "skipped");
  found.seed_figure = text_at(rung, "seed_figure");
  found.set = settings_of(rung);
  return found;
}

}  // namespace

bool leads_out(const std::string& folder, const std::string& file,
               std::vector<std::string>& warnings) {
  const size_t slash = file.find('/');
  const bool leads = is_link(folder + "/" + file) ||
                     (slash != file.npos && is_link(folder + "/" + file.substr(0, slash)));
  if (leads)
    warnings.push_back(file + " is not read: a symbolic link may lead out of the run's folder");
  return leads;
}

std::optional<KeptImages> read_kept_images(Env& env, const std::string& folder,
                                           const std::string& file,
                                           std::vector<std::string>& warnings) {
  const std::string path = folder + "/samples/" + file;
  KeptImages kept;
  size_t seen = 0;
  uint64_t bytes_left = kLargestList;
  try {
    if (!env.exists(path) || leads_out(folder, "samples/" + file, warnings)) return std::nullopt;
    const json root = parsed_json(text_of_file(env, path));
    if (!root.is_object()) {
      warnings.push_back("samples/" + file + " cannot be read: it holds no JSON object");
      return std::nullopt;
    }
    kept.step = integer_at(root, "step").value_or(0);
    for (const auto& image : array_at(root, "images")) {
      if (++seen > kMostImages) break;
      const std::string name = image.is_object() ? text_at(image, "file") : "";
      if (!is_kept_name(name) || leads_out(folder, "samples/" + name, warnings)) continue;
      std::string uri = read_image(env, folder + "/samples/" + name, bytes_left);
      if (!uri.empty()) kept.images.push_back(kept_image(image, std::move(uri)));
    }
  } catch (const Error& error) {
    warnings.push_back(fmt::format("samples/{} cannot be read whole: {}", file, error.reason()));
  }
  return kept;
}

std::optional<Timeline> read_timeline(Env& env, const std::string& folder, int steps, size_t most,
                                      std::vector<std::string>& warnings) {
  const std::string path = folder + "/trace.json";
  try {
    if (!env.exists(path) || leads_out(folder, "trace.json", warnings)) return std::nullopt;
    if (env.open_readable(path)->size() > kLargestTrace) {
      warnings.push_back("trace.json is too large for a page, and is omitted");
      return std::nullopt;
    }
    const json root = parsed_json(text_of_file(env, path));
    RawTrace raw;
    if (root.is_object()) raw = raw_trace(root);
    if (!raw.step_ends_us.empty()) return timeline_of(std::move(raw), steps, most);
    warnings.push_back("trace.json cannot be read: it holds no trace of a run");
  } catch (const Error& error) {
    warnings.push_back("trace.json cannot be read: " + error.reason());
  }
  return std::nullopt;
}

LadderReading read_ladder_json(Env& env, const std::string& path) {
  const json root = parsed_json(text_of_file(env, path));
  LadderReading ladder;
  if (root.is_object())
    for (const auto& rung : array_at(root, "rungs"))
      if (rung.is_object()) ladder.rungs.push_back(rung_of(rung));
  if (ladder.rungs.empty())
    fail(ErrorKind::kData, "the file is not JSON of a ladder or sweep", path,
         "Give a run's folder, or the output of `saturate ladder --json`");
  ladder.path = path;
  ladder.title = text_at(root, "title");
  if (text_at(root, "unit") == "samples") ladder.unit = "samples";
  ladder.set = settings_of(root);
  return ladder;
}

}  // namespace saturate
