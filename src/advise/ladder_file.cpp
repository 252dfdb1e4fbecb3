// Ladders from a file, which docs/ladder.md describes, and from a grid of settings.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <utility>

#include "advise/ladder.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/text.h"
#include "recipe/toml_text.h"
#include "saturate/data/registry.h"

namespace saturate {
namespace {

constexpr int kMostProcesses = 4096;  // that `launch` starts

[[noreturn]] void refuse(const std::string& problem, const std::string& where,
                         const std::string& remedy) {
  fail(ErrorKind::kUsage, problem, where, remedy);
}

// A table of the file. Every field is taken by name; the others are unknown.
class Section {
 public:
  // `name`: "rung \"cached\"", for messages; empty at the top.
  Section(const toml::table& table, const std::string& file, std::string name = "")
      : table_(table), file_(file), name_(std::move(name)) {}

  // "FILE:LINE" of a field if it is there, else of the table; then the section's name.
  std::string where(std::string_view field = "") const {
    const toml::node* node = field.empty() ? nullptr : table_.get(field);
    const auto line = (node ? node->source() : table_.source()).begin.line;
    return fmt::format("{}:{}{}", file_, line, name_.empty() ? "" : ", " + name_);
  }
  void rename(std::string name) { name_ = std::move(name); }

  std::string text(std::string_view field) {
    const toml::node* node = take(field);
    if (!node) return "";
    const auto value = node->value_exact<std::string>();
    if (!value || value->empty())
      refuse(fmt::format("{} must be text", field), where(field), "Put it in quotes");
    return *value;
  }
  std::string required_text(std::string_view field, const std::string& example) {
    const std::string value = text(field);
    if (value.empty())
      refuse(fmt::format("{} is missing", field), where(),
             fmt::format("Add it, such as {} = \"{}\"", field, example));
    return value;
  }
  int number(std::string_view field, int otherwise) {
    const toml::node* node = take(field);
    if (!node) return otherwise;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < 1 || *value > kMostProcesses)
      refuse(fmt::format("{} must be a number from 1 to {}", field, kMostProcesses), where(field),
             fmt::format("Write for example {} = 2", field));
    return int(*value);
  }
  // A list of text; a single one may stand without brackets.
  std::vector<std::string> texts(std::string_view field) {
    const toml::node* node = take(field);
    if (!node) return {};
    if (const auto single = node->value_exact<std::string>()) return {*single};
    std::vector<std::string> values;
    const toml::array* list = node->as_array();
    for (size_t i = 0; list && i < list->size(); ++i)
      if (const auto value = list->get(i)->value_exact<std::string>()) values.push_back(*value);
    if (!list || values.size() != list->size())
      refuse(fmt::format("{} must be a list of text", field), where(field),
             fmt::format("Write it as {} = [\"...\", \"...\"]", field));
    return values;
  }
  // The tables of [[field]].
  std::vector<Section> sections(std::string_view field) {
    const toml::node* node = take(field);
    std::vector<Section> found;
    if (!node) return found;
    const toml::array* list = node->as_array();
    for (size_t i = 0; list && i < list->size(); ++i)
      if (const auto* table = list->get(i)->as_table())
        found.emplace_back(*table, file_, fmt::format("{} {}", field, i + 1));
    if (!list || found.size() != list->size())
      refuse(fmt::format("{} must be a list of tables", field), where(field),
             fmt::format("Begin each of them with [[{}]]", field));
    return found;
  }
  void end() const {
    for (const auto& [key, node] : table_)
      if (std::ranges::count(taken_, key.str()) == 0)
        refuse(fmt::format("unknown field {}", key.str()), where(key.str()),
               suggest(key.str(), taken_));
  }

 private:
  const toml::node* take(std::string_view field) {
    taken_.emplace_back(field);
    return table_.get(field);
  }

  const toml::table& table_;
  const std::string& file_;
  std::string name_;
  std::vector<std::string> taken_;
};

constexpr std::array<std::pair<std::string_view, int MachineFacts::*>, 4> kNeeds = {
    {{"cuda", &MachineFacts::cuda},
     {"cores", &MachineFacts::cores},
     {"processes", &MachineFacts::processes},
     {"nodes", &MachineFacts::nodes}}};

struct Need {
  std::string_view name;
  int least = 0;
  int MachineFacts::*fact = nullptr;  // null: unknown
};

// least = 0 if it is not a number.
Need split(std::string_view text) {
  Need need{text, 1, nullptr};
  if (const auto at = text.find(">="); at != std::string_view::npos) {
    need.name = text.substr(0, at);
    need.least = parsed_number<int>(text.substr(at + 2)).value_or(0);
  }
  for (const auto& [name, fact] : kNeeds)
    if (name == need.name) need.fact = fact;
  return need;
}

// The prefix of a requirement that this version cannot meet, in words.
constexpr std::string_view kFeature = "feature: ";

// "cuda", "cuda>=2" or "feature: WORDS"; fails on anything else.
void check_need(const std::string& text, const std::string& where) {
  if (text.starts_with(kFeature) && text.size() > kFeature.size()) return;
  const Need need = split(text);
  if (!need.fact) {
    std::vector<std::string> known;
    for (const auto& [name, fact] : kNeeds) known.emplace_back(name);
    refuse(fmt::format("needs has an unknown \"{}\"", need.name), where, suggest(need.name, known));
  }
  if (need.least < 1)
    refuse("needs has \"" + text + "\", which is not a number above 0", where,
           fmt::format("Write it as \"{0}\" or \"{0}>=2\"", need.name));
}

// For a requirement that is not a feature; empty if it is met.
std::string unmet(const std::string& text, const MachineFacts& machine) {
  const Need need = split(text);
  const int here = machine.*need.fact;
  return here >= need.least ? "" : fmt::format("{} (here {})", text, here);
}

LadderPack read_pack(Section& section) {
  LadderPack pack;
  pack.source = section.required_text("source", "synth:count=1000");
  pack.out = section.required_text("out", "lmdb:{scratch}/lmdb");
  pack.where = section.where("out");
  section.end();
  const auto known = {"folder:", "tar:", "shard:", "lmdb:"};
  if (std::ranges::none_of(known, [&](const char* scheme) { return pack.out.starts_with(scheme); }))
    refuse("out has no known scheme: " + pack.out, pack.where,
           "Write folder:, tar:, shard: or lmdb: before a path");
  return pack;
}

size_t find_rung(const std::vector<Rung>& rungs, const std::string& name, const Section& section) {
  std::vector<std::string> known = {"base"};
  for (size_t i = 0; i < rungs.size(); ++i) {
    if (rungs[i].name == name) return i;
    known.push_back(rungs[i].name);
  }
  refuse("from is not the name of a rung above: \"" + name + "\"", section.where("from"),
         suggest(name, known));
}

// `rungs`: those above.
Rung read_rung(Section& section, const std::vector<Rung>& rungs) {
  Rung rung;
  rung.name = section.required_text("name", "cached");
  section.rename(fmt::format("rung \"{}\"", rung.name));
  rung.where = section.where();
  if (rung.name == "base" || std::ranges::count(rungs, rung.name, &Rung::name) > 0)
    refuse("the name is used already", section.where("name"), "Give each rung a different name");
  const std::string from = section.text("from");
  if (rungs.empty() && !from.empty() && from != "base")
    refuse("the first rung builds on the recipe", section.where("from"), "Remove the key from");
  if (from != "base" && !rungs.empty()) {
    rung.previous = from.empty() ? rungs.size() - 1 : find_rung(rungs, from, section);
    rung.set = rungs[rung.previous].set;
    rung.needs = rungs[rung.previous].needs;
    rung.processes = rungs[rung.previous].processes;
  }
  rung.processes = section.number("processes", rung.processes);
  std::ranges::copy(section.texts("set"), std::back_inserter(rung.set));
  for (const auto& need : section.texts("needs")) {
    check_need(need, section.where("needs"));
    rung.needs.push_back(need);
  }
  rung.seed_figure = section.text("seed_figure");
  if (!rung.seed_figure.empty() && !parse_seed_figure(rung.seed_figure))
    refuse("seed_figure is not a number with a unit: " + rung.seed_figure,
           section.where("seed_figure"), "Write for example \"35.22 steps/s\" or \"88.0 s\"");
  section.end();
  return rung;
}

constexpr size_t kMostRungs = 256;

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

// At commas that are within neither quotes nor brackets.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;  // that the place is within
  for (const char c : text) {
    if (quote ? c == quote : c == '"' || c == '\'') quote = quote ? 0 : c;
    if (!quote) depth += (c == '[') - (c == ']');
    if (c == ',' && depth == 0 && !quote)
      values.emplace_back();
    else
      values.back() += c;
  }
  return values;
}

Axis parse_axis(const std::string& text) {
  const std::string where = "--over " + text;
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    refuse("nothing to sweep over", where, "Write it as section.key=a,b,c");
  Axis axis{text.substr(0, equals), split_values(text.substr(equals + 1))};
  for (const auto& value : axis.values)
    if (value.empty()) refuse("a value is missing", where, "Write it as section.key=a,b,c");
  return axis;
}

}  // namespace

Ladder parse_ladder(const std::string& text, const std::string& where, const std::string& folder) {
  const toml::table table = parse_toml(text, where);
  Section top(table, where);
  Ladder ladder;
  ladder.title = top.required_text("title", "Storage");
  const std::filesystem::path recipe = top.required_text("recipe", "../recipes/demo.toml");
  ladder.recipe = (std::filesystem::path(folder) / recipe).lexically_normal().string();
  ladder.set = top.texts("set");
  for (Section& section : top.sections("pack")) ladder.packs.push_back(read_pack(section));
  for (Section& section : top.sections("rung"))
    ladder.rungs.push_back(read_rung(section, ladder.rungs));
  top.end();
  if (ladder.rungs.empty()) refuse("there is no rung", where, "Add a [[rung]] with a name");
  return ladder;
}

Ladder load_ladder(Env& env, const std::string& given) {
  const std::string path = file_or_shipped(env, "ladders", given);
  std::string text;
  try {
    text = text_of_file(env, path);
  } catch (const Error& error) {
    refuse("the ladder cannot be read: " + error.reason(), path,
           "Check the path; `saturate list recipes` prints those that come with saturate");
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return parse_ladder(text, path, folder);
}

Ladder make_sweep(const std::string& recipe, std::span<const std::string> over) {
  Ladder ladder;
  ladder.recipe = recipe;
  ladder.rungs.resize(1);
  for (const auto& text : over) {
    const Axis axis = parse_axis(text);
    std::vector<Rung> grid;
    for (const Rung& rung : ladder.rungs)
      for (const auto& value : axis.values) {
        grid.push_back(rung);
        const std::string setting = axis.key + "=" + value;
        grid.back().set.push_back(setting);
        grid.back().name += (rung.name.empty() ? "" : " ") + without_queries(setting);
      }
    ladder.rungs = std::move(grid);
    ladder.title += (ladder.title.empty() ? "" : " x ") + axis.key;
    if (ladder.rungs.size() > kMostRungs)
      refuse(fmt::format("the grid has {} points", ladder.rungs.size()), "--over " + text,
             fmt::format("Keep to {}", kMostRungs));
  }
  if (over.empty())
    refuse("nothing to sweep over", "saturate sweep", "Add such as --over train.batch=32,64");
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    ladder.rungs[i].previous = i == 0 ? 0 : i - 1;
    ladder.rungs[i].where = "point " + ladder.rungs[i].name;
  }
  ladder.title += " of " + recipe;
  return ladder;
}

std::string unmet_needs(const Rung& rung, const MachineFacts& machine) {
  std::string needs, lacks;
  std::vector<std::string> all = rung.needs;
  const std::string own = fmt::format("processes>={}", rung.processes);
  if (rung.processes > 1 && std::ranges::count(all, own) == 0) all.push_back(own);
  for (const std::string& need : all)
    if (need.starts_with(kFeature))
      lacks += (lacks.empty() ? "" : ", ") + need.substr(kFeature.size());
    else if (const std::string why = unmet(need, machine); !why.empty())
      needs += (needs.empty() ? "needs " : ", ") + why;
  if (lacks.empty()) return needs;
  return needs + (needs.empty() ? "" : "; ") + "this version has no " + lacks;
}

std::optional<SeedFigure> parse_seed_figure(const std::string& text) {
  SeedFigure figure{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, figure.value);
  if (error != std::errc() || rest == end || *rest != ' ') return std::nullopt;
  figure.unit.assign(rest + 1, end);
  const auto units = {"steps/s", "images/s", "s", "ms"};
  if (std::ranges::count(units, figure.unit) == 0 || !std::isfinite(figure.value) ||
      figure.value <= 0)
    return std::nullopt;
  return figure;
}

std::optional<double> seed_gain(const std::string& before, const std::string& after) {
  const auto from = parse_seed_figure(before), to = parse_seed_figure(after);
  if (!from || !to || from->unit != to->unit) return std::nullopt;
  return to->is_rate() ? to->value / from->value : from->value / to->value;
}

}  // namespace saturate
