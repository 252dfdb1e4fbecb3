#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "report/report.h"
#include "report/run_figures.h"
#include "saturate/data/recipe.h"

namespace saturate {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostPoints = 800;     // per line
constexpr int kTimelineBins = 120;      // per run
constexpr size_t kMatrixClasses = 24;   // most classes with a full confusion matrix
constexpr size_t kShownClasses = 24;    // most rows of the other tables by class
constexpr size_t kShownConfusions = 3;  // per class

template <class Value>
ordered_json page_json(const Value& value) {
  return value;
}
ordered_json page_json(double value) {
  constexpr double kMostShown = 1e300;  // a chart's axis goes beyond its values
  return std::abs(value) < kMostShown ? ordered_json(value) : ordered_json();
}
template <class Value>
ordered_json page_json(const std::optional<Value>& value);  // null if empty

// Phases without time are skipped.
ordered_json page_json(const PhaseTimes& times) {
  ordered_json json = ordered_json::object();
  for (int i = 0; i < kPhaseCount; ++i)
    if (const double seconds = times[Phase(i)]; seconds != 0)
      json[std::string(phase_name(Phase(i)))] = page_json(seconds);
  return json;
}

ordered_json page_json(const Telemetry& telemetry) {
  ordered_json json = {{"throttle_reasons", telemetry.throttle_reasons}};
  for (const auto& field : telemetry_fields())
    json[field.name] = page_json(telemetry.*field.member);
  return json;
}

ordered_json page_json(const KeptImages& kept) {
  ordered_json images = ordered_json::array();
  for (const auto& image : kept.images)
    images.push_back({{"uri", image.uri},
                      {"title", image.title},
                      {"predicted", image.predicted},
                      {"probability", image.probability},
                      {"loss", image.loss},
                      {"name", image.name}});
  return {{"step", kept.step}, {"images", images}};
}

// Spans as [name, begin, end] in whole nanoseconds.
ordered_json page_json(const Timeline& found) {
  const auto ns = [](double us) { return std::llround(us * 1e3); };
  ordered_json tracks = ordered_json::array();
  for (const auto& track : found.tracks) {
    ordered_json spans = ordered_json::array();
    for (const auto& span : track.spans)
      spans.push_back({span.name, ns(span.begin_us), ns(span.end_us)});
    tracks.push_back({{"name", track.name}, {"spans", spans}});
  }
  return {{"steps", found.steps},
          {"skipped", found.skipped},
          {"names", found.names},
          {"end_ns", ns(found.end_us)},
          {"tracks", tracks}};
}

// The rows and columns of every class.
ordered_json class_matrix(const ClassResults& results) {
  ordered_json matrix = ordered_json::array();
  for (const ClassResult& of : results.classes)
    matrix.push_back({{"name", of.name},
                      {"count", of.count},
                      {"answers", std::vector<int64_t>(results.classes.size())}});
  for (const ConfusionCell& cell : results.confusion)
    matrix[size_t(cell.label)]["answers"][size_t(cell.prediction)] = cell.count;
  return matrix;
}

ordered_json page_json(const ClassResults& results) {
  const auto& classes = results.classes;
  const auto name_of = [&](int64_t at) { return classes[size_t(at)].name; };
  ordered_json worst = ordered_json::array(), confusions = ordered_json::array();
  for (const size_t at : worst_classes(results, kShownClasses)) {
    ordered_json taken_for = ordered_json::array();
    for (const auto& cell : worst_confusions(results, kShownConfusions, int64_t(at)))
      taken_for.push_back({name_of(cell.prediction), cell.count});
    worst.push_back({{"name", classes[at].name},
                     {"count", classes[at].count},
                     {"accuracy", page_json(classes[at].accuracy())},
                     {"iou", page_json(classes[at].iou())},
                     {"taken_for", taken_for}});
  }
  for (const auto& cell : worst_confusions(results, kShownClasses))
    confusions.push_back({{"name", name_of(cell.label)},
                          {"taken_for", name_of(cell.prediction)},
                          {"count", cell.count},
                          {"of", classes[size_t(cell.label)].count}});
  ordered_json json = {{"step", results.step},
                       {"counted", results.of_pixels ? "pixels" : "images"},
                       {"seen", worst_classes(results, classes.size()).size()},
                       {"worst", worst}};
  if (results.of_pixels) return json;
  if (classes.size() <= kMatrixClasses)
    json["matrix"] = class_matrix(results);
  else
    json["confusions"] = confusions;
  return json;
}

template <class Value>
ordered_json page_json(const std::optional<Value>& value) {
  return value ? page_json(*value) : ordered_json();
}

// An array for each value that some record has.
ordered_json columns_of(const std::vector<MetricsRecord>& all) {
  const auto records = thinned(all, kMostPoints);
  ordered_json columns = ordered_json::object();
  const auto add = [&](const char* key, const auto& value_of) {
    ordered_json column = ordered_json::array();
    bool known = false;
    for (const auto& record : records) {
      column.push_back(page_json(std::invoke(value_of, record)));
      known = known || !column.back().is_null();
    }
    if (known) columns[key] = std::move(column);
  };
  add("step", &MetricsRecord::step);
  add("epoch", &MetricsRecord::epoch);
  add("time_s", &MetricsRecord::time_s);
  add("loss", &MetricsRecord::loss);
  add("accuracy", &MetricsRecord::accuracy);
  for (const std::string& name : metrics_in(records))
    add(name.c_str(), [&](const MetricsRecord& record) { return metric_value(record, name); });
  add("lr", &MetricsRecord::lr);
  add("images_per_s", &MetricsRecord::images_per_s);
  add("memory_peak_bytes", &MetricsRecord::memory_peak_bytes);
  for (const auto& field : telemetry_fields())
    add(field.name, [&](const MetricsRecord& record) {
      return record.telemetry ? (*record.telemetry).*field.member : std::nullopt;
    });
  return columns;
}

// Shares of the time that passed, by phase, in spans of equal length.
ordered_json time_bins(const RunReading& run) {
  const auto bins = even_spans(time_spans(run), kTimelineBins);
  ordered_json phases = ordered_json::object();
  for (int i = 0; i < kPhaseCount; ++i) {
    std::vector<double> shares;
    for (const auto& bin : bins) {
      const double total = bin.phases.total();
      shares.push_back(total > 0 ? bin.phases[Phase(i)] / total : 0);
    }
    if (std::ranges::any_of(shares, [](double share) { return share > 0; }))
      phases[std::string(phase_name(Phase(i)))] = shares;
  }
  return {{"width_s", bins.empty() ? 0 : bins.front().end_s}, {"phases", phases}};
}

ordered_json page_figures(const RunFigures& figures) {
  ordered_json values = ordered_json::array();
  for (const auto& [name, value] : figures.values) values.push_back({name, page_json(value)});
  ordered_json streams = ordered_json::array();
  for (const auto& time : figures.streams)
    streams.push_back({{"stream", time.stream}, {"busy_s", time.busy_s}, {"idle_s", time.idle_s}});
  return {{"accuracy", page_json(figures.accuracy)},
          {"accuracy5", page_json(figures.accuracy5)},
          {"mean_iou", page_json(figures.mean_iou)},
          {"loss", page_json(figures.loss)},
          {"values", values},
          {"held_out", figures.held_out},
          {"best_accuracy", page_json(figures.best_accuracy)},
          {"time_s", page_json(figures.time_s)},
          {"epochs", page_json(figures.epochs)},
          {"steps", figures.steps},
          {"images_per_s", page_json(figures.images_per_s)},
          {"memory_peak_bytes", page_json(figures.memory_peak_bytes)},
          {"phases", page_json(figures.phases)},
          {"network_wait_s", page_json(figures.phases ? figures.phases->network_wait : 0)},
          {"device_phases", page_json(figures.device_phases)},
          {"telemetry", page_json(figures.telemetry)},
          {"streams", streams}};
}

// "samples" if they are tensors: only images and crops of volumes have a size, and only volumes are
// cropped at random positions. Also without a recipe: saturate.watch() counts samples of any kind.
std::string unit_of(const RunReading& run) {
  const auto has = [&](const char* key, const char* value) {
    return std::ranges::count(run.recipe, NamedTexts::value_type{key, value}) > 0;
  };
  const bool tensors =
      has("augment.size", "0") || has("augment.crop", "random") || has("model.name", "unet3d");
  return run.recipe.empty() || tensors ? "samples" : "images";
}

ordered_json page_run(const RunReading& run, const std::string& name) {
  static constexpr const char* kStates[] = {"ended", "running", "stopped"};  // as RunState
  return {{"name", name},
          {"state", kStates[size_t(run.state)]},
          {"ended_by", run.ended_by},
          {"unit", unit_of(run)},
          {"warnings", run.warnings},
          {"figures", page_figures(figures_of(run))},
          {"steps", columns_of(run.steps)},
          {"evaluations", columns_of(run.evaluations)},
          {"timeline", time_bins(run)},
          {"classes", page_json(run.by_class)},
          {"trace", page_json(run.timeline)},
          {"training", page_json(run.training)},
          {"mistakes", page_json(run.mistakes)},
          {"recipe", run.recipe},
          {"host", run.host}};
}

ordered_json page_ladder(const LadderReading& ladder) {
  ordered_json rungs = ordered_json::array();
  for (const auto& rung : ladder.rungs) {
    rungs.push_back({{"name", rung.name},
                     {"phases", page_json(rung.phases)},
                     {"skipped", rung.skipped},
                     {"seed_figure", rung.seed_figure},
                     {"set", rung.set}});
    for (const auto& [name, member] : kRungNumbers) rungs.back()[name] = page_json(rung.*member);
  }
  return {{"title", ladder.title}, {"unit", ladder.unit}, {"set", ladder.set}, {"rungs", rungs}};
}

}  // namespace

ordered_json report_data(std::span<const RunReading> runs, std::span<const LadderReading> ladders) {
  ordered_json json = {{"phases", ordered_json::array()},
                       {"options", ordered_json::array()},
                       {"defaults", flatten_recipe(to_toml(Recipe{}), "defaults")},
                       {"runs", ordered_json::array()},
                       {"ladders", ordered_json::array()}};
  for (int i = 0; i < kPhaseCount; ++i) json["phases"].push_back(phase_name(Phase(i)));
  for (const auto& option : recipe_options()) json["options"].push_back(option.key);
  for (const auto& run : runs) {
    const bool shared = std::ranges::count(runs, run.name, &RunReading::name) > 1;
    json["runs"].push_back(page_run(run, shared ? run.folder : run.name));
  }
  for (const auto& ladder : ladders) json["ladders"].push_back(page_ladder(ladder));
  return json;
}

}  // namespace saturate
