#include "saturate/weights.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/tensor_pickle.h"
#include "model/pt_file.h"
#include "saturate/error.h"
#include "saturate/safetensors.h"

namespace saturate {
namespace {

constexpr size_t kShown = 6;  // names of each kind, in an error

// As they were in torchvision before its transformers' layers were renamed.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kRenamed{
    {{".mlp.linear_1.", ".mlp.0."}, {".mlp.linear_2.", ".mlp.3."}}};

std::string renamed(std::string name) {
  for (const auto& [before, now] : kRenamed)
    if (const size_t at = name.find(before); at != std::string::npos)
      name.replace(at, before.size(), now);
  return name;
}

using ByName = std::map<std::string, at::Tensor>;

// The file's tensors by the model's names: of what begins with the prefix that most of these are
// found with.
ByName by_name(const std::vector<NamedTensor>& tensors, const std::vector<NamedTensor>& targets) {
  ByName best;
  size_t most = 0;
  for (const std::string prefix : {"", "module.", "model."}) {
    ByName named;
    for (const auto& [name, tensor] : tensors)
      if (name.starts_with(prefix)) named[renamed(name.substr(prefix.size()))] = tensor;
    const auto found = size_t(std::ranges::count_if(
        targets, [&](const NamedTensor& target) { return named.contains(target.name); }));
    if (prefix.empty() || found > most) {
      best = std::move(named);
      most = found;
    }
  }
  return best;
}

// The module that a parameter belongs to, as its name has it.
std::string module_of(const std::string& name) {
  return name.substr(0, name.rfind('.') + 1);
}

// Of the same shape but for the number of outputs.
bool differs_in_outputs(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() > 0 && a.dim() == b.dim() && a.sizes().slice(1) == b.sizes().slice(1);
}

struct Fit {
  struct Copy {
    std::string name;
    at::Tensor from, to;
  };
  std::vector<Copy> copies;
  std::vector<std::string> fresh, missing, unknown, reshaped, retyped;
};

Fit fit(ByName tensors, const std::vector<NamedTensor>& targets, const std::string& head) {
  Fit result;
  bool head_found = false;
  for (const NamedTensor& target : targets)
    head_found = head_found || (module_of(target.name) == head && tensors.contains(target.name));
  for (const auto& [name, to] : targets) {
    const bool in_head = module_of(name) == head;
    const auto node = tensors.extract(name);
    if (!node) {
      if (in_head && !head_found)
        result.fresh.push_back(name);
      else if (!name.ends_with("num_batches_tracked"))  // files before torch 0.4.1 have none
        result.missing.push_back(name);
    } else if (const at::Tensor& from = node.mapped();
               from.is_floating_point() != to.is_floating_point()) {
      // Integers are of quantised weights, say, whose scales this cannot know.
      result.retyped.push_back(fmt::format(
          "{} {} instead of {}", name, toString(from.scalar_type()), toString(to.scalar_type())));
    } else if (from.sizes() == to.sizes()) {
      result.copies.push_back({name, from, to});
    } else if (in_head && differs_in_outputs(from, to)) {
      result.fresh.push_back(name);
    } else {
      result.reshaped.push_back(fmt::format("{} [{}] instead of [{}]", name,
                                            fmt::join(from.sizes(), ", "),
                                            fmt::join(to.sizes(), ", ")));
    }
  }
  for (const auto& [name, tensor] : tensors) result.unknown.push_back(name);
  return result;
}

// A weight of a new last layer would not fit a bias that was trained.
void complete_head(Fit& fit, const std::string& head, const std::vector<NamedTensor>& targets) {
  if (fit.fresh.empty()) return;
  fit.fresh.clear();
  for (const auto& [name, tensor] : targets)
    if (module_of(name) == head) {
      fit.fresh.push_back(name);
      std::erase_if(fit.copies, [&](const Fit::Copy& copy) { return copy.name == name; });
    }
}

void add_problem(std::string& text, const char* kind, std::vector<std::string> names) {
  if (names.empty()) return;
  const size_t hidden = names.size() - std::min(names.size(), kShown);
  names.resize(names.size() - hidden);
  text += fmt::format("{}{} {}{}", text.empty() ? "" : "; ", kind, fmt::join(names, ", "),
                      hidden > 0 ? fmt::format(" and {} more", hidden) : "");
}

void require_fit(const Fit& fit, const std::string& path) {
  std::string problems;
  add_problem(problems, "of another kind of number:", fit.retyped);
  add_problem(problems, "of another shape:", fit.reshaped);
  add_problem(problems, "missing:", fit.missing);
  add_problem(problems, "not in the model:", fit.unknown);
  if (problems.empty()) return;
  fail(ErrorKind::kUsage, "the weights do not fit the model: " + problems, path,
       !fit.retyped.empty()
           ? "Save them in the model's own types, quantised ones as the numbers they stand for"
           : "Set model.name and model.width (for a transformer augment.size) as the weights had "
             "them");
}

bool matches_any(const std::string& name, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

// Leaves those that `only` names, in the model and in the file.
void take_only(const std::vector<std::string>& only, std::vector<NamedTensor>& targets,
               ByName& tensors) {
  if (only.empty()) return;
  for (const std::string& pattern : only)
    if (std::ranges::none_of(targets, [&](const NamedTensor& target) {
          return matches_any(target.name, {pattern});
        }))
      fail(ErrorKind::kUsage, "no name in the model matches \"" + pattern + "\"",
           "model.weights_match", "The first is " + targets.front().name);
  std::erase_if(targets,
                [&](const NamedTensor& target) { return !matches_any(target.name, only); });
  std::erase_if(tensors, [&](const auto& tensor) { return !matches_any(tensor.first, only); });
}

// By what the file begins with.
std::vector<NamedTensor> read_any_kind(Env& env, const std::string& path) {
  std::array<std::byte, 2> begin{};
  {
    const auto file = env.open_readable(path);
    if (file->size() >= begin.size()) file->read_at(0, begin);
  }
  if (begin == std::array{std::byte{'P'}, std::byte{'K'}}) return read_pt_archive(env, path);
  if (is_legacy_pickle(begin)) return read_legacy_pt(env, path);
  return read_safetensors(env, path).tensors;
}

}  // namespace

std::vector<NamedTensor> read_weights(Env& env, const std::string& path) {
  if (!env.exists(path) || env.is_directory(path))
    fail(ErrorKind::kUsage, "there is no such file of weights", path, "Check model.weights");
  try {
    return read_any_kind(env, path);
  } catch (const Error& error) {
    // Env calls a failed read bad data; weights are none of the run's data.
    fail(ErrorKind::kRun, error.reason(), error.where(), error.remedy(), error.thrown_at());
  }
}

LoadedWeights load_weights(Env& env, const std::string& path, Model& model,
                           const std::vector<std::string>& only) {
  const c10::NoGradGuard no_grad;
  std::vector<NamedTensor> targets = model.parameters();
  if (targets.empty()) return {};
  const std::string head = module_of(targets.back().name);
  for (const NamedTensor& buffer : model.buffers()) targets.push_back(buffer);
  ByName tensors = by_name(read_weights(env, path), targets);
  take_only(only, targets, tensors);
  Fit fitting = fit(std::move(tensors), targets, head);
  require_fit(fitting, path);
  complete_head(fitting, head, targets);
  LoadedWeights loaded{{}, fitting.fresh};
  for (auto& [name, from, to] : fitting.copies) {
    to.copy_(from);
    loaded.taken.push_back(name);
  }
  return loaded;
}

}  // namespace saturate
