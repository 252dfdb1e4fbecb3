// TorchScript: a user's Python model, saved by torch.jit.script() or torch.jit.trace(), and trained
// here without Python; and any model as a program for Python.
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <map>
#include <sstream>
#include <utility>

#include "model/export_model.h"
#include "model/factories.h"
#include "model/model_files.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

[[noreturn]] void fail_script(const std::string& problem, const std::string& path) {
  fail(ErrorKind::kUsage, "the TorchScript file cannot be trained: " + problem, path,
       "Make one that takes images [N, 3, H, W] and returns logits [N, classes]: "
       "torch.jit.script(module).save(FILE)");
}

// The last line of the interpreter's message is the reason; the others are the location.
std::string reason_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10_error ? c10_error->what_without_backtrace() : error.what();
  text.resize(text.find_last_not_of(" \n") + 1);
  return text.substr(text.rfind('\n') + 1);
}

class ScriptedModel : public Model {
 public:
  explicit ScriptedModel(torch::jit::Module module) : module_(std::move(module)) {}

  at::Tensor forward(const at::Tensor& images) override {
    // With optimisation, the first calls would differ from later ones in the last bits.
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    return module_.forward({images}).toTensor();
  }
  void set_training(bool training) override { module_.train(training); }
  std::vector<NamedTensor> parameters() override { return listed(module_.named_parameters()); }
  std::vector<NamedTensor> buffers() override { return listed(module_.named_buffers()); }
  ModelFacets facets() override {
    ModelFacets facets;
    facets.program = &module_;
    return facets;
  }

 private:
  template <class List>
  static std::vector<NamedTensor> listed(const List& list) {
    std::vector<NamedTensor> tensors;
    for (const auto& item : list) tensors.push_back({item.name, item.value});
    return tensors;
  }

  torch::jit::Module module_;
};

std::string shape_of(const at::Tensor& tensor) {
  std::string text;
  for (const int64_t size : tensor.sizes())
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// Tests the model on two samples of zeros, in evaluation and in training, and leaves it unchanged.
void require_logits(ScriptedModel& model, const ModelInput& input, const std::string& path) {
  const at::NoGradGuard no_grad;
  const std::string name = input.is_images() ? "images" : "tensors";
  std::vector<at::Tensor> before;
  for (const auto& buffer : model.buffers()) before.push_back(buffer.tensor.clone());
  const at::Tensor samples = input.zeros(2);
  for (const bool training : {false, true}) {
    model.set_training(training);
    at::Tensor logits;
    try {
      logits = model.forward(samples.clone());
    } catch (const std::exception& error) {
      fail_script("it fails on " + name + " " + shape_of(samples) + ": " + reason_of(error), path);
    }
    // The task checks the outputs for tensors.
    const bool fits = input.is_images() ? logits.sizes() == at::IntArrayRef{2, input.outputs}
                                        : logits.dim() > 0 && logits.size(0) == 2;
    if (!fits || !logits.is_floating_point())
      fail_script("for 2 " + name + " and " + std::to_string(input.outputs) +
                      (input.is_images() ? " classes" : " outputs") + " it returns " +
                      shape_of(logits) + " of type " + c10::toString(logits.scalar_type()),
                  path);
  }
  const auto buffers = model.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].tensor.copy_(before[i]);
}

torch::jit::Module load(Env& env, const std::string& path) {
  if (!env.exists(path) || env.is_directory(path)) fail_script("there is no such file", path);
  try {
    return torch::jit::load(std::make_shared<EnvReader>(env.open_readable(path)), at::kCPU);
  } catch (const Error& error) {
    // Env reports a failed read as bad data; the program is not part of the run's data.
    fail(ErrorKind::kRun, error.reason(), error.where(), error.remedy(), error.thrown_at());
  } catch (const std::exception& error) {
    const std::string reason = reason_of(error);
    if (reason.find("PytorchStreamReader") != std::string::npos)  // of torch's zip library
      fail_script("it is not a TorchScript program, or it is truncated or damaged", path);
    fail_script("it does not load: " + reason, path);
  }
}

// Modules by their path ("layer1.0"), each of a separate class, created on demand.
class Tree {
 public:
  Tree() : root("__torch__.saturate.Model", std::make_shared<torch::jit::CompilationUnit>()) {}

  void add(const NamedTensor& named, bool is_buffer) {
    const size_t dot = named.name.rfind('.');
    const std::string path = dot == std::string::npos ? "" : named.name.substr(0, dot);
    module_at(path).register_parameter(named.name.substr(dot + 1), named.tensor, is_buffer);
  }

  torch::jit::Module root;

 private:
  torch::jit::Module& module_at(const std::string& path) {
    if (path.empty()) return root;
    if (const auto found = modules_.find(path); found != modules_.end()) return found->second;
    const size_t dot = path.rfind('.');
    torch::jit::Module& parent = module_at(dot == std::string::npos ? "" : path.substr(0, dot));
    torch::jit::Module child("__torch__.saturate.Part" + std::to_string(modules_.size()),
                             root._ivalue()->compilation_unit());
    parent.register_module(path.substr(dot + 1), child);
    return modules_.emplace(path, child).first->second;
  }

  std::map<std::string, torch::jit::Module> modules_;
};

// The evaluation forward, traced, over the model's tensors.
torch::jit::Module traced(Model& model, const ModelInput& input) {
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

std::unique_ptr<Model> make_torchscript(const ModelOptions& options, const ModelInput& input) {
  auto model = std::make_unique<ScriptedModel>(load(input.env, options.file));
  bool trainable = false;
  for (const auto& parameter : model->parameters())
    trainable = trainable || parameter.tensor.requires_grad();
  if (!trainable)
    fail_script("it has no parameters to train, as after torch.jit.freeze()", options.file);
  require_logits(*model, input, options.file);
  return model;
}

torch::jit::Module evaluation_program(Model& model, const ModelInput& input) {
  const at::NoGradGuard no_grad;
  model.set_training(false);
  // Tracing a program would fix its branches and sizes for these samples.
  const torch::jit::Module* own = model.facets().program;
  return own ? *own : traced(model, input);
}

void export_torchscript(Env& env, const std::string& path, Model& model, const ModelInput& input) {
  std::ostringstream out;
  evaluation_program(model, input).save(out);
  write_atomically(env, path, out.str());
}

}  // namespace saturate
