// SPDX-License-Identifier: BSD-3-Clause
// A registry is an explicit table of everything that a recipe can name, in the order that `saturate
// list` prints. There is no static registration.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/error.h"

namespace saturate {

struct NoTraits {};

// `Traits`: the entry's properties that other code uses; no code compares names.
template <class Factory, class Traits = NoTraits>
struct RegistryEntry {
  std::string_view name;
  std::string_view doc;  // one line, printed by `saturate list`
  Factory make;
  Traits traits = {};
};

// The known name nearest to `name` by edit distance, or "" if none is near.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

// "Did you mean "x"?" if a name is near, otherwise all names.
std::string suggest(std::string_view name, std::span<const std::string> known);

// The name that a recipe has for an object passed by the program (TrainerOptions). No table has it.
inline constexpr std::string_view kOwnObject = "own";

// Finds `name` or fails with kUsage, naming `where` (a recipe key) and the nearest entry.
template <class Factory, class Traits>
const RegistryEntry<Factory, Traits>& find_entry(
    std::span<const RegistryEntry<Factory, Traits>> table, std::string_view name,
    const std::string& where) {
  std::vector<std::string> known;
  for (const auto& entry : table) {
    if (entry.name == name) return entry;
    known.emplace_back(entry.name);
  }
  if (name == kOwnObject)
    fail(ErrorKind::kUsage, "it is an object of the program that trained", where,
         "Resume and evaluate in that program, which passes it again");
  fail(ErrorKind::kUsage, "unknown name \"" + std::string(name) + "\"", where,
       suggest(name, known));
}

}  // namespace saturate
