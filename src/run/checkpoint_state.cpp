#include "run/checkpoint_state.h"

#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "saturate/data/error.h"

namespace saturate {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 1;

// JSON has no NaN: it stands as null, as do infinities.
double number_of(const json& value) {
  return value.is_null() ? std::nan("") : value.get<double>();
}

json to_json(const RunPosition& position) {
  return {{"step", position.step},
          {"epoch", position.epoch},
          {"batch", position.batch},
          {"samples", position.samples},
          {"time_s", position.time_s}};
}

void from_json(const json& from, RunPosition& to) {
  to = {from.at("step"), from.at("epoch"), from.at("batch"), from.at("samples"), from.at("time_s")};
}

json to_json(const Metrics& metrics) {
  json found = {{"samples", metrics.samples},
                {"loss", metrics.loss},
                {"accuracy", metrics.accuracy},
                {"accuracy5", metrics.accuracy5 ? json(*metrics.accuracy5) : json()}};
  if (metrics.overflowed > 0) found["overflowed"] = metrics.overflowed;
  // For each class: hits, labelled, predicted.
  for (const ClassPixels& of : metrics.pixels)
    found["pixels"].push_back({of.hits, of.labelled, of.predicted});
  return found;
}

void from_json(const json& from, Metrics& to) {
  to.samples = from.at("samples");
  to.loss = number_of(from.at("loss"));
  to.accuracy = number_of(from.at("accuracy"));
  to.accuracy5.reset();
  if (!from.at("accuracy5").is_null()) to.accuracy5 = from.at("accuracy5").get<double>();
  to.overflowed = from.value("overflowed", int64_t{0});
  to.pixels.clear();
  if (const auto pixels = from.find("pixels"); pixels != from.end())
    for (const json& of : *pixels) to.pixels.push_back({of.at(0), of.at(1), of.at(2)});
}

json to_json(const std::optional<Evaluation>& evaluation) {
  if (!evaluation) return {};
  return {{"step", evaluation->step},
          {"metrics", to_json(evaluation->metrics)},
          {"plain", evaluation->plain ? to_json(*evaluation->plain) : json()}};
}

void from_json(const json& from, std::optional<Evaluation>& to) {
  to.reset();
  if (from.is_null()) return;
  to.emplace();
  to->step = from.at("step");
  from_json(from.at("metrics"), to->metrics);
  if (!from.at("plain").is_null()) from_json(from.at("plain"), to->plain.emplace());
}

json to_json(const EarlyStopping::State& best) {
  return {{"value", best.best ? json(*best.best) : json()},
          {"step", best.best_step},
          {"waited", best.waited},
          {"not_finite", best.not_finite}};
}

void from_json(const json& from, EarlyStopping::State& to) {
  to = {};
  if (!from.at("value").is_null()) to.best = from.at("value").get<double>();
  to.best_step = from.at("step");
  to.waited = from.at("waited");
  to.not_finite = from.at("not_finite");
}

}  // namespace

std::string checkpoint_state_json(const Checkpoint& checkpoint) {
  const json state = {{"version", kFormatVersion},
                      {"saturate", SATURATE_VERSION},
                      {"torch", TORCH_VERSION},
                      {"position", to_json(checkpoint.position)},
                      {"branch", checkpoint.branch},
                      {"final_weights", checkpoint.final_weights},
                      {"epoch_metrics", to_json(checkpoint.epoch_metrics)},
                      {"evaluation", to_json(checkpoint.evaluation)},
                      {"best", to_json(checkpoint.best)},
                      {"recipe", checkpoint.recipe_toml},
                      {"classes", checkpoint.classes},
                      {"image_size", checkpoint.image_size},
                      {"images", checkpoint.images},
                      {"eval_images", checkpoint.eval_images}};
  // Names of classes come from folders, which may hold bytes that are not UTF-8.
  return state.dump(-1, ' ', false, json::error_handler_t::replace);
}

void parse_checkpoint_state(const std::string& text, const std::string& path,
                            Checkpoint& checkpoint) {
  try {
    const auto state = json::parse(text);
    if (state.at("version").get<int>() > kFormatVersion)
      fail(ErrorKind::kRun, "the checkpoint was written by a newer saturate", path,
           "Update saturate");
    from_json(state.at("position"), checkpoint.position);
    checkpoint.branch = state.value("branch", 0);  // which older versions did not write
    checkpoint.final_weights = state.value("final_weights", false);
    from_json(state.at("epoch_metrics"), checkpoint.epoch_metrics);
    from_json(state.at("evaluation"), checkpoint.evaluation);
    from_json(state.at("best"), checkpoint.best);
    checkpoint.recipe_toml = state.at("recipe");
    checkpoint.classes = state.at("classes").get<std::vector<std::string>>();
    checkpoint.image_size = state.at("image_size");
    checkpoint.images = state.value("images", int64_t{0});  // of older files, as the next
    checkpoint.eval_images = state.value("eval_images", int64_t{0});
  } catch (const json::exception&) {
    fail_damaged("the checkpoint's metadata is damaged", path);
  }
}

void fail_damaged(const std::string& problem, const std::string& path) {
  fail(ErrorKind::kRun, problem, path, "Use an older checkpoint of the run");
}

}  // namespace saturate
