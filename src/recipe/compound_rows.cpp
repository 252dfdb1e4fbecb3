#include "recipe/compound_rows.h"

#include <cctype>
#include <optional>

#include "base/text.h"

namespace saturate {
namespace {

std::string names_of(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& each : parts) text += (text.empty() ? "" : ", ") + each.name;
  return text;
}

// "2 numbers, each 0 to 1", or the range of each part; those after the first `least` are optional.
std::string text_of_ranges(const std::vector<Part>& parts, size_t least) {
  const auto same = [&](const Part& each) {
    return each.range.text() == parts.front().range.text();
  };
  if (std::ranges::all_of(parts, same))
    return fmt::format("{}{} numbers, each {}",
                       least < parts.size() ? fmt::format("{} to ", least) : "", parts.size(),
                       parts.front().range.text());
  std::string text;
  for (const Part& each : parts)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", each.name, each.range.text());
  return text;
}

// The numbers of a list, or a number alone.
std::vector<double> given_numbers(const OptionValue& value) {
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return *list;
  if (const auto* whole = std::get_if<int64_t>(&value)) return {double(*whole)};
  if (const auto* real = std::get_if<double>(&value)) return {*real};
  return {};
}

// The texts of a list, or a text alone. An empty list is parsed as one of numbers, and an override
// with brackets that is not TOML as a text.
std::optional<std::vector<std::string>> given_texts(const OptionValue& value) {
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return *list;
  if (const auto* text = std::get_if<std::string>(&value); text && !text->starts_with('['))
    return std::vector{*text};
  const auto* numbers = std::get_if<std::vector<double>>(&value);
  if (numbers && numbers->empty()) return std::vector<std::string>();
  return std::nullopt;
}

[[noreturn]] void fail_twice(const std::string& key, const std::string& name,
                             const std::string& where) {
  fail_option(key, "has " + name + " twice", "Give it once", where);
}

std::vector<double> values_of(const Recipe& recipe, const std::vector<Part>& parts) {
  std::vector<double> values;
  values.reserve(parts.size());
  for (const Part& each : parts) values.push_back(each.get(recipe));
  return values;
}

// "500 steps" and "1 step" have the unit "steps".
void set_interval(Recipe& recipe, const std::vector<Part>& parts, const std::string& text,
                  const std::string& key, const std::string& where) {
  const auto space = text.find(' ');
  const auto number = parsed_number<double>(text.substr(0, space));
  const std::string unit = space == std::string::npos ? parts[0].name : text.substr(space + 1);
  for (const Part& each : parts)
    if (number && (unit == each.name || unit + "s" == each.name))
      return each.set(recipe, *number, key, where);
  fail_option(key, "has no value \"" + text + "\"",
              "Give a number and a unit, such as \"5 " + parts[1].name +
                  "\"; the units are: " + names_of(parts),
              where);
}

std::string interval_text(const Part& part, double number) {
  const std::string unit = number == 1 ? part.name.substr(0, part.name.size() - 1) : part.name;
  return part.is_whole ? fmt::format("{} {}", int64_t(number), unit)
                       : fmt::format("{} {}", number, unit);
}

}  // namespace

void Part::set(Recipe& recipe, double number, const std::string& key,
               const std::string& where) const {
  const std::string remedy = fmt::format("Give {} for {}", range.text(), name);
  if (!range.contains(number))
    fail_option(key, fmt::format("is out of range: {}", number), remedy, where);
  if (is_whole && number != std::floor(number))
    fail_option(key, fmt::format("has {}, which is not an integer", number), remedy, where);
  store(recipe, number);
}

OptionRow part_list(std::string key, std::vector<Part> parts, size_t least, std::string unit,
                    std::string doc) {
  const std::string range = text_of_ranges(parts, least);
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const std::vector<double> given = given_numbers(value);
    if (given.size() < least || given.size() > parts.size())
      fail_option(key,
                  least == parts.size()
                      ? fmt::format("must be a list of {} numbers", least)
                      : fmt::format("must be {} to {} numbers", least, parts.size()),
                  "Write it as [" + names_of(parts) + "]", where);
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i].set(recipe, i < given.size() ? given[i] : parts[i].default_value(), key, where);
  };
  auto get = [=](const Recipe& recipe) {
    std::vector<double> numbers = values_of(recipe, parts);
    while (numbers.size() > least && numbers.back() == parts[numbers.size() - 1].default_value())
      numbers.pop_back();
    if (numbers.size() > 1) return OptionValue(numbers);
    return parts[0].is_whole ? OptionValue(int64_t(numbers[0])) : OptionValue(numbers[0]);
  };
  const std::string alone = parts[0].is_whole ? "integer|" : "number|";
  const std::string type = (least == 1 ? alone : "") + "list of numbers";
  return {key, type, std::move(unit), range, std::move(doc), false, set, get};
}

OptionRow low_and_high(std::string key, Part low, Part high, std::string unit, std::string doc) {
  OptionRow row = part_list(std::move(key), {low, high}, 2, std::move(unit), std::move(doc));
  row.set = [=, key = row.key, set = row.set](Recipe& recipe, const OptionValue& value,
                                              const std::string& where) {
    set(recipe, value, where);
    if (low.get(recipe) > high.get(recipe))
      fail_option(key, fmt::format("has {0} above {1}", low.name, high.name),
                  fmt::format("Write it as [{}, {}]", high.get(recipe), low.get(recipe)), where);
  };
  return row;
}

OptionRow intervals(std::string key, std::vector<Part> parts, std::string doc) {
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const auto texts = given_texts(value);
    const auto numbers = given_numbers(value);
    if (!texts && numbers.size() != 1)
      fail_option(key, "must be an integer, a text or a list of texts",
                  "Write it as 2, \"500 steps\" or [\"1 epoch\", \"500 steps\"]", where);
    for (const Part& each : parts) each.store(recipe, 0);
    if (!texts) return parts[0].set(recipe, numbers[0], key, where);
    for (const std::string& text : *texts) {
      const std::vector<double> before = values_of(recipe, parts);
      set_interval(recipe, parts, text, key, where);
      for (size_t i = 0; i < parts.size(); ++i)
        if (before[i] != 0 && before[i] != parts[i].get(recipe))
          fail_twice(key, parts[i].name, where);
    }
  };
  auto get = [=](const Recipe& recipe) {
    std::vector<std::string> texts;
    for (const Part& each : parts)
      if (const double number = each.get(recipe); number > 0)
        texts.push_back(interval_text(each, number));
    const double first = parts[0].get(recipe);
    if (texts.empty() || (texts.size() == 1 && first > 0)) return OptionValue(int64_t(first));
    return texts.size() == 1 ? OptionValue(texts[0]) : OptionValue(texts);
  };
  const std::string range = text_of_ranges(parts, parts.size());
  return {key, "integer|text|list of text", parts[0].name, range, std::move(doc), false, set, get};
}

bool Word::describes(const Recipe& recipe) const {
  if (is_set.empty()) return parts[0].get(recipe) != parts[0].default_value();
  return std::ranges::all_of(is_set, [&](const auto& is) { return is(recipe); });
}

void Word::set(Recipe& recipe, const std::string& text, const std::string& key,
               const std::string& where) const {
  std::vector<std::string> numbers;
  if (text.size() > name.size()) numbers = split_text(text.substr(name.size() + 1), ':');
  if (numbers.size() > parts.size())
    fail_option(key, "has no value \"" + text + "\"", "Write it as " + form(), where);
  for (const auto& each : choose) each(recipe);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto given =
        i < numbers.size() ? parsed_number<double>(numbers[i]) : parts[i].default_value();
    if (!given || (i >= numbers.size() && !parts[i].range.contains(*given)))
      fail_option(key, "has no number in \"" + text + "\"", "Write it as " + form(), where);
    parts[i].set(recipe, *given, key, where);
  }
}

std::string Word::text(const Recipe& recipe) const {
  std::string all = name;
  for (const Part& each : parts) all += fmt::format(":{}", each.get(recipe));
  return all;
}

std::string Word::form() const {
  std::string numbers;
  for (const Part& each : parts) {
    numbers += ':';
    for (const char c : each.name) numbers += char(std::toupper(c));
  }
  if (numbers.empty()) return name;
  const bool has_default = parts[0].range.contains(parts[0].default_value());
  return name + (has_default ? "[" + numbers + "]" : numbers);
}

const Word& find_word(const std::vector<Word>& words, const std::string& text,
                      const std::string& key, const std::string& where) {
  const Word* found = nullptr;  // the longest, as "ram:decoded" begins like "ram"
  std::vector<std::string> names;
  for (const Word& word : words) {
    names.push_back(word.name);
    if ((text == word.name || text.starts_with(word.name + ":")) &&
        (!found || word.name.size() > found->name.size()))
      found = &word;
  }
  if (!found) fail_option(key, "has no value \"" + text + "\"", suggest(text, names), where);
  return *found;
}

OptionRow one_word(std::string key, std::vector<Word> words, std::string doc) {
  std::string type;
  for (const Word& word : words) {
    if (!type.empty()) type += '|';
    type += word.form();
  }
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const std::string* given = std::get_if<std::string>(&value);
    if (!given) fail_option(key, "must be one of " + type, "Put it in quotes", where);
    find_word(words, *given, key, where).set(recipe, *given, key, where);
  };
  auto get = [=](const Recipe& recipe) {
    for (const Word& word : words)
      if (word.describes(recipe)) return OptionValue(word.text(recipe));
    return OptionValue(std::string());
  };
  return {key, type, "", "", std::move(doc), true, set, get};
}

OptionRow word_list(std::string key, std::vector<Word> words, std::string doc) {
  std::string range;
  for (const Word& word : words) {
    range += (range.empty() ? "" : ", ") + word.form();
    doc += (word.name == words[0].name ? " " : "; ") + word.name + ": " + word.doc;
  }
  doc += ".";
  auto set = [=](Recipe& recipe, const OptionValue& value, const std::string& where) {
    const auto texts = given_texts(value);
    if (!texts)
      fail_option(key, "must be a list of text", "Write it as [\"" + words[0].name + "\"]", where);
    for (const Word& word : words) {
      for (const auto& each : word.clear) each(recipe);
      for (const Part& each : word.parts) each.store(recipe, each.default_value());
    }
    std::vector<const Word*> seen;
    for (const std::string& text : *texts) {
      const Word& word = find_word(words, text, key, where);
      if (std::ranges::find(seen, &word) != seen.end()) fail_twice(key, word.name, where);
      seen.push_back(&word);
      word.set(recipe, text, key, where);
    }
  };
  auto get = [=](const Recipe& recipe) {
    std::vector<std::string> texts;
    for (const Word& word : words)
      if (word.describes(recipe)) texts.push_back(word.text(recipe));
    return OptionValue(texts);
  };
  return {key, "list of text", "", range, std::move(doc), false, set, get};
}

}  // namespace saturate
