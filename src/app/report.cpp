// saturate report: one HTML file that shows a run, or compares several.
#include "report/report.h"

#include <fmt/format.h>

#include "app/command.h"
#include "base/printable.h"
#include "saturate/data/env.h"

namespace saturate {
namespace {

struct ReportArguments {
  std::vector<std::string> inputs;  // folders of runs, files of ladders
  std::string out;
};

int report(const ReportArguments& arguments) {
  const std::string out = write_report(Env::posix(), arguments.inputs, arguments.out);
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
