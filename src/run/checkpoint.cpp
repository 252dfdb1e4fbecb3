#include "saturate/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "saturate/safetensors.h"

namespace saturate {
namespace {

constexpr const char* kFormat = "saturate-checkpoint";
constexpr int kVersion = 1;
constexpr const char* kSuffix = ".safetensors";

at::Tensor stored_form(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous();
}

// Over names and bytes of all tensors in the order of their names: a file may store them in
// another.
uint32_t checksum(const std::vector<NamedTensor>& tensors) {
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) by_name[name] = &tensor;
  uLong crc = crc32(0, nullptr, 0);
  for (const auto& [name, tensor] : by_name) {
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(name.data()), name.size());
    crc = crc32_z(crc, static_cast<const Bytef*>(tensor->const_data_ptr()), tensor->nbytes());
  }
  return uint32_t(crc);
}

void append_prefixed(std::vector<NamedTensor>& out, const std::string& prefix,
                     const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) out.push_back({prefix + name, stored_form(tensor)});
}

nlohmann::json position_json(const RunPosition& position) {
  return {{"step", position.step},
          {"epoch", position.epoch},
          {"batch", position.batch},
          {"samples", position.samples},
          {"time_s", position.time_s}};
}

[[noreturn]] void fail_checkpoint(const std::string& problem, const std::string& path) {
  fail(ErrorKind::kRun, problem, path, "Use an older checkpoint of the run");
}

void parse_metadata(const std::string& text, const std::string& path, Checkpoint& checkpoint) {
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("version").get<int>() > kVersion)
      fail(ErrorKind::kRun, "the checkpoint was written by a newer saturate", path,
           "Update saturate");
    const auto& position = json.at("position");
    checkpoint.position = {position.at("step"), position.at("epoch"), position.at("batch"),
                           position.at("samples"), position.at("time_s")};
    checkpoint.recipe_toml = json.at("recipe");
    checkpoint.classes = json.at("classes").get<std::vector<std::string>>();
    checkpoint.image_size = json.at("image_size");
  } catch (const nlohmann::json::exception&) {
    fail_checkpoint("the checkpoint's metadata is damaged", path);
  }
}

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes();
  return out.str();
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

void write_checkpoint(Env& env, const std::string& path, const Checkpoint& checkpoint) {
  std::vector<NamedTensor> tensors;
  append_prefixed(tensors, "model.", checkpoint.model);
  append_prefixed(tensors, "optimizer.", checkpoint.optimizer);
  const nlohmann::json state = {{"version", kVersion},
                                {"position", position_json(checkpoint.position)},
                                {"recipe", checkpoint.recipe_toml},
                                {"classes", checkpoint.classes},
                                {"image_size", checkpoint.image_size}};
  // Names of classes come from folders, which may hold bytes that are not UTF-8.
  const std::string text = state.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  write_safetensors(
      env, path, tensors,
      {{"format", kFormat}, {"state", text}, {"crc32", fmt::format("{:08x}", checksum(tensors))}});
}

Checkpoint read_checkpoint(Env& env, const std::string& path) {
  SafetensorsFile file = read_safetensors(env, path);
  if (file.metadata["format"] != kFormat)
    fail(ErrorKind::kRun, "not a checkpoint of saturate", path,
         "Give a run folder or a file in it");
  Checkpoint checkpoint;
  parse_metadata(file.metadata["state"], path, checkpoint);
  if (file.metadata["crc32"] != fmt::format("{:08x}", checksum(file.tensors)))
    fail_checkpoint("the checkpoint's checksum does not match its data", path);
  for (auto& [name, tensor] : file.tensors) {
    if (starts_with(name, "model.")) checkpoint.model.push_back({name.substr(6), tensor});
    if (starts_with(name, "optimizer.")) checkpoint.optimizer.push_back({name.substr(10), tensor});
  }
  return checkpoint;
}

std::vector<NamedTensor> model_state(Model& model) {
  auto tensors = model.parameters();
  for (auto& buffer : model.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

void load_into(Model& model, const std::vector<NamedTensor>& tensors, const std::string& where) {
  const c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : tensors) by_name[name] = tensor;
  for (auto& [name, target] : model_state(model)) {
    const auto found = by_name.find(name);
    if (found == by_name.end())
      fail(ErrorKind::kRun, "tensor " + name + " is missing", where,
           "The checkpoint is of another model: check model.name");
    if (found->second.sizes() != target.sizes())
      fail(ErrorKind::kRun,
           fmt::format("tensor {} has shape {}, the model has {}", name, shape_text(found->second),
                       shape_text(target)),
           where,
           "The checkpoint is of another model: check model.*, augment.size and the classes");
    target.copy_(found->second);
  }
}

CheckpointStore::CheckpointStore(Env& env, std::string folder, int keep)
    : env_(env), folder_(std::move(folder)), keep_(keep) {
  env_.make_directories(folder_);
}

std::string CheckpointStore::save(const Checkpoint& checkpoint) {
  const std::string path =
      fmt::format("{}/step-{:08}{}", folder_, checkpoint.position.step, kSuffix);
  write_checkpoint(env_, path, checkpoint);
  const auto paths = list_checkpoints(env_, folder_);
  for (size_t i = size_t(keep_); i < paths.size(); ++i) env_.remove(paths[i]);
  return path;
}

std::vector<std::string> list_checkpoints(Env& env, const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : env.list(folder))
    if (!entry.is_directory && starts_with(entry.name, "step-") && entry.name.ends_with(kSuffix))
      paths.push_back(folder + "/" + entry.name);
  // Step numbers are zero-padded, and a longer one is larger.
  std::sort(paths.begin(), paths.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  });
  return paths;
}

Checkpoint find_checkpoint(Env& env, const std::string& path,
                           const std::function<void(const std::string&)>& warn,
                           std::string* found_path) {
  if (!env.exists(path)) fail(ErrorKind::kRun, "no such run or checkpoint", path, "Check the path");
  std::vector<std::string> candidates = {path};
  if (env.is_directory(path)) {
    const std::string inner = path + "/checkpoints";
    candidates = list_checkpoints(env, env.is_directory(inner) ? inner : path);
    if (candidates.empty())
      fail(ErrorKind::kRun, "the folder holds no checkpoint", path,
           "Give the folder of a run that has saved one");
  }
  for (const auto& candidate : candidates) {
    try {
      Checkpoint checkpoint = read_checkpoint(env, candidate);
      if (found_path) *found_path = candidate;
      return checkpoint;
    } catch (const Error& error) {
      if (candidate == candidates.back()) throw;
      warn(std::string("passing over a broken checkpoint: ") + error.what());
    }
  }
  return {};  // not reached: the last candidate returns or throws
}

}  // namespace saturate
