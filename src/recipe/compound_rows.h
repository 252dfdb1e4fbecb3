// Builders of rows whose value sets several members: lists, and words such as "block:128".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "recipe/option_row.h"

namespace saturate {

// An accessor of a member.
#define SATURATE_MEMBER(member)             \
  [](const Recipe& recipe) -> const auto& { \
    return recipe.member;                   \
  }

// One number of a value.
struct Part {
  std::string name;  // as the documents call it
  Range range;
  bool is_whole;
  std::function<double(const Recipe&)> get;
  std::function<void(Recipe&, double)> store;

  double default_value() const { return get(Recipe()); }
  // Stores a number, or fails with kUsage naming `key`.
  void set(Recipe& recipe, double number, const std::string& key, const std::string& where) const;
};

template <class Access>
Part part(std::string name, Access access, Range range) {
  using T = Member<Access>;
  return {std::move(name), range, std::is_integral_v<T>,
          [=](const Recipe& recipe) { return double(access(recipe)); },
          [=](Recipe& recipe, double number) { mutable_member(access, recipe) = T(number); }};
}

// A list with a number for each part. Those after the first `least` are optional, and have their
// defaults if they are absent; the first alone needs no list.
OptionRow part_list(std::string key, std::vector<Part> parts, size_t least, std::string unit,
                    std::string doc);
// [low, high], in this order.
OptionRow low_and_high(std::string key, Part low, Part high, std::string unit, std::string doc);

// Times between two events: a number of the first part's unit, "N UNIT" with a part's name as the
// unit, or a list of such texts. 0, or an empty list: never.
OptionRow intervals(std::string key, std::vector<Part> parts, std::string doc);

// A word of a value, and the members that it sets; numbers may follow it: "rand:2:9".
struct Word {
  explicit Word(std::string word) : name(std::move(word)) {}
  template <class Access, class T>
  Word sets(Access access, T value) && {
    const T otherwise(access(Recipe()));
    is_set.push_back([=](const Recipe& recipe) { return access(recipe) == value; });
    choose.push_back([=](Recipe& recipe) { mutable_member(access, recipe) = value; });
    clear.push_back([=](Recipe& recipe) { mutable_member(access, recipe) = otherwise; });
    return std::move(*this);
  }
  template <class Access>
  Word takes(std::string part_name, Access access, Range range) && {
    parts.push_back(part(std::move(part_name), access, range));
    return std::move(*this);
  }
  Word means(std::string text) && {
    doc = std::move(text);
    return std::move(*this);
  }

  // Whether all members have the word's values; without any, whether the first number differs from
  // its default.
  bool describes(const Recipe& recipe) const;
  // Stores the values of "NAME:NUMBER:NUMBER"; absent numbers have their defaults.
  void set(Recipe& recipe, const std::string& text, const std::string& key,
           const std::string& where) const;
  std::string text(const Recipe& recipe) const;
  std::string form() const;  // "rand[:OPERATIONS:MAGNITUDE]"

  std::string name, doc;
  std::vector<Part> parts;
  std::vector<std::function<bool(const Recipe&)>> is_set;
  std::vector<std::function<void(Recipe&)>> choose, clear;  // clear: to the default
};

// The word that `text` begins with, or fails with kUsage naming the nearest.
const Word& find_word(const std::vector<Word>& words, const std::string& text,
                      const std::string& key, const std::string& where);
// One of some words.
OptionRow one_word(std::string key, std::vector<Word> words, std::string doc);
// A list of some of the words. Their meanings follow `doc`.
OptionRow word_list(std::string key, std::vector<Word> words, std::string doc);

}  // namespace saturate
