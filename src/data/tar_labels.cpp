#include "data/tar_labels.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "data/sources.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kMaxNameBytes = 1000;
constexpr uint32_t kMaxClasses = 1 << 20;  // as model.classes

// The "label" of a JSON object, a text or an integer; empty if it has none.
std::optional<std::string> label_of_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto label = json.is_object() ? json.find("label") : json.end();
  if (label == json.end()) return std::nullopt;
  if (label->is_string()) return label->get<std::string>();
  if (label->is_number_integer()) return label->dump();
  return std::nullopt;
}

// Whether a text that is not valid JSON may have a label: Python writes NaN, which JSON has not.
bool hides_label(const std::string& text) {
  return text.find("\"label\"") != text.npos && !nlohmann::json::accept(text);
}

// A negative number: values like -1 mean "none", and must not become a class.
bool is_no_class_number(std::string_view text) {
  return text.size() > 1 && text.front() == '-' &&
         text.find_first_not_of("0123456789.", 1) == std::string_view::npos;
}

// Values above 2^32 - 1 are clamped.
std::optional<uint32_t> parse_label(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  return parsed_number<uint32_t>(text).value_or(UINT32_MAX);
}

}  // namespace

SplitName split_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = std::min(name.find('.', base), name.size());
  return {name.substr(0, dot), name.substr(base),
          dot == name.size() ? std::string_view() : name.substr(dot + 1)};
}

bool is_label_ending(std::string_view ending) {
  return lower_case(ending) == "cls" || is_json_ending(ending);
}

bool is_json_ending(std::string_view ending) {
  return lower_case(ending) == "json";
}

std::string reduced_json(const std::string& text) {
  const auto label = label_of_json(text);
  if (!label && hides_label(text)) return "{\"label\"";
  auto reduced = nlohmann::json::object();
  if (label) reduced["label"] = *label;
  return reduced.dump();
}

void PairGroup::start(std::string_view new_key, size_t entry) {
  key = new_key;
  first_entry = entry;
  cls.reset();
  json.reset();
  unread.clear();
}

void PairGroup::add_label(std::string_view ending, std::optional<std::string> text) {
  if (!text) unread = ending;
  (is_json_ending(ending) ? json : cls) = std::move(text);
}

bool PairGroup::has_label() const {
  return cls || (json && json->find("\"label\"") != json->npos && label_of_json(*json));
}

std::optional<std::string> PairGroup::label(const std::string& where) const {
  std::optional<std::string> label;
  if (cls)
    label = std::string(trimmed(*cls));
  else if (!unread.empty())
    fail(ErrorKind::kData, "the file is larger than 1 MiB, and may hold the label",
         where + "." + unread,
         "Put the label alone into KEY.cls, or leave such files out of the archive");
  else if (json)
    label = label_of_json(*json);
  if (!label && json && hides_label(*json))
    fail(ErrorKind::kData, "the file may hold the label, and is not valid JSON", where + ".json",
         "Write null in place of NaN and Infinity, which JSON does not have, or put the label into "
         "KEY.cls");
  if (!label) return std::nullopt;  // or JSON with other contents
  if (is_no_class_number(*label))
    fail(ErrorKind::kData, "label " + *label + " is not a class number", where,
         "Number the classes from 0 on, or remove samples without a class");
  if (label->empty() || label->size() > kMaxNameBytes)
    fail(ErrorKind::kData,
         label->empty() ? "label is empty" : "label of " + std::to_string(label->size()) + " bytes",
         where, "Write a class number or name");
  return label;
}

uint32_t LabelTable::add(std::string_view text) {
  auto found = numbers_.find(text);
  if (found == numbers_.end())
    found = numbers_.emplace(std::string(text), uint32_t(numbers_.size())).first;
  return found->second;
}

std::vector<uint32_t> LabelTable::settle_names(std::vector<std::string>& classes) const {
  std::vector<uint32_t> labels(numbers_.size());
  for (const auto& [name, number] : numbers_) {  // in sorted order
    labels[number] = uint32_t(classes.size());
    classes.push_back(name);
  }
  return labels;
}

std::vector<uint32_t> LabelTable::settle_numbers_or_names(const std::string& where,
                                                          std::vector<std::string>& classes) const {
  std::vector<uint32_t> labels(numbers_.size());
  uint32_t largest = 0;
  for (const auto& [text, number] : numbers_) {
    const auto label = parse_label(text);
    if (!label) return settle_names(classes);
    labels[number] = *label;
    largest = std::max(largest, *label);
  }
  if (largest >= kMaxClasses)
    fail(ErrorKind::kData, "label is too large for a class number", where,
         "Number the classes from 0 on");
  classes = number_classes(size_t{largest} + 1);
  return labels;
}

}  // namespace saturate
