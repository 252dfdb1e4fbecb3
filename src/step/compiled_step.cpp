#include "step/compiled_step.h"

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/printable.h"
#include "saturate/data/error.h"
#include "step/precision.h"
#include "step/step_package.h"

namespace saturate {
namespace {

using Runner = torch::inductor::AOTIModelContainerRunner;

constexpr size_t kFirstGradient = 3;  // after the scaled loss, the loss and the logits

// Makes a library available to dlopen in memory only: nothing remains, however the process ends.
// The file is never closed, since dlopen identifies libraries by path and may keep this one after
// use: another must not get its path.
std::string path_in_memory(const std::vector<std::byte>& bytes, const std::string& what) {
  const int fd = memfd_create("saturate-step", MFD_CLOEXEC);
  size_t done = 0;
  while (fd >= 0 && done < bytes.size()) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += size_t(n);
  }
  if (fd >= 0 && done == bytes.size()) return fmt::format("/proc/self/fd/{}", fd);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  fail(ErrorKind::kRun, std::string("cannot put the library in memory: ") + std::strerror(error),
       what, "Free some memory, or train without train.compiled");
}

std::unique_ptr<Runner> load(const StepPackage& package, const at::Device& device) {
  const std::string library = path_in_memory(package.library, package.path);
  const std::string name = device.is_cuda() ? "cuda" : "cpu";
  try {
    const auto& makers = torch::inductor::getAOTIModelRunnerRegistry();
    const auto maker = makers.find(name);
    if (maker == makers.end()) throw std::runtime_error("this build cannot run one on " + name);
    // One caller at a time; a GPU library contains its kernels.
    return maker->second(library, /*num_models=*/1, device.str(), /*bin_dir=*/"",
                         /*run_single_threaded=*/true);
  } catch (const std::exception& error) {
    fail_package("its library does not load: " + first_line(error.what()), package.path);
  }
}

// Binds the library to the model's own tensors.
void bind_tensors(Runner& runner, Model& model, const std::string& path) {
  std::unordered_map<std::string, at::Tensor> own, bound;
  for (const auto& tensors : {model.parameters(), model.buffers()})
    for (const auto& [name, tensor] : tensors) own.emplace(name, tensor);
  for (const auto& [constant, name] : runner.getConstantNamesToOriginalFQNs()) {
    const std::string prefix = "model.";  // the member of the exported module that is the model
    const auto found = own.find(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
    if (found == own.end()) fail_package("its library has a constant " + name, path);
    bound.emplace(constant, found->second);
  }
  runner.update_constant_buffer(bound, /*use_inactive=*/false, /*validate_full_updates=*/true,
                                /*user_managed=*/true);
}

}  // namespace

CompiledStep::CompiledStep(Env& env, const Recipe& recipe, Model& model, int processes)
    : recipe_(recipe),
      path_(recipe.train.compiled),
      model_(model),
      task_(make_task(recipe.train, recipe.model.classes, {})),
      outputs_(kFirstGradient) {
  const StepPackage package = read_step_package(env, path_);
  const auto parameters = model.parameters();
  const at::Device device = parameters.at(0).tensor.device();
  require_fit(package, recipe, model, processes, gpu_architecture(device));
  micro_batch_ = package.about["part"];
  input_ = package.about.value("input", nlohmann::json());
  target_ = package.about.value("target", nlohmann::json());
  for (const auto& name : package.about["gradients"].get<std::vector<std::string>>()) {
    const auto found = std::ranges::find(parameters, name, &NamedTensor::name);
    if (found == parameters.end()) fail_package("it has a gradient of an unknown " + name, path_);
    if (found->tensor.requires_grad()) {
      trained_.push_back(found->tensor);
      gradients_.push_back(outputs_);
    }
    ++outputs_;
  }
  runner_ = load(package, device);
  bind_tensors(*runner_, model, path_);
}

CompiledStep::~CompiledStep() = default;

// The rest of a package for images is compared with the recipe.
void CompiledStep::require_shapes(const at::Tensor& images, const at::Tensor& labels) const {
  const auto compare = [&](const char* kind, const nlohmann::json& expected,
                           const at::Tensor& found) {
    if (expected.is_null()) return;
    const auto text = [](const nlohmann::json& type, const nlohmann::json& shape) {
      return fmt::format("{} {}", type.get<std::string>(), shape.dump());
    };
    const std::string made_for = text(expected.at("type"), expected.at("shape"));
    const std::string own = text(toString(found.scalar_type()), found.sizes().slice(1).vec());
    if (own != made_for)
      fail_package(
          fmt::format("it was made for samples whose {} is {}, not {}", kind, made_for, own),
          path_);
  };
  compare("input", input_, images);
  compare("target", target_, labels);
}

double CompiledStep::eager_loss(const at::Tensor& images, const at::Tensor& labels) {
  std::vector<at::Tensor> before;
  for (const auto& buffer : model_.buffers()) before.push_back(buffer.tensor.clone());
  at::Tensor loss;
  {
    const AutocastScope autocast(recipe_.precision.mode, images.device().type());
    loss = task_->mean_loss(model_.forward(images).to(at::kFloat), labels,
                            recipe_.train.label_smoothing);
  }
  const auto buffers = model_.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].tensor.copy_(before[i]);
  return loss.item<double>();
}

// Detects only a different computation: rounding differs far less.
void CompiledStep::require_loss(double expected, double found) const {
  const double tolerance = reduced_type(recipe_.precision.mode) ? 5e-2 : 1e-3;
  if (!std::isfinite(expected) || std::abs(found - expected) <= tolerance * (1 + expected)) return;
  fail_package(fmt::format("it does not compute what the model does: on the first samples a loss "
                           "of {:.6g} instead of {:.6g}",
                           found, expected),
               path_);
}

CompiledStep::Output CompiledStep::run(const at::Tensor& images, const at::Tensor& labels,
                                       const at::Tensor& factor) {
  const c10::NoGradGuard no_grad;
  const at::MemoryFormat order = recipe_.train.channels_last && input_.is_null()
                                     ? at::MemoryFormat::ChannelsLast
                                     : at::MemoryFormat::Contiguous;
  const at::Tensor ordered = images.contiguous(order);  // no copy for the loader's batches
  const bool first = !std::exchange(checked_, true);
  if (first) require_shapes(ordered, labels);
  const double expected = first ? eager_loss(ordered, labels) : 0;
  std::vector<at::Tensor> outputs;
  try {
    outputs = runner_->run({ordered, labels, factor});
    TORCH_CHECK(outputs.size() == outputs_, outputs.size(), " outputs, not ", outputs_);
  } catch (const std::exception& error) {
    fail(ErrorKind::kRun, "the compiled step failed: " + first_line(error.what()), path_,
         "Train without train.compiled");
  }
  if (first) require_loss(expected, outputs[1].item<double>());
  Output output{outputs[1], outputs[2], {}};
  for (const size_t i : gradients_) output.gradients.push_back(std::move(outputs[i]));
  return output;
}

void CompiledStep::add_gradients(Output output) {
  const c10::NoGradGuard no_grad;
  std::vector<const void*> taken;
  for (size_t i = 0; i < trained_.size(); ++i) {
    at::Tensor& gradient = output.gradients[i];
    at::Tensor& sum = trained_[i].mutable_grad();
    if (sum.defined()) {
      sum.add_(gradient);
      continue;
    }
    // Gradients that are equal by construction, as of two biases that are added, come as one block
    // of memory, which in-place clipping and unscaling would change twice.
    const void* memory = gradient.storage().data();
    const bool shared = std::ranges::find(taken, memory) != taken.end();
    sum = shared ? gradient.clone() : std::move(gradient);
    taken.push_back(memory);
  }
}

}  // namespace saturate
