#include "report/run_reading.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "base/printable.h"
#include "base/text.h"
#include "recipe/toml_text.h"
#include "record/json_fields.h"
#include "report/run_figures.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr int kTimelineSteps = 3;
constexpr size_t kTimelineSpans = 6000;

// Adds records to a run. Merges every `each` neighbouring "step" records into one.
class Records {
 public:
  Records(RunReading& run, size_t each) : run_(run), each_(each) {}

  void add(MetricsRecord&& record) {
    run_.last = record;
    if (record.kind == "end") {
      run_.end = std::move(record);
      run_.state = RunState::kEnded;
    } else if (record.kind == "step") {
      if (steps_.size() == each_) merge_steps();
      steps_.push_back(std::move(record));
    } else if (record.kind == "eval") {
      merge_steps();  // only steps between the same evaluations are merged
      run_.evaluations.push_back(std::move(record));
    }
  }
  // The last record stays as it is: a report shows its values as the latest ones.
  void finish() {
    if (steps_.empty()) return;
    MetricsRecord last = std::move(steps_.back());
    steps_.pop_back();
    merge_steps();
    run_.steps.push_back(std::move(last));
  }

 private:
  void merge_steps() {
    auto& steps = run_.steps;
    if (steps_.size() > 1)
      steps.push_back(merged(steps_, steps.empty() ? 0 : steps.back().step));
    else if (!steps_.empty())
      steps.push_back(std::move(steps_.front()));
    steps_.clear();
  }

  RunReading& run_;
  const size_t each_;
  std::vector<MetricsRecord> steps_;
};

void read_metrics(RunReading& run, LineReader& lines, uint64_t merge_from_bytes) {
  Records records(run, size_t(1 + lines.bytes() / merge_from_bytes));
  size_t number = 0, bad = 0, first_bad = 0;
  for (std::string line; lines.next(line);) {
    ++number;
    if (trimmed(line).empty()) continue;
    if (auto record = from_json_line(line)) {
      if (record->kind == "end") run.ended_by = text_at(parsed_json(line), "ended_by");
      records.add(std::move(*record));
    } else if (lines.is_cut()) {
      run.warnings.push_back(fmt::format(
          "metrics.jsonl ends in the middle of line {}, which is skipped: its writer was stopped, "
          "or is writing it just now",
          number));
    } else if (++bad == 1) {
      first_bad = number;
    }
  }
  records.finish();
  if (bad > 0)
    run.warnings.push_back(
        fmt::format("metrics.jsonl has {} that {} not a record (line {}{}), skipped",
                    bad == 1 ? "a line" : fmt::format("{} lines", bad), bad == 1 ? "is" : "are",
                    first_bad, bad == 1 ? "" : " is the first"));
}

std::string value_text(const toml::node& node) {
  if (auto text = node.as_string()) return text->get();
  if (auto number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (auto array = node.as_array()) {
    std::string list;
    for (const auto& element : *array) list += (list.empty() ? "" : ", ") + value_text(element);
    return "[" + list + "]";
  }
  std::ostringstream out;
  out << toml::node_view<const toml::node>(node);
  return out.str();
}

void flatten(const toml::table& table, const std::string& prefix, NamedTexts& out) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* section = node.as_table())
      flatten(*section, key + ".", out);
    else
      out.emplace_back(key, value_text(node));
  }
}

// Reads an optional file of the folder; without it, a report shows less.
template <class Read>
void read_beside(RunReading& run, Env& env, const char* name, const Read& read) {
  const std::string path = run.folder + "/" + name;
  try {
    if (!env.exists(path) || leads_out(run.folder, name, run.warnings)) return;
    read(text_of_file(env, path));
  } catch (const Error& error) {
    run.warnings.push_back(fmt::format("{} cannot be read: {}", name, error.reason()));
  }
}

void read_host(RunReading& run, const std::string& text) {
  const auto json = parsed_json<nlohmann::ordered_json>(text);
  if (!json.is_object()) {
    run.warnings.push_back("host.json cannot be read: it holds no JSON object");
    return;
  }
  for (const auto& [name, value] : json.items())
    run.host.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
}

std::string last_part(const std::string& folder) {
  std::error_code none;  // such as of a working folder that was removed
  const auto path = std::filesystem::absolute(folder, none).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

}  // namespace

NamedTexts flatten_recipe(const std::string& text, const std::string& where) {
  NamedTexts keys;
  flatten(parse_toml(text, where), "", keys);
  return keys;
}

RunReading read_run(Env& env, const std::string& folder, uint64_t merge_from_bytes) {
  RunReading run;
  run.folder = folder;
  run.name = last_part(folder);
  const std::string metrics = folder + "/metrics.jsonl";
  if (!env.exists(metrics))
    fail(ErrorKind::kData,
         env.is_directory(folder) ? "the folder holds no metrics.jsonl" : "no such run folder",
         folder, "Give the folder of a run of `saturate train` or saturate.watch()");
  if (is_link(metrics))
    fail(ErrorKind::kData, "a symbolic link may lead out of the run's folder", metrics,
         "Copy the folder with cp -rL if you trust it");
  LineReader lines(env, metrics);
  read_metrics(run, lines, merge_from_bytes);
  // saturate.watch() of the Python package locks its records.
  if (run.state != RunState::kEnded && (is_locked(folder + "/.lock") || is_locked(metrics)))
    run.state = RunState::kRunning;
  read_beside(run, env, "recipe.toml", [&](const std::string& text) {
    run.recipe = flatten_recipe(without_queries(text), folder + "/recipe.toml");
  });
  read_beside(run, env, "host.json", [&](const std::string& text) { read_host(run, text); });
  read_beside(run, env, "classes.json", [&](const std::string& text) {
    run.by_class = parse_class_results(text);
    if (!run.by_class)
      run.warnings.push_back("classes.json cannot be read: it holds no results by class");
  });
  run.training = read_kept_images(env, folder, "training.json", run.warnings);
  run.mistakes = read_kept_images(env, folder, "mistakes.json", run.warnings);
  run.timeline = read_timeline(env, folder, kTimelineSteps, kTimelineSpans, run.warnings);
  return run;
}

}  // namespace saturate
