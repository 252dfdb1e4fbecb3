#include "run/same_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

namespace saturate {
namespace {

constexpr std::array<std::string_view, 2> kBatchKeys = {"seed", "train.batch"};
// Which tensors a checkpoint holds, and their shapes. A section stands for its keys.
constexpr std::array<std::string_view, 10> kTensorKeys = {
    "model.",         "augment.size",  "optimizer.name", "optimizer.momentum", "optimizer.freeze",
    "precision.mode", "schedule.name", "train.ema",      "train.lookahead",    "train.task"};

// "KEY is A, and was B in the run to resume" for all of `keys` that differ; empty if none does.
template <size_t N>
std::string changes_of(const std::array<std::string_view, N>& keys, const Recipe& saved,
                       const Recipe& recipe) {
  std::istringstream before(with_full_keys(to_toml(saved))), now(with_full_keys(to_toml(recipe)));
  std::string text;
  // Both have the same keys in the same order.
  for (std::string old, line; std::getline(before, old) && std::getline(now, line);) {
    const std::string key = line.substr(0, line.find(" = ")), begin = key + " = ";
    const bool counts = std::ranges::any_of(keys, [&](std::string_view each) {
      return each.ends_with('.') ? key.starts_with(each) : key == each;
    });
    if (!counts || old == line || !old.starts_with(begin) || !line.starts_with(begin)) continue;
    text += fmt::format("{}{} is {}, and was {}", text.empty() ? "" : "; ", key,
                        line.substr(begin.size()), old.substr(begin.size()));
  }
  return text.empty() ? text : text + " in the run to resume";
}

}  // namespace

std::string with_full_keys(const std::string& toml) {
  std::istringstream lines(toml);
  std::string text, section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('['))
      section = line.substr(1, line.size() - 2) + ".";
    else if (!line.empty())
      text += section + line + "\n";
  }
  return text;
}

void require_same_batches(const Recipe& saved, const Recipe& recipe, const std::string& path) {
  const std::string changes = changes_of(kBatchKeys, saved, recipe);
  if (changes.empty()) return;
  fail(ErrorKind::kUsage, changes, path,
       "Give the value that it had: a resumed run continues with the same batches");
}

void fail_naming_changes(const Error& error, const Recipe& saved, const Recipe& recipe) {
  const std::string changes = changes_of(kTensorKeys, saved, recipe);
  if (changes.empty()) throw Error(error);
  fail(error.kind(), error.reason() + ": " + changes, error.where(),
       "Give the values that it had, or begin a new run with model.weights=CHECKPOINT",
       error.thrown_at());
}

}  // namespace saturate
