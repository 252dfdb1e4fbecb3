// Converts TOML and overrides to a Recipe and back, using the option table.
#include "saturate/data/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "base/files.h"
#include "base/printable.h"
#include "recipe/option_row.h"
#include "recipe/toml_depth.h"
#include "recipe/toml_text.h"
#include "saturate/data/env.h"

namespace saturate {

std::vector<OptionRow> concatenated(std::initializer_list<std::vector<OptionRow>> parts) {
  std::vector<OptionRow> rows;
  for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

const std::vector<OptionRow>& option_table() {
  static const std::vector<OptionRow> table =
      concatenated({run_rows(), watch_rows(), data_rows(), augment_rows(), model_rows(),
                    step_rows(), distributed_rows(), debug_rows()});
  return table;
}

toml::table parse_toml(const std::string& text, const std::string& where) {
  require_shallow(text, where);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::kUsage, "not valid TOML: " + std::string(error.description()),
         fmt::format("{}:{}", where, error.source().begin.line), "Correct the line");
  }
}

namespace {

// A retired key that was set.
struct RetiredUse {
  const RetiredRow* retired;
  std::string where;
  bool is_override;
  bool now_is_given;  // in the same file
};

const RetiredRow* find_retired(const std::string& key) {
  for (const auto& retired : retired_rows())
    if (retired.row.key == key) return &retired;
  return nullptr;
}

const OptionRow& find_row(const std::string& key, const std::string& where) {
  for (const auto& row : option_table())
    if (row.key == key) return row;
  if (const RetiredRow* retired = find_retired(key)) return retired->row;
  for (const auto& row : option_table())
    if (row.key.starts_with(key + "."))
      fail(ErrorKind::kUsage, key + " is a section, which has no value", where,
           "Name a key in it, such as " + row.key);
  std::vector<std::string> keys;
  for (const auto& row : option_table()) keys.push_back(row.key);
  const std::string near = nearest_name(key, keys);
  fail(ErrorKind::kUsage, "unknown key " + key, where,
       near.empty() ? "`saturate list options` prints them all" : "Did you mean " + near + "?");
}

OptionValue to_value(const toml::node& node, const std::string& key, const std::string& where) {
  if (auto value = node.as_boolean()) return value->get();
  if (auto value = node.as_integer()) return value->get();
  if (auto value = node.as_floating_point()) return value->get();
  if (auto value = node.as_string()) return value->get();
  if (auto array = node.as_array()) {
    std::vector<double> numbers;
    for (const auto& element : *array)
      if (auto number = element.value<double>()) numbers.push_back(*number);
    if (numbers.size() == array->size()) return numbers;
    std::vector<std::string> texts;
    for (const auto& element : *array)
      if (auto text = element.value<std::string>()) texts.push_back(*text);
    if (texts.size() == array->size()) return texts;
  }
  fail(ErrorKind::kUsage, key + " has a value of an unsupported type", where,
       "`saturate list options` prints its type");
}

std::string place(const std::string& where, const toml::source_region& source) {
  return fmt::format("{}:{}", where, source.begin.line);
}

// Calls `each` with the key, the value and the source line of each entry.
template <class Each>
void visit_table(const toml::table& table, const std::string& prefix, const std::string& where,
                 const Each& each) {
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const auto* section = node.as_table()) {
      const auto& rows = option_table();
      if (std::ranges::find(rows, key, &OptionRow::key) != rows.end())
        fail(ErrorKind::kUsage, key + " is a key, not a section", place(where, node.source()),
             "Give it a value: " + std::string(name.str()) + " = VALUE");
      const auto is_in_it = [&](const OptionRow& row) { return row.key.starts_with(key + "."); };
      if (std::ranges::none_of(rows, is_in_it))
        fail(ErrorKind::kUsage, "unknown section [" + key + "]", place(where, node.source()),
             "`saturate list options` prints the keys by section");
      visit_table(*section, key + ".", where, each);
    } else {
      each(key, node, place(where, node.source()));
    }
  }
}

// Applies retired keys last, since the key that replaced one stores defaults for absent parts.
std::vector<RetiredUse> apply_table(Recipe& recipe, const toml::table& table,
                                    const std::string& where) {
  std::vector<RetiredUse> uses;
  std::set<std::string> given;
  for (const bool retired : {false, true})
    visit_table(table, "", where,
                [&](const std::string& key, const toml::node& node, const std::string& line) {
                  const RetiredRow* old = find_retired(key);
                  if (retired != (old != nullptr)) return;
                  find_row(key, line).set(recipe, to_value(node, key, line), line);
                  if (old) uses.push_back({old, line, false, given.contains(old->now)});
                  given.insert(key);
                });
  return uses;
}

std::string format_text(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

// A run saves its recipe, and would read back a different value.
void require_utf8(const std::string& text, const std::string& where) {
  const toml::table table = parse_toml("text = " + format_text(text), where);
  if (table["text"].value<std::string>() != text)
    fail(ErrorKind::kUsage, "the value is not UTF-8", where, "Rename the file, or link to it");
}

// The words of "[fused, sdpa]", a list whose quotes a shell has removed; empty if it is none.
std::vector<std::string> bare_words(std::string_view value) {
  std::vector<std::string> words;
  if (!value.starts_with('[') || !value.ends_with(']') ||
      value.find_first_of("[]\"'\\", 1) != value.size() - 1)
    return words;
  std::istringstream list(std::string(value.substr(1, value.size() - 2)));
  for (std::string word; std::getline(list, word, ',');) {
    words.emplace_back(trimmed(word, " "));
    if (words.back().empty()) return {};
  }
  return words;
}

// An override's value as TOML. What is not TOML, such as `ten`, counts as text: the key refuses it
// with its own type and range, and `auto` needs no quotes.
OptionValue override_value(const OptionRow& row, const std::string& value,
                           const std::string& where) {
  try {
    const toml::table table =
        find_deep_key(value) == value.npos ? toml::parse("value = " + value) : toml::table();
    if (table.size() == 1) return to_value(*table.get("value"), row.key, where);
  } catch (const toml::parse_error&) {
    // Its words do not name the key.
  }
  if (auto words = bare_words(value); !words.empty()) return words;
  if (row.is_text)
    fail_option(row.key, "has quotes that do not enclose one text",
                "Leave out the outer quotes, or write \\\" for those within", where);
  return value;
}

// `retired`: whether to apply it only if its key is retired, or only if not.
void apply_override(Recipe& recipe, const std::string& text, bool retired,
                    std::vector<RetiredUse>& uses) {
  const std::string where = "--set " + text;
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(ErrorKind::kUsage, "an override has no value", where, "Write it as section.key=value");
  const std::string value = text.substr(equals + 1);
  const OptionRow& row = find_row(text.substr(0, equals), where);
  const RetiredRow* old = find_retired(row.key);
  if (retired != (old != nullptr)) return;
  if (old) uses.push_back({old, where, true, false});
  const bool quoted = value.size() >= 2 && value.front() == value.back() &&
                      (value.front() == '"' || value.front() == '\'');
  if (row.is_text && !quoted) {
    require_utf8(value, where);
    row.set(recipe, value, where);
    return;
  }
  row.set(recipe, override_value(row, value, where), where);
}

struct ValueFormat {
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(int64_t number) const { return std::to_string(number); }
  // A float keeps a point or an exponent, so that TOML reads it back as a float.
  std::string operator()(double number) const {
    const std::string text = fmt::format("{}", number);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  std::string operator()(const std::string& text) const { return format_text(text); }
  template <class Item>
  std::string operator()(const std::vector<Item>& items) const {
    std::string list;
    for (const Item& item : items) list += (list.empty() ? "" : ", ") + (*this)(item);
    return "[" + list + "]";
  }
};

std::string format_value(const OptionValue& value) {
  return std::visit(ValueFormat(), value);
}

// Checks the value that a retired key stored by the rules of the key that replaced it, so that the
// recipe can be saved and read again. Two numbers in the wrong order, which had no effect, are
// exchanged.
void settle(Recipe& recipe, const RetiredUse& use) {
  const OptionRow& row = find_row(use.retired->now, use.where);
  OptionValue value = row.get(recipe);
  try {
    row.set(recipe, value, use.where);
  } catch (const Error&) {
    auto* numbers = std::get_if<std::vector<double>>(&value);
    if (!numbers || numbers->size() != 2) throw;
    std::swap(numbers->front(), numbers->back());
    row.set(recipe, value, use.where);
  }
}

// Names the key that replaced the first retired one, with its value in the whole recipe.
[[noreturn]] void fail_retired(Recipe recipe, const std::vector<RetiredUse>& uses) {
  const RetiredUse& use = uses.front();
  settle(recipe, use);
  const std::string& key = use.retired->now;
  const OptionRow& row = find_row(key, use.where);
  const std::string value = format_value(row.get(recipe));
  const std::string others =
      uses.size() > 1 ? fmt::format(", the first of {} old keys", uses.size()) : "";
  std::string remedy = fmt::format("Write {} = {}", key, value);
  if (row.get(recipe) == row.get(Recipe()))
    remedy = fmt::format("Remove it: {} = {} is the default, of {}", key, value, row.type);
  else if (use.is_override)
    remedy = "Write --set " + shell_word(setting_of(recipe, key));
  else if (use.now_is_given)
    remedy = fmt::format("Remove it, and write {} = {} in one line", key, value);
  fail(ErrorKind::kUsage, use.retired->row.key + " is now " + key + others, use.where, remedy);
}

Recipe parsed(const std::string& toml, const std::string& where,
              std::span<const std::string> overrides, bool is_saved) {
  Recipe recipe;
  std::vector<RetiredUse> uses = apply_table(recipe, parse_toml(toml, where), where);
  const std::vector<RetiredUse> saved = is_saved ? std::exchange(uses, {}) : uses;
  for (const bool retired : {false, true})
    for (const auto& text : overrides) apply_override(recipe, text, retired, uses);
  if (!uses.empty()) fail_retired(recipe, uses);
  for (const RetiredUse& use : saved) settle(recipe, use);
  validate_recipe(recipe, where);
  return recipe;
}

std::string read_recipe(Env& env, const std::string& path) {
  try {
    return text_of_file(env, path);
  } catch (const Error& error) {
    fail(ErrorKind::kUsage, "the recipe cannot be read: " + error.reason(), path,
         "Check the path; `saturate list recipes` prints those that come with saturate");
  }
}

std::string section_of(const std::string& key) {
  const auto dot = key.find('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

// Rows outside any section first, as TOML requires, and each section's rows together.
std::vector<const OptionRow*> rows_by_section() {
  std::vector<std::string> order = {""};
  for (const auto& row : option_table())
    if (std::ranges::find(order, section_of(row.key)) == order.end())
      order.push_back(section_of(row.key));
  std::vector<const OptionRow*> rows;
  for (const auto& section : order)
    for (const auto& row : option_table())
      if (section_of(row.key) == section) rows.push_back(&row);
  return rows;
}

}  // namespace

Recipe parse_recipe(const std::string& text, const std::string& where,
                    std::span<const std::string> overrides) {
  return parsed(text, where, overrides, /*is_saved=*/false);
}

Recipe parse_saved_recipe(const std::string& text, const std::string& where,
                          std::span<const std::string> overrides) {
  return parsed(text, where, overrides, /*is_saved=*/true);
}

Recipe load_recipe(Env& env, const std::string& path, std::span<const std::string> overrides) {
  const std::string file = file_or_shipped(env, "recipes", path);
  return parse_recipe(read_recipe(env, file), file, overrides);
}

Recipe load_saved_recipe(Env& env, const std::string& path,
                         std::span<const std::string> overrides) {
  return parse_saved_recipe(read_recipe(env, path), path, overrides);
}

std::string recipe_damage(Env& env, const std::string& path) {
  try {
    const toml::table table = parse_toml(read_recipe(env, path), path);
    return table["data"]["source"].is_string() ? "" : "it names no data.source";
  } catch (const Error& error) {
    return error.reason();
  }
}

std::string setting_of(const Recipe& recipe, const std::string& key) {
  const OptionRow& row = find_row(key, key);
  const OptionValue value = row.get(recipe);
  const std::string* text = std::get_if<std::string>(&value);
  // Double quotes, since a shell's are single.
  std::string given = row.is_text && text ? *text : format_value(value);
  if (!row.is_text && given.find_first_of("\"\\") == std::string::npos)
    std::ranges::replace(given, '\'', '"');
  return key + "=" + given;
}

std::string to_toml(const Recipe& recipe) {
  std::string text, section;
  for (const OptionRow* row : rows_by_section()) {
    const std::string own = section_of(row->key);
    if (own != section) text += "\n[" + own + "]\n";
    section = own;
    const std::string name = own.empty() ? row->key : row->key.substr(own.size() + 1);
    text += name + " = " + format_value(row->get(recipe)) + "\n";
  }
  return text;
}

std::vector<OptionInfo> recipe_options() {
  const Recipe defaults;
  std::vector<OptionInfo> options;
  for (const OptionRow* row : rows_by_section())
    options.push_back(
        {row->key, row->type, row->unit, format_value(row->get(defaults)), row->range, row->doc});
  return options;
}

std::string recipe_markdown() {
  std::string text =
      "# The recipe\n\nEvery key a recipe can hold. Generated from the option table by\n"
      "`saturate list options --markdown`; a test compares the two.\n\nA recipe is a TOML file, in "
      "which only `data.source` is required:\n\n```toml\n[data]\nsource = "
      "\"folder:photos/train\"\n```\n\nThe [tutorial](tutorial.md#2-a-typical-first-recipe) has a "
      "longer one. Any key can be given on the\ncommand line too: `--set section.key=value`.\n";
  std::string section = "none yet";
  for (const auto& option : recipe_options()) {
    if (const std::string own = section_of(option.key); own != section) {
      text += own.empty() ? "\n## Outside any section\n" : "\n## [" + own + "]\n";
      text += "\n| key | type | default | unit | range | meaning |\n|---|---|---|---|---|---|\n";
      section = own;
    }
    std::string type = option.type;
    for (size_t at = 0; (at = type.find('|', at)) != std::string::npos; at += 2)
      type.replace(at, 1, "\\|");
    text += fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", option.key, type,
                        option.default_value, option.unit, option.range, option.doc);
  }
  return text;
}

}  // namespace saturate
