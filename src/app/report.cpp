// saturate report: one HTML file that shows a run, or compares several.
#include "watch/report.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "app/command.h"
#include "saturate/env.h"
#include "saturate/error.h"

namespace saturate {
namespace {

struct ReportArguments {
  std::vector<std::string> folders;
  std::string out;
};

// Beside the run where there is one; a comparison belongs to none of its runs.
std::string choose_out(const ReportArguments& arguments) {
  if (!arguments.out.empty()) return arguments.out;
  return arguments.folders.size() == 1 ? arguments.folders.front() + "/report.html" : "report.html";
}

int report(const ReportArguments& arguments) {
  Env& env = Env::posix();
  const std::string out = choose_out(arguments);
  if (env.is_directory(out))
    fail(ErrorKind::kUsage, "--out is a folder", out,
         "Name a file, such as " + out + "/report.html");
  std::set<std::string> seen;
  std::vector<RunReading> runs;
  for (const auto& folder : arguments.folders) {
    if (!seen.insert(std::filesystem::weakly_canonical(folder).string()).second)
      fail(ErrorKind::kUsage, "the run is named twice", folder, "Name each run once");
    runs.push_back(read_run(env, folder));
    for (const auto& warning : runs.back().warnings)
      fmt::print(stderr, "saturate: warning: {}: {}\n", folder, warning);
  }
  write_atomically(env, out, make_report(runs));
  fmt::print("report  {}\n", out);
  return 0;
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      app.add_subcommand("report", "Show a run, or compare several, as one HTML file");
  command->add_option("DIR", arguments->folders, "Run folders")->required();
  command->add_option("--out", arguments->out,
                      "The file (default DIR/report.html; report.html for several runs)");
  command->callback([arguments, &exit_code] { exit_code = report(*arguments); });
}

}  // namespace saturate
