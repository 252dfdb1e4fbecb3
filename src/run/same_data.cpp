#include "run/same_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"

namespace saturate {
namespace {

constexpr const char* kNewRun =
    "begin a new run with model.weights=CHECKPOINT, which starts from its weights";

// As older checkpoints have the name of a class whose bytes are not UTF-8.
std::string name_as_once_stored(const std::string& name) {
  return nlohmann::json::parse(
      nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

bool same_class(const std::string& a, const std::string& b) {
  return a == b || as_utf8(a) == as_utf8(b) || name_as_once_stored(a) == b ||
         a == name_as_once_stored(b);
}

// A remedy, with the source that the run had if it was another one.
std::string give_what_it_had(const Checkpoint& saved, const std::string& source) {
  const std::string had = parse_saved_recipe(saved.recipe_toml, source).data.source;
  return "Give the data that it had" + (had == source ? "" : ", " + had);
}

int64_t number_in_model(const std::vector<std::string>& classes, const std::string& name) {
  auto found = std::ranges::find(classes, name);
  if (found == classes.end()) found = std::ranges::find(classes, as_utf8(name));
  if (found == classes.end())
    found = std::ranges::find_if(classes, [&](const auto& each) { return same_class(each, name); });
  return found == classes.end() ? -1 : found - classes.begin();
}

}  // namespace

std::vector<int64_t> labels_in_model(const std::vector<std::string>& classes, const Dataset& data,
                                     const std::string& source) {
  std::vector<int64_t> labels;
  bool same = true;
  for (const std::string& name : data.classes()) {
    const int64_t number = number_in_model(classes, name);
    if (number < 0)
      fail(ErrorKind::kData,
           fmt::format("class \"{}\" is unknown to the training data, which had {} classes", name,
                       classes.size()),
           source, "Leave its images out of the source, or train with it");
    same = same && number == int64_t(labels.size());
    labels.push_back(number);
  }
  if (same) return {};
  if (data.has_masks())
    fail(ErrorKind::kData, "the classes have other numbers than in the training data", source,
         "Name them in the same order in classes.txt, and number the masks so");
  return labels;
}

void require_same_data(const Checkpoint& saved, const Dataset& data, const std::string& source,
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
  if (changed || saved.images == 0 || saved.images == int64_t(data.size())) return;
  fail(ErrorKind::kData,
       fmt::format("the training data have {} images, and the run to resume had {}", data.size(),
                   saved.images),
       source,
       give_what_it_had(saved, source) + "; add --allow-changed-data to continue with these; or " +
           kNewRun);
}

}  // namespace saturate
