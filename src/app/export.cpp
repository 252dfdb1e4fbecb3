// saturate export: a checkpoint's model as a file for other programs.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "app/command.h"
#include "app/scratch_folder.h"
#include "base/files.h"
#include "base/printable.h"
#include "data/elements.h"
#include "model/export_model.h"
#include "run/checkpoint.h"
#include "run/setup.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/data/recipe.h"
#include "saturate/feed.h"
#include "saturate/safetensors.h"
#include "saturate/weights.h"

namespace saturate {
namespace {

struct ExportArguments {
  SavedModelArguments model;
  std::string format, out;
};

// On the CPU, in the default memory order.
std::unique_ptr<Model> load_model(Env& env, const Checkpoint& checkpoint, const Recipe& recipe,
                                  bool plain, const std::string& path) {
  auto model = make_model(recipe.model, model_input(env, recipe, checkpoint));
  load_into(*model, checkpoint.model, path);
  if (!checkpoint.average.empty() && !plain) load_average(*model, checkpoint.average, path);
  return model;
}

using Facts = std::map<std::string, std::string>;

// Additional data that readers of the weights need. "format" is expected by Python's libraries.
Facts metadata(const Checkpoint& checkpoint, const Recipe& recipe) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  Facts facts = {{"format", "pt"},
                 {"model", recipe.model.name},
                 {"classes", nlohmann::json(checkpoint.classes).dump(-1, ' ', false, replace)},
                 {"width", fmt::to_string(recipe.model.width)},
                 {"outputs", std::to_string(recipe.model.classes)}};
  if (checkpoint.fields.empty()) {
    facts["image_size"] = text_of(checkpoint.image_size);
  } else {
    const TensorField input = input_of(checkpoint.fields);
    facts["input"] = nlohmann::json(input.shape).dump();
    facts["input_type"] = element_name(input.type);
  }
  return facts;
}

// Runs a program, whose messages go to the file `log`. Returns its exit code.
int run_program(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0, ended = 0;
  int status = 0;
  bool told = false;
  const int failed = posix_spawnp(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0)
    fail(ErrorKind::kUsage, words[0] + " cannot be run: " + std::strerror(failed), "--format pt2",
         "Set SATURATE_PYTHON to a Python that has torch");
  while ((ended = waitpid(child, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
    if (stop_signal() == SIGTERM && !std::exchange(told, true))
      kill(child, SIGINT);  // Ctrl-C has reached it already
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (ended < 0)
    fail(ErrorKind::kRun, words[0] + " has an unknown exit code: " + std::strerror(errno),
         "--format pt2", "Run it again");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string last_line(std::string text) {
  text.resize(text.find_last_not_of(" \n") + 1);
  return text.substr(text.rfind('\n') + 1);
}

// torch.export is Python: a tool puts the weights into the same model there.
void write_pt2(Env& env, const std::string& out, Model& model, const ModelInput& input,
               const Facts& facts) {
  if (input.tensor.is_sequence)
    fail(ErrorKind::kUsage, "pt2 is not for samples of varying length", "--format pt2",
         "Use --format onnx or torchscript");
  if (env.exists(out) && (out.starts_with("/dev/") || !std::filesystem::is_regular_file(out)))
    fail(ErrorKind::kUsage, "pt2 is written as a file", out, "Name a file, or another --format");
  const std::string tool = shipped_file(env, "tools/export_pt2.py");
  if (tool.empty())
    fail(ErrorKind::kUsage, "tools/export_pt2.py is not beside this program", "--format pt2",
         "Use the program of a checkout or an installation, or another --format");
  const char* const python = std::getenv("SATURATE_PYTHON");
  const ScratchFolder scratch(temporary_parent(), "export");
  const std::string weights = scratch.path() + "/model.safetensors", log = scratch.path() + "/log";
  write_safetensors(env, weights, model_state(model), facts);
  catch_stop_signals_of_writing();
  const int code = run_program({python ? python : "python3", tool, weights, "--out", out}, log);
  if (code == 0) return;
  require_running();
  const std::string said = last_line(text_of_file(env, log));
  if (code > 128 || said.empty())  // it was killed, or does not say why
    fail(ErrorKind::kRun, fmt::format("Python ended with code {}", code), "--format pt2",
         "Look for a lack of memory, or set SATURATE_PYTHON to another Python");
  fail(ErrorKind::kRun, said, "", "");
}

struct Format {
  std::string_view name, extension, doc;
  void (*write)(Env& env, const std::string& out, Model& model, const ModelInput& input,
                const Facts& facts);
};

constexpr Format kFormats[] = {
    {"safetensors", ".safetensors", "the weights by name",
     [](Env& env, const std::string& out, Model& model, const ModelInput&, const Facts& facts) {
       write_safetensors(env, out, model_state(model), facts);
     }},
    {"onnx", ".onnx", "a graph for ONNX Runtime and others",
     [](Env& env, const std::string& out, Model& model, const ModelInput& input,
        const Facts& facts) {
       Facts properties = facts;
       properties.erase("format");  // of safetensors
       export_onnx(env, out, model, input, properties);
     }},
    {"torchscript", ".pt", "a program for torch.jit.load",
     [](Env& env, const std::string& out, Model& model, const ModelInput& input, const Facts&) {
       export_torchscript(env, out, model, input);
     }},
    {"pt2", ".pt2", "a program for torch.export.load, made by $SATURATE_PYTHON or python3",
     write_pt2},
};

// An existing file is replaced only if its name is that of an export: --out may name a run's
// records by mistake.
void require_replaceable(const std::string& out, const Format& format) {
  std::error_code none;
  if (out.ends_with(format.extension) || !std::filesystem::is_regular_file(out, none) ||
      std::filesystem::file_size(out, none) == 0)  // such as what stdout is redirected to
    return;
  fail(ErrorKind::kUsage,
       fmt::format("--out is a file without the extension {}, and would be lost", format.extension),
       out, fmt::format("Name a new file, or one that ends in {}", format.extension));
}

int export_model(const ExportArguments& arguments) {
  Env& env = Env::posix();
  std::string path;
  const Checkpoint checkpoint = read_saved_model(env, arguments.model, path);
  const Recipe recipe = parse_saved_recipe(checkpoint.recipe_toml, path);
  const Format& format = *std::ranges::find(kFormats, arguments.format, &Format::name);
  const std::string out =
      !arguments.out.empty() ? arguments.out : recipe.model.name + std::string(format.extension);
  if (arguments.out.empty() && env.exists(out))
    fail(ErrorKind::kUsage, "the file exists", out, "Name it by --out to replace it");
  require_replaceable(out, format);
  require_output(out);
  const auto model = load_model(env, checkpoint, recipe, arguments.model.plain, path);
  format.write(env, out, *model, model_input(env, recipe, checkpoint),
               metadata(checkpoint, recipe));
  const bool averaged = !checkpoint.average.empty() && !arguments.model.plain;
  if (out != "/dev/stdout")
    fmt::print("{}: {} of {}{}\n", printable(out), recipe.model.name, printable(path),
               averaged ? ", averaged weights" : "");
  return 0;
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<ExportArguments>(
      app, exit_code, "export", "Export a saved model for other programs", export_model);
  add_saved_model(command, arguments.model);
  std::vector<std::string> names;
  std::string doc;
  for (const Format& format : kFormats) {
    names.emplace_back(format.name);
    doc += fmt::format("{}{}: {}", doc.empty() ? "" : "; ", format.name, format.doc);
  }
  command.add_option("--format", arguments.format, doc)->required()->check(CLI::IsMember(names));
  command.add_option("--out", arguments.out,
                     "The file (default: a new one with the model's name, in this folder)");
}

}  // namespace saturate
