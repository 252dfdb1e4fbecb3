// saturate list: all names for recipes. saturate env: versions and hardware.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "app/command.h"
#include "base/files.h"
#include "saturate/data/dataset.h"
#include "saturate/data/recipe.h"
#include "saturate/model.h"
#include "saturate/optimizer.h"
#include "saturate/schedule.h"
#include "trace/host.h"

namespace saturate {
namespace {

template <class Table>
void print_table(const char* title, const Table& table) {
  fmt::print("{}\n", title);
  for (const auto& entry : table) fmt::print("  {:<16}{}\n", entry.name, entry.doc);
}

void print_options() {
  fmt::print("options of a recipe\n");
  for (const auto& option : recipe_options()) {
    std::string facts = option.type + ", default " + option.default_value;
    if (!option.range.empty()) facts += ", " + option.range;
    if (!option.unit.empty()) facts += " (" + option.unit + ")";
    fmt::print("  {}\n      {}\n      {}\n", option.key, facts, option.doc);
  }
}

// Each with the sentence that its file begins with.
void print_shipped(const char* folder) {
  fmt::print("{}\n", folder);
  for (const std::string& path : shipped_files(Env::posix(), folder)) {
    std::string text;
    std::istringstream lines(text_of_file(Env::posix(), path));
    for (std::string line; std::getline(lines, line) && line.starts_with("# ");)
      text += line.substr(1);
    const size_t end = std::min(text.find(". "), text.find_last_not_of(". ") + 1);
    const std::string name = std::filesystem::path(path).stem();
    fmt::print("  {:<16}{}\n", name, end > 0 ? text.substr(1, end - 1) : "");
  }
}

struct ListArguments {
  std::string what = "all";
  bool markdown = false;
};

int list(const ListArguments& arguments) {
  const std::string& what = arguments.what;
  if (arguments.markdown) {
    fmt::print("{}", recipe_markdown());
    return 0;
  }
  const bool all = what == "all";
  if (all || what == "sources") print_table("sources (data.source)", dataset_sources());
  if (all || what == "models") print_table("models (model.name)", models());
  if (all || what == "optimizers") print_table("optimizers (optimizer.name)", optimizers());
  if (all || what == "schedules") print_table("schedules (schedule.name)", schedules());
  if (all || what == "recipes") {
    print_shipped("recipes");
    print_shipped("ladders");
  }
  if (what == "options") print_options();
  if (all) fmt::print("`saturate list options` prints every key of a recipe\n");
  return 0;
}

}  // namespace

void add_list(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<ListArguments>(
      app, exit_code, "list", "Print everything a recipe can name", list);
  command
      .add_option("WHAT", arguments.what,
                  "all, sources, models, optimizers, schedules, recipes or options")
      ->check(CLI::IsMember(
          {"all", "sources", "models", "optimizers", "schedules", "recipes", "options"}));
  command.add_flag("--markdown", arguments.markdown, "The options as docs/recipe.md has them");
}

void add_env(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("env", "Print versions and hardware, for a bug report");
  command->callback([&exit_code] {
    for (const auto& [name, value] : host_facts()) fmt::print("{:<14}{}\n", name, value);
    exit_code = 0;
  });
}

}  // namespace saturate
