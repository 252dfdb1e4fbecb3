#include "run/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/elements.h"
#include "record/json_fields.h"
#include "saturate/data/error.h"
#include "saturate/safetensors.h"

namespace saturate {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunPosition, step, epoch, batch, samples, time_s)

namespace {

using nlohmann::json;

at::Tensor stored_form(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous();
}

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes();
  return out.str();
}

constexpr int kFormatVersion = 1;

// JSON has neither NaN nor infinities: both are stored as null.
double number_of(const json& value) {
  return value.is_null() ? std::nan("") : value.get<double>();
}

std::optional<double> optional_number(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

json to_json(const Metrics& metrics) {
  json found = {{"samples", metrics.samples},
                {"loss", metrics.loss},
                {"accuracy", or_null(metrics.value("accuracy"))},
                {"accuracy5", or_null(metrics.value("accuracy5"))}};
  // Without it, an accuracy of null is NaN.
  if (!metrics.value("accuracy")) found["values"] = json::array();
  for (const auto& [name, value] : metrics.values) {
    const bool is_of_pixels = name == "iou" && !metrics.pixels.empty();
    if (name != "accuracy" && name != "accuracy5" && !is_of_pixels)
      found["values"].push_back({name, value});
  }
  if (!metrics.totals.empty()) found["totals"] = metrics.totals;
  if (metrics.overflowed > 0) found["overflowed"] = metrics.overflowed;
  // For each class: hits, labelled, predicted.
  for (const ClassPixels& of : metrics.pixels)
    found["pixels"].push_back({of.hits, of.labelled, of.predicted});
  return found;
}

void from_json(const json& from, Metrics& to) {
  to.samples = from.at("samples");
  to.loss = number_of(from.at("loss"));
  to.values.clear();
  const bool has_others = from.contains("values");
  if (!from.at("accuracy").is_null() || !has_others)  // null: NaN
    to.set("accuracy", number_of(from.at("accuracy")));
  if (const auto top5 = optional_number(from.at("accuracy5"))) to.set("accuracy5", *top5);
  if (has_others)
    for (const json& each : from.at("values"))
      to.set(each.at(0).get<std::string>(), number_of(each.at(1)));
  to.totals.clear();
  for (const json& total : from.value("totals", json::array()))
    to.totals.push_back(number_of(total));
  to.overflowed = from.value("overflowed", int64_t{0});
  to.pixels.clear();
  if (const auto pixels = from.find("pixels"); pixels != from.end())
    for (const json& of : *pixels) to.pixels.push_back({of.at(0), of.at(1), of.at(2)});
  if (const auto iou = to.mean_iou()) to.set("iou", *iou);
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
  return {{"value", or_null(best.best)},
          {"step", best.best_step},
          {"waited", best.waited},
          {"not_finite", best.not_finite}};
}

void from_json(const json& from, EarlyStopping::State& to) {
  to = {optional_number(from.at("value")), from.at("step"), from.at("waited"),
        from.at("not_finite")};
}

json to_json(const std::vector<TensorField>& fields) {
  json list = json::array();
  for (const TensorField& field : fields)
    list.push_back({{"name", field.name},
                    {"type", element_name(field.type)},
                    {"shape", field.shape},
                    {"is_target", field.is_target},
                    {"values", field.values},
                    {"symbols", field.symbols},
                    {"is_volume", field.is_volume},
                    {"is_sequence", field.is_sequence}});
  return list;
}

std::vector<TensorField> fields_in(const json& list) {
  std::vector<TensorField> fields;
  for (const json& each : list) {
    const std::string type = each.at("type");
    const ElementRow* const known = find_element(&ElementRow::name, type);
    if (!known) throw json::other_error::create(500, type, &each);
    fields.push_back({each.at("name"), known->type, each.at("shape"), each.at("is_target"),
                      each.at("values"), each.value("symbols", ""), each.value("is_volume", false),
                      each.value("is_sequence", false)});
  }
  return fields;
}

std::string state_json(const Checkpoint& checkpoint) {
  json state = {{"version", kFormatVersion},
                {"saturate", SATURATE_VERSION},
                {"torch", TORCH_VERSION},
                {"position", checkpoint.position},
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
  if (!checkpoint.fields.empty()) state["tensors"] = to_json(checkpoint.fields);
  for (const ObjectVersion& object : checkpoint.objects)
    state["objects"].push_back({object.name, object.digest});
  // Names of classes come from folders, which may hold bytes that are not UTF-8.
  return state.dump(-1, ' ', false, json::error_handler_t::replace);
}

[[noreturn]] void fail_damaged(const std::string& problem, const std::string& path) {
  fail(ErrorKind::kRun, problem, path, "Use an older checkpoint of the run");
}

Checkpoint state_of(std::map<std::string, std::string> metadata, const std::string& path) {
  if (metadata["format"] != kCheckpointFormat)
    fail(ErrorKind::kRun, "not a checkpoint of saturate", path,
         "Give a run folder or a file in it");
  Checkpoint checkpoint;
  try {
    const json state = parsed_json(metadata["state"]);
    if (state.at("version").get<int>() > kFormatVersion)
      fail(ErrorKind::kRun, "the checkpoint was written by a newer saturate", path,
           "Update saturate");
    checkpoint.position = state.at("position");
    checkpoint.branch = state.value("branch", 0);  // not in older files
    checkpoint.final_weights = state.value("final_weights", false);
    from_json(state.at("epoch_metrics"), checkpoint.epoch_metrics);
    from_json(state.at("evaluation"), checkpoint.evaluation);
    from_json(state.at("best"), checkpoint.best);
    checkpoint.recipe_toml = state.at("recipe");
    checkpoint.classes = state.at("classes").get<std::vector<std::string>>();
    checkpoint.image_size = state.at("image_size").get<ImageSize>();
    checkpoint.images = state.value("images", int64_t{0});  // not in older files, as the next
    checkpoint.eval_images = state.value("eval_images", int64_t{0});
    if (state.contains("tensors")) checkpoint.fields = fields_in(state.at("tensors"));
    for (const json& object : state.value("objects", json::array()))
      checkpoint.objects.push_back({object.at(0), object.at(1)});
  } catch (const json::exception&) {
    fail_damaged("the checkpoint's metadata is damaged", path);
  }
  return checkpoint;
}

}  // namespace

void write_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint) {
  std::vector<NamedTensor> tensors;
  for (const auto& group : kTensorGroups)
    for (const auto& [name, tensor] : checkpoint.*group.member)
      tensors.push_back({group.prefix + name, stored_form(tensor)});
  write_safetensors(env, path, tensors,
                    {{"format", kCheckpointFormat},
                     {"state", state_json(checkpoint)},
                     {"crc32", tensors_crc32(tensors)}});
}

Checkpoint read_checkpoint_state(Env& env, const std::string& path) {
  return state_of(read_safetensors_metadata(env, path), path);
}

Checkpoint read_checkpoint(Env& env, const std::string& path) {
  SafetensorsFile file = read_safetensors(env, path);
  Checkpoint checkpoint = state_of(file.metadata, path);
  if (file.metadata["crc32"] != tensors_crc32(file.tensors))
    fail_damaged("the checkpoint's checksum does not match its data", path);
  for (auto& [name, tensor] : file.tensors)
    for (const auto& group : kTensorGroups)
      if (name.starts_with(group.prefix))
        (checkpoint.*group.member)
            .push_back({name.substr(std::string_view(group.prefix).size()), tensor});
  return checkpoint;
}

std::vector<NamedTensor> model_state(Model& model) {
  auto tensors = model.parameters();
  for (auto& buffer : model.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

void copy_by_name(const std::vector<NamedTensor>& tensors, std::vector<NamedTensor>& targets,
                  const std::string& where) {
  const c10::NoGradGuard no_grad;
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) by_name[name] = &tensor;
  for (auto& [name, target] : targets) {
    const auto found = by_name.find(name);
    if (found == by_name.end())
      fail(ErrorKind::kRun, "tensor " + name + " is missing", where,
           "The checkpoint is of another model: check model.name");
    if (found->second->sizes() != target.sizes())
      fail(ErrorKind::kRun,
           fmt::format("tensor {} has shape {}, the model has {}", name, shape_text(*found->second),
                       shape_text(target)),
           where,
           "The checkpoint is of another model: check model.*, augment.size and the classes");
    target.copy_(*found->second);
  }
}

void load_into(Model& model, const std::vector<NamedTensor>& tensors, const std::string& where) {
  auto targets = model_state(model);
  copy_by_name(tensors, targets, where);
}

void load_average(Model& model, const std::vector<NamedTensor>& average, const std::string& where) {
  auto targets = model.parameters();
  for (auto& buffer : model.buffers())
    if (std::ranges::find(average, buffer.name, &NamedTensor::name) != average.end())
      targets.push_back(std::move(buffer));
  copy_by_name(average, targets, where);
}

}  // namespace saturate
