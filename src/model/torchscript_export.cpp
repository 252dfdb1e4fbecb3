#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <map>
#include <sstream>

#include "model/export_model.h"

namespace saturate {
namespace {

using torch::jit::Module;

// Modules by their path ("layer1.0"), each of its own class, created on demand.
class Tree {
 public:
  Tree() : root("__torch__.saturate.Model", std::make_shared<torch::jit::CompilationUnit>()) {}

  void add(const NamedTensor& named, bool is_buffer) {
    const size_t dot = named.name.rfind('.');
    const std::string path = dot == std::string::npos ? "" : named.name.substr(0, dot);
    module_at(path).register_parameter(named.name.substr(dot + 1), named.tensor, is_buffer);
  }

  Module root;

 private:
  Module& module_at(const std::string& path) {
    if (path.empty()) return root;
    if (const auto found = modules_.find(path); found != modules_.end()) return found->second;
    const size_t dot = path.rfind('.');
    Module& parent = module_at(dot == std::string::npos ? "" : path.substr(0, dot));
    Module child("__torch__.saturate.Part" + std::to_string(modules_.size()),
                 root._ivalue()->compilation_unit());
    parent.register_module(path.substr(dot + 1), child);
    return modules_.emplace(path, child).first->second;
  }

  std::map<std::string, Module> modules_;
};

// The evaluation forward, traced, over the model's tensors.
Module traced(Model& model, const ModelInput& input) {
  Tree tree;
  for (const auto& named : model.parameters()) tree.add(named, /*is_buffer=*/false);
  for (const auto& named : model.buffers()) tree.add(named, /*is_buffer=*/true);
  // Two samples: with one, the tracer might record the batch size as a constant.
  const auto [state, logits] = torch::jit::tracer::trace(
      {input.zeros(2)},
      [&](torch::jit::Stack inputs) {
        return torch::jit::Stack{model.forward(inputs.at(0).toTensor())};
      },
      [](const at::Tensor&) { return std::string(); }, /*strict=*/true, /*force_outplace=*/false,
      &tree.root, {input.is_images() ? "images" : "input"});
  const auto unit = tree.root._ivalue()->compilation_unit();
  tree.root.type()->addMethod(unit->create_function(
      c10::QualifiedName(*tree.root.type()->name(), "forward"), state->graph));
  return tree.root;
}

}  // namespace

torch::jit::Module evaluation_program(Model& model, const ModelInput& input) {
  const at::NoGradGuard no_grad;
  model.set_training(false);
  // Tracing a program would fix its branches and sizes for these samples.
  const Module* own = model.facets().program;
  return own ? *own : traced(model, input);
}

void export_torchscript(Env& env, const std::string& path, Model& model, const ModelInput& input) {
  std::ostringstream out;
  evaluation_program(model, input).save(out);
  write_atomically(env, path, out.str());
}

}  // namespace saturate
