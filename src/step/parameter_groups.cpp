// Per-parameter settings: weight decay, learning-rate factors, freezing.
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "recipe/option_row.h"
#include "saturate/data/error.h"
#include "saturate/optimizer.h"

namespace saturate {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

void require_match(const std::string& pattern, const std::vector<NamedTensor>& parameters,
                   const std::string& key) {
  for (const auto& named : parameters)
    if (matches(pattern, named.name)) return;
  std::string some;
  for (size_t i = 0; i < std::min<size_t>(3, parameters.size()); ++i)
    some += (i ? ", " : "") + parameters[i].name;
  fail(ErrorKind::kUsage, key + ": no parameter's name matches \"" + pattern + "\"", key,
       "The model's parameters are named " + some + " and so on");
}

struct Factor {
  std::string pattern;
  double factor;
};

std::vector<Factor> parse_factors(const std::vector<std::string>& texts) {
  std::vector<Factor> factors;
  for (const auto& text : texts) {
    const size_t equals = text.rfind('=');
    const double factor = parsed_number<double>(text.substr(equals + 1)).value_or(-1);
    if (equals == std::string::npos || equals == 0 || !(factor >= 0 && factor <= kMostFactor))
      fail(ErrorKind::kUsage, "\"" + text + "\" is not PATTERN=FACTOR", "optimizer.lr_factors",
           "Write it as \"fc.*=10\", the factor at least 0 and at most 1e30");
    factors.push_back({text.substr(0, equals), factor});
  }
  return factors;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// A parameter's name up to the first component that ends in a digit and the numbers right after it
// ("layer1.0.conv1.weight" gives "layer1.0"), or without its last component if there is none.
std::string layer_name(const std::string& parameter) {
  std::string name;
  bool numbered = false;
  for (size_t from = 0;;) {
    const size_t dot = parameter.find('.', from);
    if (dot == std::string::npos)
      return name.empty() ? parameter : name;  // never the last component
    const std::string part = parameter.substr(from, dot - from);
    if (numbered && !is_number(part)) return name;
    if (!part.empty() && is_number(part.substr(part.size() - 1))) numbered = true;
    name += (name.empty() ? "" : ".") + part;
    from = dot + 1;
  }
}

// The index of each parameter's layer, from 0 at the input. Layers without a parameter of two
// dimensions (norms) belong to the one before.
std::vector<int> layer_indices(const std::vector<NamedTensor>& parameters) {
  std::set<std::string> weighty;
  for (const auto& named : parameters)
    if (named.tensor.dim() > 1) weighty.insert(layer_name(named.name));
  std::vector<int> indices;
  std::vector<std::string> seen;
  for (const auto& named : parameters) {
    const std::string layer = layer_name(named.name);
    auto found = std::ranges::find(seen, layer);
    if (found == seen.end() && weighty.contains(layer)) found = seen.insert(seen.end(), layer);
    const auto index = found == seen.end() ? std::ssize(seen) - 1 : found - seen.begin();
    indices.push_back(int(std::max<std::ptrdiff_t>(0, index)));
  }
  return indices;
}

// optimizer.layer_decay times optimizer.lr_factors, per parameter.
std::vector<double> rate_factors(const OptimizerOptions& options,
                                 const std::vector<NamedTensor>& parameters) {
  const auto by_pattern = parse_factors(options.lr_factors);
  for (const auto& [pattern, factor] : by_pattern)
    require_match(pattern, parameters, "optimizer.lr_factors");
  const auto layers = layer_indices(parameters);
  std::vector<double> factors;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto match = std::ranges::find_if(by_pattern, [&](const Factor& known) {
      return matches(known.pattern, parameters[i].name);
    });
    factors.push_back(std::pow(options.layer_decay, layers.back() - layers[i]) *
                      (match == by_pattern.end() ? 1 : match->factor));
  }
  return factors;
}

}  // namespace

std::vector<ParameterGroup> make_parameter_groups(const OptimizerOptions& options,
                                                  const std::vector<NamedTensor>& parameters) {
  for (const auto& pattern : options.freeze) require_match(pattern, parameters, "optimizer.freeze");
  const auto factors = rate_factors(options, parameters);
  std::vector<ParameterGroup> groups;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const NamedTensor& named = parameters[i];
    if (std::ranges::any_of(options.freeze,
                            [&](const auto& pattern) { return matches(pattern, named.name); })) {
      named.tensor.requires_grad_(false);
      continue;
    }
    if (!named.tensor.requires_grad()) continue;
    const bool decays = options.decay_norm_and_bias || named.tensor.dim() > 1;
    const double weight_decay = decays ? options.weight_decay : 0;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& known) {
      return known.weight_decay == weight_decay && known.lr_factor == factors[i];
    });
    if (group == groups.end())
      group = groups.insert(groups.end(), ParameterGroup{{}, weight_decay, factors[i]});
    group->parameters.push_back(named);
  }
  if (groups.empty() && !parameters.empty())
    fail(ErrorKind::kUsage, "optimizer.freeze leaves nothing to train", "optimizer.freeze",
         "Name fewer parameters");
  return groups;
}

}  // namespace saturate
