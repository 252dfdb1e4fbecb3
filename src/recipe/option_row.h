// One row of the option table: how a recipe key is named, checked, stored and explained.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "saturate/data/recipe.h"
#include "saturate/data/registry.h"

namespace saturate {

using OptionValue =
    std::variant<bool, int64_t, double, std::string, std::vector<double>, std::vector<std::string>,
                 std::vector<int64_t>>;  // the last only from OptionRow::get

inline constexpr double kInf = std::numeric_limits<double>::infinity();  // of a range's end

struct OptionRow {
  std::string key;  // "train.batch", or "seed" outside any section
  std::string type, unit, range, doc;
  bool is_text;  // an override's value needs no quotes
  // Stores a value, or fails with kUsage; `where` says where the value came from.
  std::function<void(Recipe&, const OptionValue&, const std::string& where)> set;
  std::function<OptionValue(const Recipe&)> get;
};

// All rows, in the order of docs/recipe.md.
const std::vector<OptionRow>& option_table();
// The rows of each component.
std::vector<OptionRow> run_rows();
std::vector<OptionRow> data_rows();
std::vector<OptionRow> augment_rows();
std::vector<OptionRow> model_rows();
std::vector<OptionRow> step_rows();
std::vector<OptionRow> watch_rows();
std::vector<OptionRow> distributed_rows();
std::vector<OptionRow> debug_rows();
std::vector<OptionRow> concatenated(std::initializer_list<std::vector<OptionRow>> parts);

// A key of earlier versions: `row` stores what it meant, and `now` is the key that replaced it.
struct RetiredRow {
  OptionRow row;
  std::string now;
};
const std::vector<RetiredRow>& retired_rows();

// Checks that span several keys; fails with kUsage.
void validate_recipe(const Recipe& recipe, const std::string& where);
// The checks of [model], [optimizer], [data], [augment], [schedule] and [distributed].
void validate_model(const ModelOptions& model, const std::string& where);
void validate_optimizer(const OptimizerOptions& optimizer, const std::string& where);
void validate_data(const DataOptions& data, const std::string& where);
void validate_augment(const AugmentOptions& augment, const std::string& where);
void validate_schedule(const Recipe& recipe, const std::string& where);
void validate_distributed(const Recipe& recipe, const std::string& where);

// ---- Building rows -----------------------------------------------------------------------------

// Expands to a key and the accessor of the member of the same name.
#define SATURATE_OPTION(member)                      \
#member, [](const Recipe& recipe) -> const auto& { \
    return recipe.member;                            \
  }

// For a member whose name differs from the key.
#define SATURATE_OPTION_AS(key, member)          \
  key, [](const Recipe& recipe) -> const auto& { \
    return recipe.member;                        \
  }

struct Range {
  double low, high;
  bool low_excluded = false, high_excluded = false;
  std::string text() const {
    const std::string from = fmt::format("{}{}", low_excluded ? "above " : "", low);
    return std::isinf(high) ? (low_excluded ? from : "at least " + from)
                            : fmt::format("{} to {}{}", from, high_excluded ? "below " : "", high);
  }
  // Values are finite: 0 stands for no limit where a key has one.
  bool contains(double value) const {
    return std::isfinite(value) && (low_excluded ? value > low : value >= low) &&
           (high_excluded ? value < high : value <= high);
  }
};

// Maximum for factors on weights or gradients, which are floats.
constexpr double kMostFactor = 1e30;

[[noreturn]] inline void fail_option(const std::string& key, const std::string& problem,
                                     const std::string& remedy, const std::string& where) {
  fail(ErrorKind::kUsage, key + " " + problem, where, remedy);
}

// The type of an accessor's member.
template <class Access>
using Member = std::remove_cvref_t<std::invoke_result_t<Access, const Recipe&>>;

// Accessors are written for const recipes; setters store through the same member.
template <class Access>
auto& mutable_member(Access access, Recipe& recipe) {
  return const_cast<Member<Access>&>(access(recipe));
}

template <class Access>
OptionRow integer(std::string key, Access access, Range range, std::string unit, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const int64_t* number = std::get_if<int64_t>(&value);
    if (!number) fail_option(key, "must be an integer", "Give " + range.text(), where);
    if (!range.contains(double(*number)))
      fail_option(key, fmt::format("is out of range: {}", *number), "Give " + range.text(), where);
    mutable_member(access, recipe) = Member<Access>(*number);
  };
  auto get = [=](const Recipe& recipe) { return OptionValue(int64_t(access(recipe))); };
  return {key, "integer", std::move(unit), range.text(), std::move(doc), false, set, get};
}

// An integer, or "auto", which is stored as kAutomatic.
template <class Access>
OptionRow integer_or_auto(std::string key, Access access, Range range, std::string unit,
                          std::string doc) {
  OptionRow row = integer(key, access, range, std::move(unit), std::move(doc));
  row.type = "integer|auto";
  row.set = [=, set = row.set](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const std::string* text = std::get_if<std::string>(&value);
    if (text && *text != "auto")
      fail_option(key, "must be an integer or \"auto\"", "Give auto, or " + range.text(), where);
    if (text)
      mutable_member(access, recipe) = kAutomatic;
    else
      set(recipe, value, where);
  };
  row.get = [=, get = row.get](const Recipe& recipe) {
    return access(recipe) == kAutomatic ? OptionValue(std::string("auto")) : get(recipe);
  };
  return row;
}

template <class Access>
OptionRow number(std::string key, Access access, Range range, std::string unit, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const int64_t* whole = std::get_if<int64_t>(&value);
    const double* real = std::get_if<double>(&value);
    if (!whole && !real) fail_option(key, "must be a number", "Give " + range.text(), where);
    const double given = whole ? double(*whole) : *real;
    if (!range.contains(given))
      fail_option(key, fmt::format("is out of range: {}", given), "Give " + range.text(), where);
    mutable_member(access, recipe) = given;
  };
  auto get = [=](const Recipe& recipe) { return OptionValue(access(recipe)); };
  return {key, "number", std::move(unit), range.text(), std::move(doc), false, set, get};
}

template <class Access>
OptionRow flag(std::string key, Access access, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const bool* given = std::get_if<bool>(&value);
    if (!given) fail_option(key, "must be true or false", "Give true or false", where);
    mutable_member(access, recipe) = *given;
  };
  auto get = [=](const Recipe& recipe) { return OptionValue(access(recipe)); };
  return {key, "true|false", "", "", std::move(doc), false, set, get};
}

// True, false, or "auto".
template <class Access>
OptionRow toggle(std::string key, Access access, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const bool* given = std::get_if<bool>(&value);
    const std::string* word = std::get_if<std::string>(&value);
    if (!given && !(word && *word == "auto"))
      fail_option(key, "must be true, false or \"auto\"", "Give true, false or auto", where);
    mutable_member(access, recipe) = !given ? Toggle::kAuto : *given ? Toggle::kOn : Toggle::kOff;
  };
  auto get = [=](const Recipe& recipe) {
    const Toggle value = access(recipe);
    return value == Toggle::kAuto ? OptionValue(std::string("auto"))
                                  : OptionValue(value == Toggle::kOn);
  };
  return {key, "true|false|auto", "", "", std::move(doc), false, set, get};
}

template <class Access>
OptionRow text(std::string key, Access access, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const std::string* given = std::get_if<std::string>(&value);
    if (!given) fail_option(key, "must be text", "Put it in quotes", where);
    mutable_member(access, recipe) = *given;
  };
  auto get = [=](const Recipe& recipe) { return OptionValue(access(recipe)); };
  return {key, "text", "", "", std::move(doc), true, set, get};
}

// The words of a key, and the value that each one stores.
template <class Access>
using Choices = std::vector<std::pair<std::string, Member<Access>>>;

template <class Access>
OptionRow choice(std::string key, Access access, Choices<Access> choices, std::string doc) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) names.push_back(name);
  const std::string type = fmt::format("{}", fmt::join(names, "|"));
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const std::string* given = std::get_if<std::string>(&value);
    if (!given) fail_option(key, "must be one of " + type, "Put it in quotes", where);
    for (const auto& [name, meaning] : choices)
      if (name == *given) {
        mutable_member(access, recipe) = meaning;
        return;
      }
    fail_option(key, "has no value \"" + *given + "\"", suggest(*given, names), where);
  };
  auto get = [=](const Recipe& recipe) {
    for (const auto& [name, meaning] : choices)
      if (meaning == access(recipe)) return OptionValue(name);
    if constexpr (std::is_same_v<Member<Access>, std::string>) return OptionValue(access(recipe));
    return OptionValue(std::string());
  };
  return {key, type, "", "", std::move(doc), true, set, get};
}

// The same, for an enum of kAuto, kCpu and kCuda.
template <class Access>
OptionRow device_choice(std::string key, Access access, std::string doc) {
  using Device = Member<Access>;
  return choice(
      std::move(key), access,
      Choices<Access>{{"auto", Device::kAuto}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
      std::move(doc));
}

template <class Access>
OptionRow numbers(std::string key, Access access, size_t count, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const auto* given = std::get_if<std::vector<double>>(&value);
    const auto is_finite = [](double number) { return std::isfinite(number); };
    if (!given || given->size() != count || !std::ranges::all_of(*given, is_finite))
      fail_option(key, fmt::format("must be a list of {} numbers", count), "Write it as [a, b, c]",
                  where);
    mutable_member(access, recipe) = *given;
  };
  auto get = [=](const Recipe& recipe) { return OptionValue(access(recipe)); };
  return {key, "list of numbers", "", fmt::format("{} numbers", count), std::move(doc), false, set,
          get};
}

// A list of any length, its elements within `range`.
template <class Access>
OptionRow number_list(std::string key, Access access, Range range, std::string unit,
                      std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const auto* given = std::get_if<std::vector<double>>(&value);
    if (!given) fail_option(key, "must be a list of numbers", "Write it as [a, b]", where);
    for (double number : *given)
      if (!range.contains(number))
        fail_option(key, fmt::format("is out of range: {}", number), "Give " + range.text(), where);
    mutable_member(access, recipe) = *given;
  };
  auto get = [=](const Recipe& recipe) { return OptionValue(access(recipe)); };
  return {
      key, "list of numbers", std::move(unit), "each " + range.text(), std::move(doc), false, set,
      get};
}

// An empty list has no element type, and is parsed as a list of numbers.
template <class Access>
OptionRow text_list(std::string key, Access access, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const auto* given = std::get_if<std::vector<std::string>>(&value);
    const auto* numbers = std::get_if<std::vector<double>>(&value);
    if (!given && !(numbers && numbers->empty()))
      fail_option(key, "must be a list of text", "Write it as [\"a\", \"b\"]", where);
    mutable_member(access, recipe) = given ? *given : std::vector<std::string>();
  };
  auto get = [=](const Recipe& recipe) { return OptionValue(access(recipe)); };
  return {key, "list of text", "", "", std::move(doc), false, set, get};
}

}  // namespace saturate
