// saturate completion: shell completions and the man page, from the tables of options.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "app/command.h"

namespace saturate {
namespace {

// Calls `visit` for the program and each command that its help shows, with its words ("data pack").
void for_each_command(const CLI::App& app, const std::string& path,
                      const std::function<void(const CLI::App&, const std::string&)>& visit) {
  visit(app, path);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty())
      for_each_command(
          *command, path.empty() ? command->get_name() : path + " " + command->get_name(), visit);
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

// The long names of options with their dashes, or the placeholder of a positional argument.
std::string name_of(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  return names.empty() ? option.get_name() : "--" + names.front();
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// The values that an option accepts, separated by spaces; "" if they are not a list. The type's
// name ends with them: "TEXT:{bash,zsh}".
std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  if (begin == std::string::npos || !type.ends_with('}')) return "";
  std::string values = type.substr(begin + 1, type.size() - begin - 2);
  std::ranges::replace(values, ',', ' ');
  return values;
}

std::string recipe_keys() {
  std::string keys;
  for (const OptionInfo& option : recipe_options()) keys += option.key + "= ";
  return keys;
}

bool is_setting(const CLI::Option& option) {
  return name_of(option) == "--set" || name_of(option) == "--over";
}

std::string bash_script(const CLI::App& app) {
  std::string paths, values, words;
  for_each_command(app, "", [&](const CLI::App& command, const std::string& path) {
    if (!path.empty()) paths += fmt::format("{}\"{}\"", paths.empty() ? "" : " | ", path);
    std::string list;
    for (const CLI::App* below : commands_of(command)) list += below->get_name() + " ";
    for (const CLI::Option* option : command.get_options()) {
      const std::string choices = choices_of(*option);
      if (option->get_positional()) {
        list += choices.empty() ? "" : choices + " ";
        continue;
      }
      list += name_of(*option) + " ";
      // The program's own options may stand after every command.
      const std::string pattern =
          fmt::format("{}\"{} {}\"", path.empty() ? "*" : "", path, name_of(*option));
      if (is_setting(*option))
        values += fmt::format("    {}) words=$keys; compopt -o nospace ;;\n", pattern);
      else if (takes_value(*option))
        values += fmt::format("    {}) words='{}' ;;\n", pattern, choices);
    }
    words += fmt::format("    \"{}\") words='{}' ;;\n", path, list);
  });
  return fmt::format(R"(_saturate() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} path= word words=
  local keys='{}'
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    case "${{path:+$path }}$word" in
      {}) path="${{path:+$path }}$word" ;;
    esac
  done
  case "$path" in
{}  esac
  case "$path $previous" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _saturate saturate
)",
                     recipe_keys(), paths, words, values);
}

// As a file in fpath, which the first completion reads, or by source. zsh has no compopt.
std::string zsh_script(const CLI::App& app) {
  return "autoload -U +X bashcompinit && bashcompinit\n"
         "(( $+functions[compopt] )) || compopt() {}\n" +
         bash_script(app) + "(( ! $+compstate )) || _bash_complete -o default -F _saturate\n";
}

std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text)
    quoted += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "'";
}

std::string fish_script(const CLI::App& app) {
  std::string text = "complete -c saturate -n __fish_use_subcommand -f\n";
  for_each_command(app, "", [&](const CLI::App& command, const std::string& path) {
    std::string where =
        path.empty() ? "__fish_use_subcommand" : "__fish_seen_subcommand_from " + path;
    if (const size_t space = path.find(' '); space != std::string::npos)
      where = "__fish_seen_subcommand_from " + path.substr(0, space) +
              "; and __fish_seen_subcommand_from " + path.substr(space + 1);
    const std::string start = "complete -c saturate -n " + fish_quoted(where);
    for (const CLI::App* below : commands_of(command))
      text += fmt::format("{} -f -a {} -d {}\n", start, below->get_name(),
                          fish_quoted(below->get_description()));
    for (const CLI::Option* option : command.get_options()) {
      const std::string values = is_setting(*option) ? recipe_keys() : choices_of(*option);
      const std::string given = values.empty() ? "" : " -f -a " + fish_quoted(values);
      if (option->get_positional())
        text += values.empty() ? "" : start + given + "\n";
      else
        text += fmt::format("{} -l {}{}{} -d {}\n", start, name_of(*option).substr(2),
                            takes_value(*option) ? " -r" : "", given,
                            fish_quoted(option->get_description()));
    }
  });
  return text;
}

// Text for roff: hyphens that can be copied, and no line that begins with a control character.
std::string roff(const std::string& text) {
  std::string safe;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c == '.' || c == '\'') && (i == 0 || text[i - 1] == '\n')) safe += "\\&";
    safe += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return safe;
}

std::string man_page(const CLI::App& app) {
  std::string text =
      fmt::format(".TH SATURATE 1 \"\" \"saturate " SATURATE_VERSION
                  "\"\n.SH NAME\nsaturate \\- {}\n"
                  ".SH SYNOPSIS\n.B saturate\n.I COMMAND\n[\\fIOPTIONS\\fR]\n.SH COMMANDS\n",
                  roff(app.get_description()));
  for_each_command(app, "", [&](const CLI::App& command, const std::string& path) {
    std::string usage = "saturate" + (path.empty() ? "" : " " + path);
    for (const CLI::Option* option : command.get_options())
      if (option->get_positional())
        usage += option->get_required() ? " " + name_of(*option) : " [" + name_of(*option) + "]";
    if (!path.empty())
      text += fmt::format(".SS {}\n{}.\n", roff(usage), roff(command.get_description()));
    for (const CLI::Option* option : command.get_options())
      text += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(name_of(*option)),
                          !option->get_positional() && takes_value(*option)
                              ? " \\fI" + roff(option->get_type_name()) + "\\fR"
                              : "",
                          roff(option->get_description()));
  });
  return text + ".SH EXIT STATUS\n" + roff(app.get_footer()) +
         "\n.SH SEE ALSO\n.B saturate list options\nprints every key of a recipe.\n";
}

}  // namespace

void add_completion(CLI::App& app, int& exit_code) {
  const auto what = std::make_shared<std::string>();
  CLI::App* const command =
      app.add_subcommand("completion", "Print the completions for a shell, or the man page");
  command->add_option("WHAT", *what, "bash, zsh, fish or man")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "man"}));
  command->callback([&app, what, &exit_code] {
    exit_code = 0;
    if (*what == "man") fmt::print("{}", man_page(app));
    if (*what == "fish") fmt::print("{}", fish_script(app));
    if (*what == "bash") fmt::print("{}", bash_script(app));
    if (*what == "zsh") fmt::print("#compdef saturate\n{}", zsh_script(app));
  });
}

}  // namespace saturate
