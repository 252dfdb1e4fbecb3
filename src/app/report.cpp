// saturate report: one HTML file that shows a run, or compares several.
#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "app/command.h"
#include "base/printable.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

struct ReportArguments {
  std::vector<std::string> inputs;  // folders of runs, files of ladders
  std::string out;
};

bool is_run(const std::string& input) {
  return !input.ends_with(".json") || Env::posix().is_directory(input);
}

// In the run's folder; a comparison has none.
std::string choose_out(const ReportArguments& arguments) {
  if (!arguments.out.empty()) return arguments.out;
  const auto& inputs = arguments.inputs;
  if (std::ranges::count_if(inputs, is_run) != 1) return "report.html";
  return *std::ranges::find_if(inputs, is_run) + "/report.html";
}

// An existing file is replaced only if it is a page, by its name or by how it begins: --out may
// name a run's records by mistake.
void require_replaceable(Env& env, const std::string& out) {
  constexpr std::string_view kPageBegin = "<!DOCTYPE html>";  // of src/report/page/page.html
  std::error_code none;
  if (out.ends_with(".html") || out.ends_with(".htm")) return;
  if (!std::filesystem::is_regular_file(out, none)) return;  // new, or such as /dev/stdout
  const auto file = env.open_readable(out);
  if (file->size() == 0) return;
  std::string begin(std::min<uint64_t>(file->size(), kPageBegin.size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(begin)));
  if (begin == kPageBegin) return;
  fail(ErrorKind::kUsage, "--out is a file that is not an HTML page, and would be lost", out,
       "Name a new file, or one that ends in .html");
}

int report(const ReportArguments& arguments) {
  Env& env = Env::posix();
  const std::string out = choose_out(arguments);
  if (env.is_directory(out))
    fail(ErrorKind::kUsage, "--out is a folder", out,
         "Name a file, such as " + out + "/report.html");
  require_replaceable(env, out);
  std::set<std::string> seen;
  std::vector<RunReading> runs;
  std::vector<LadderReading> ladders;
  for (const auto& folder : arguments.inputs) {
    if (!seen.insert(std::filesystem::weakly_canonical(folder).string()).second)
      fail(ErrorKind::kUsage, is_run(folder) ? "the run is given twice" : "the file is given twice",
           folder, "Name each once");
    if (!is_run(folder)) {
      ladders.push_back(read_ladder_json(env, folder));
      continue;
    }
    runs.push_back(read_run(env, folder));
    for (const auto& warning : runs.back().warnings) print_warning(folder + ": " + warning);
  }
  write_atomically(env, out, make_report(runs, ladders));
  fmt::print("report  {}\n", printable(out));
  return 0;
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<ReportArguments>(
      app, exit_code, "report", "Show a run, or compare several, as one HTML file", report);
  command
      .add_option("DIR", arguments.inputs,
                  "Run folders; and files (.json) that ladder or sweep wrote with --json")
      ->required();
  command.add_option("--out", arguments.out,
                     "The file (default DIR/report.html; report.html for several runs). Replaces "
                     "a file that ends in .html or is an HTML page, and no other");
}

}  // namespace saturate
