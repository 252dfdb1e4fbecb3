#include "saturate/weights.h"

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "model/model_files.h"
#include "model/tensor_pickle.h"
#include "saturate/data/error.h"
#include "saturate/safetensors.h"

namespace saturate {
namespace {

constexpr size_t kShown = 6;  // names of each kind in an error

// Names in torchvision before its transformers' layers were renamed.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kRenamed{
    {{".mlp.linear_1.", ".mlp.0."}, {".mlp.linear_2.", ".mlp.3."}}};

std::string renamed(std::string name) {
  for (const auto& [before, now] : kRenamed)
    if (const size_t at = name.find(before); at != std::string::npos)
      name.replace(at, before.size(), now);
  return name;
}

constexpr const char* kNoModule = "/";  // in no name

using ByName = std::map<std::string, at::Tensor>;

// Inserted into names by torch.compile and wrappers of single modules, anywhere.
constexpr std::array<std::string_view, 3> kInserted{"_orig_mod.", "_fsdp_wrapped_module.",
                                                    "_checkpoint_wrapped_module."};
// Prefixes added by wrappers of whole models, shortest first.
constexpr std::array<std::string_view, 7> kWrapped{
    "", "module.", "model.", "module.model.", "model.module.", "module.module.", "model.model."};

void erase_part(std::string_view part, std::string& name) {
  for (size_t at = 0; !part.empty() && (at = name.find(part, at)) != std::string::npos;)
    if (at == 0 || name[at - 1] == '.')
      name.erase(at, part.size());
    else
      at += part.size();
}

// `foreign`: a prefix of modules that other programs have.
std::string without_inserted(std::string name, std::string_view foreign) {
  for (const std::string_view part : kInserted) erase_part(part, name);
  erase_part(foreign, name);
  return name;
}

// The tensors whose names begin with `prefix`, without it.
std::vector<NamedTensor> behind_prefix(std::string_view prefix,
                                       const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> found;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix)) found.push_back({name.substr(prefix.size()), tensor});
  return found;
}

size_t count_found(const std::vector<NamedTensor>& tensors,
                   const std::vector<NamedTensor>& targets) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(renamed(name));
  return size_t(std::ranges::count_if(
      targets, [&](const NamedTensor& target) { return names.contains(target.name); }));
}

// The tensors after the wrapper prefix that matches most of the model's names.
std::vector<NamedTensor> unwrapped(const std::vector<NamedTensor>& tensors,
                                   const std::vector<NamedTensor>& targets) {
  std::vector<NamedTensor> best = tensors;
  size_t most = count_found(tensors, targets);
  for (const std::string_view prefix : kWrapped) {
    std::vector<NamedTensor> found = behind_prefix(prefix, tensors);
    const size_t count = count_found(found, targets);
    if (count > most) {
      best = std::move(found);
      most = count;
    }
  }
  return best;
}

// The tensors selected by model.weights_prefix, with or without its dot, also after wrappers; none
// if no name begins with it.
std::vector<NamedTensor> chosen(const std::vector<NamedTensor>& tensors,
                                const std::string& prefix) {
  if (prefix.empty()) return tensors;
  for (const std::string_view wrapper : kWrapped) {
    std::vector<NamedTensor> found = behind_prefix(std::string(wrapper) + prefix, tensors);
    for (auto& [name, tensor] : found)
      if (name.starts_with('.')) name.erase(0, 1);
    if (!found.empty()) return found;
  }
  return {};
}

// The file's tensors by the model's names.
ByName by_name(std::vector<NamedTensor> tensors, const std::vector<NamedTensor>& targets,
               const std::string& prefix, const ForeignWeights& foreign) {
  for (auto& [name, tensor] : tensors) name = without_inserted(std::move(name), foreign.prefix);
  ByName named;
  for (auto& [name, tensor] :
       unwrapped(chosen(tensors, without_inserted(prefix, foreign.prefix)), targets))
    named[renamed(std::move(name))] = tensor;
  return named;
}

// The unknown prefix of most of the model's names in the file.
std::string likely_prefix(const ByName& tensors, const std::vector<NamedTensor>& targets) {
  std::map<std::string, size_t> counts;
  for (const auto& [name, tensor] : tensors)
    for (const NamedTensor& target : targets)
      if (const size_t size = target.name.size();
          name.size() > size && name[name.size() - size - 1] == '.' && name.ends_with(target.name))
        ++counts[name.substr(0, name.size() - target.name.size())];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& of) { return of.second; });
  return most == counts.end() || 2 * most->second < targets.size() ? "" : most->first;
}

// Replaces a checkpoint's weights by their averages (train.ema), which `eval` and `export` use too.
// False if there are none.
bool take_averages(const std::vector<NamedTensor>& tensors, const std::vector<NamedTensor>& targets,
                   const std::string& prefix, const ForeignWeights& foreign, ByName& named) {
  std::vector<NamedTensor> averages = behind_prefix("average.", tensors);
  for (auto& [name, tensor] : averages) name.insert(0, "model.");  // as the averaged weight's
  bool found = false;
  for (const auto& [name, tensor] : by_name(std::move(averages), targets, prefix, foreign)) {
    const auto weight = named.find(name);
    if (weight == named.end() || weight->second.sizes() != tensor.sizes()) continue;
    weight->second = tensor;
    found = true;
  }
  return found;
}

bool matches_any(const std::string& name, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

// Whether the shapes are equal except for the number of outputs.
bool differs_in_outputs(const at::Tensor& a, const at::Tensor& b) {
  return a.dim() > 0 && a.dim() == b.dim() && a.sizes().slice(1) == b.sizes().slice(1);
}

// Applies the model's differences from other programs' files, of names without prefixes.
void take_foreign(const ForeignWeights& foreign, const std::vector<NamedTensor>& targets,
                  const std::string& path, ByName& tensors) {
  std::erase_if(tensors, [&](const auto& tensor) {
    return matches_any(tensor.first, foreign.constants) &&
           std::ranges::find(targets, tensor.first, &NamedTensor::name) == targets.end();
  });
  for (const auto& [copy, original] : foreign.copies) {
    const auto node = tensors.extract(copy);
    const auto found = tensors.find(original);
    if (!node) continue;
    if (found == tensors.end())
      tensors[original] = node.mapped();
    else if (!at::equal(node.mapped().to(found->second.scalar_type()), found->second))
      fail(ErrorKind::kUsage,
           copy + " differs from " + original + ", which the model uses for both", path,
           "Use a file in which both are equal, as of a model with tied weights");
  }
  for (const std::string& name : foreign.longer) {
    const auto found = tensors.find(name);
    const auto target = std::ranges::find(targets, name, &NamedTensor::name);
    if (found == tensors.end() || target == targets.end()) continue;
    const at::Tensor& own = target->tensor;
    if (differs_in_outputs(found->second, own) && found->second.size(0) > own.size(0))
      found->second = found->second.narrow(0, 0, own.size(0));
  }
}

// The module part of a parameter's name.
std::string module_of(const std::string& name) {
  return name.substr(0, name.rfind('.') + 1);
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
      // Integers may be quantised weights, whose scales are unknown here.
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

// A weight of a new last layer would not match a pretrained bias.
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

void require_fit(const Fit& fit, const std::string& path, const std::string& prefix) {
  std::string problems;
  add_problem(problems, "of another type:", fit.retyped);
  add_problem(problems, "of another shape:", fit.reshaped);
  add_problem(problems, "missing:", fit.missing);
  add_problem(problems, "not in the model:", fit.unknown);
  if (problems.empty()) return;
  fail(ErrorKind::kUsage, "the weights do not fit the model: " + problems, path,
       !prefix.empty() ? "Set model.weights_prefix=" + prefix
       : !fit.retyped.empty()
           ? "Save them in the model's own types, dequantised if necessary"
           : "Set model.name and model.width (for a transformer augment.size, for a language model "
             "the source's vocabulary and context) to the values of the saved model");
}

// Keeps only the names that match `only`, in the model and in the file.
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

// Detects the format from the first bytes.
std::vector<NamedTensor> read_any_kind(Env& env, const std::string& path,
                                       const std::string& prefix) {
  std::array<std::byte, 16> begin{};
  {
    const auto file = env.open_readable(path);
    if (file->size() >= begin.size()) file->read_at(0, begin);
  }
  if (begin[0] == std::byte{'P'} && begin[1] == std::byte{'K'})
    return read_pt_archive(env, path, prefix);
  if (is_legacy_pickle(begin)) return read_legacy_pt(env, path, prefix);
  SafetensorsFile file = read_safetensors(env, path);
  if (file.metadata["format"] == kCheckpointFormat &&
      file.metadata["crc32"] != tensors_crc32(file.tensors))
    fail(ErrorKind::kRun, "the checkpoint's checksum does not match its data", path,
         "Use an older checkpoint of the run; if you have edited the file, write it without the "
         "metadata \"format\"");
  return std::move(file.tensors);
}

}  // namespace

std::vector<NamedTensor> read_weights(Env& env, const std::string& path,
                                      const std::string& prefix) {
  if (!env.exists(path) || env.is_directory(path))
    fail(ErrorKind::kUsage, "there is no such file of weights", path, "Check model.weights");
  return as_of_the_run([&] { return read_any_kind(env, path, prefix); });
}

LoadedWeights load_weights(Env& env, const std::string& path, Model& model,
                           const std::vector<std::string>& only, const std::string& prefix) {
  const c10::NoGradGuard no_grad;
  std::vector<NamedTensor> targets = model.parameters();
  if (targets.empty()) return {};
  const ForeignWeights foreign = model.facets().foreign_weights;
  // With tied weights the last layer is the embedding, whose rows are those of the vocabulary.
  const std::string head = foreign.copies.empty() ? module_of(targets.back().name) : kNoModule;
  for (const NamedTensor& buffer : model.buffers()) targets.push_back(buffer);
  const std::vector<NamedTensor> all = read_weights(env, path, prefix);
  ByName tensors = by_name(all, targets, prefix, foreign);
  if (tensors.empty() && !prefix.empty())
    fail(ErrorKind::kUsage, "no name in the file begins with \"" + prefix + "\"",
         "model.weights_prefix",
         all.empty() ? "Remove it" : "The first name is " + all.front().name);
  const bool averaged = take_averages(all, targets, prefix, foreign, tensors);
  const std::string missed = likely_prefix(tensors, targets);
  take_foreign(foreign, targets, path, tensors);
  take_only(only, targets, tensors);
  Fit fitting = fit(std::move(tensors), targets, head);
  require_fit(fitting, path, missed.empty() ? "" : prefix + missed);
  complete_head(fitting, head, targets);
  LoadedWeights loaded{{}, fitting.fresh, averaged};
  for (auto& [name, from, to] : fitting.copies) {
    to.copy_(from);
    loaded.taken.push_back(name);
  }
  return loaded;
}

}  // namespace saturate
