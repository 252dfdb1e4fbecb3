#include "run/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <map>
#include <sstream>

#include "run/checkpoint_state.h"
#include "saturate/safetensors.h"

namespace saturate {
namespace {

at::Tensor stored_form(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous();
}

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes();
  return out.str();
}

Checkpoint state_of(std::map<std::string, std::string> metadata, const std::string& path) {
  if (metadata["format"] != kCheckpointFormat)
    fail(ErrorKind::kRun, "not a checkpoint of saturate", path,
         "Give a run folder or a file in it");
  Checkpoint checkpoint;
  parse_checkpoint_state(metadata["state"], path, checkpoint);
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
                     {"state", checkpoint_state_json(checkpoint)},
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

}  // namespace saturate
