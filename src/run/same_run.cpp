#include "run/same_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "data/sources.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {
namespace {

constexpr const char* kNewRun =
    "begin a new run with model.weights=CHECKPOINT, which starts from its weights";

// The form in which older checkpoints hold the name of a class whose bytes are not UTF-8.
std::string name_as_once_stored(const std::string& name) {
  return nlohmann::json::parse(
      nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

bool same_class(const std::string& a, const std::string& b) {
  return a == b || as_utf8(a) == as_utf8(b) || name_as_once_stored(a) == b ||
         a == name_as_once_stored(b);
}

// A remedy that names the run's former source if it was another one.
std::string give_what_it_had(const Checkpoint& saved, const std::string& source) {
  const std::string had = parse_saved_recipe(saved.recipe_toml, source).data.source;
  return "Give the data that it had" + (had == source ? "" : ", " + had);
}

// The numbers of the model's classes, by each form of their names.
class ClassNumbers {
 public:
  explicit ClassNumbers(const std::vector<std::string>& classes) {
    for (size_t i = 0; i < classes.size(); ++i) names_.try_emplace(classes[i], int64_t(i));
    for (const std::string& name : classes) {
      const int64_t number = names_.at(name);
      names_.try_emplace(as_utf8(name), number);
      once_stored_.try_emplace(name_as_once_stored(name), number);
      if (const auto digits = digits_of(name); !digits.empty())
        digits_.try_emplace(std::string(digits), number);
    }
  }

  // -1 if there is none: see same_class(). Numbers may have other zeros before them.
  int64_t find(const std::string& name) const {
    int64_t number = find_in(names_, name);
    if (number < 0) number = find_in(names_, as_utf8(name));
    if (number < 0) number = find_in(names_, name_as_once_stored(name));
    if (number < 0) number = find_in(once_stored_, name);
    if (number < 0) number = find_in(digits_, std::string(digits_of(name)));
    return number;
  }

 private:
  using Numbers = std::unordered_map<std::string, int64_t>;
  static int64_t find_in(const Numbers& numbers, const std::string& form) {
    const auto found = numbers.find(form);
    return found == numbers.end() ? -1 : found->second;
  }

  Numbers names_, once_stored_, digits_;
};

// Objects of other names, as of a copy of the data, cannot be compared.
void require_same_versions(const Checkpoint& saved, const std::vector<ObjectVersion>& objects) {
  std::map<std::string_view, std::string_view> had;
  for (const ObjectVersion& object : saved.objects) had[object.name] = object.digest;
  for (const ObjectVersion& object : objects) {
    const auto found = had.find(object.name);
    if (found != had.end() && found->second != object.digest)
      fail(ErrorKind::kData,
           "the training data have been replaced since the run to resume read them: their size, "
           "ETag or date has changed",
           object.name,
           std::string("Put the old object back (and delete the folder lists of data.cache_dir, "
                       "where a bucket's list is kept for an hour); add --allow-changed-data to "
                       "continue with this one; or ") +
               kNewRun);
  }
}

constexpr std::string_view kBatchKeys[] = {"seed", "train.batch"};
// Which tensors a checkpoint holds, and their shapes. A section stands for its keys.
constexpr std::string_view kTensorKeys[] = {
    "model.",           "augment.size",    "optimizer.name", "optimizer.momentum",
    "optimizer.freeze", "precision.mode",  "schedule.name",  "train.ema",
    "train.swa",        "train.lookahead", "train.task"};

// "KEY is A, and was B in the run to resume" for all of `keys` that differ; empty if none does.
std::string changes_of(std::span<const std::string_view> keys, const Recipe& saved,
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

std::vector<int64_t> labels_in_model(const std::vector<std::string>& classes, const Dataset& data,
                                     const std::string& source, int64_t outputs) {
  const std::vector<std::string>& names = data.classes();
  if (names == classes) return {};
  const ClassNumbers numbers(classes);
  const bool are_numbers = are_numbered(classes) && are_numbered(names);
  std::vector<int64_t> labels;
  bool same = true;
  for (const std::string& name : names) {
    int64_t number = numbers.find(name);
    // The training data may lack the last of the model's classes.
    if (number < 0 && are_numbers && std::ssize(labels) < outputs) number = std::ssize(labels);
    if (number < 0)
      fail(ErrorKind::kData,
           fmt::format("class \"{}\" is unknown to the training data, which had {} classes", name,
                       classes.size()),
           source,
           "Remove its samples from the source, or train " +
               (are_numbers ? fmt::format("with model.classes={}", names.size())
                            : std::string("on data with this class")));
    same = same && number == int64_t(labels.size());
    labels.push_back(number);
  }
  if (same) return {};
  if (data.has_masks())
    fail(ErrorKind::kData, "the classes have other numbers than in the training data", source,
         "Name them in the same order in classes.txt, and number the masks so");
  return labels;
}

void require_same_data(const Checkpoint& saved, const Dataset& data,
                       const std::vector<ObjectVersion>& objects, const std::string& source,
                       bool changed) {
  const std::vector<std::string>& found = data.classes();
  if (found.size() != saved.classes.size())
    fail(ErrorKind::kData,
         fmt::format("the training data have {} classes, and the run to resume had {}",
                     found.size(), saved.classes.size()),
         source, give_what_it_had(saved, source) + "; or " + kNewRun);
  for (size_t i = 0; i < found.size() && !changed; ++i)
    if (!same_class(found[i], saved.classes[i]))
      fail(ErrorKind::kData,
           fmt::format("class {} of the training data is \"{}\", and was \"{}\" in the run to "
                       "resume",
                       i, found[i], saved.classes[i]),
           source,
           give_what_it_had(saved, source) +
               "; add --allow-changed-data if the classes mean the same");
  if (changed) return;
  require_same_versions(saved, objects);
  if (saved.images == 0 || saved.images == int64_t(data.size())) return;
  fail(ErrorKind::kData,
       fmt::format("the training data have {} {}, and the run to resume had {}", data.size(),
                   data.tensors().empty() ? "images" : "samples", saved.images),
       source,
       give_what_it_had(saved, source) + "; add --allow-changed-data to continue with these; or " +
           kNewRun);
}

std::string text_of(const std::vector<ObjectVersion>& objects) {
  std::string text;
  for (const ObjectVersion& object : objects) text += object.digest + " " + object.name + "\n";
  return text;
}

void require_same_objects(const std::vector<std::string>& ranks) {
  std::map<std::string, std::pair<std::string, size_t>> known;  // digests, and whose
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::istringstream lines(ranks[rank]);
    for (std::string digest, name; lines >> digest && std::getline(lines.ignore(), name);) {
      const auto& [other, whose] = known.try_emplace(name, digest, rank).first->second;
      if (other != digest)
        fail(ErrorKind::kUsage,
             fmt::format("ranks {} and {} have opened different versions of the object (size, ETag "
                         "or date), so it was replaced meanwhile",
                         whose, rank),
             name,
             "Start the run again when the data no longer change; with data.cache_dir, delete its "
             "folder lists, where a bucket's list is kept for an hour");
    }
  }
}

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
