// saturate tune: a faster recipe, with the speedup of each change.
#include "advise/tune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <memory>

#include "app/bench_report.h"
#include "app/command.h"
#include "app/scratch_folder.h"
#include "base/printable.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "trace/host.h"

namespace saturate {
namespace {

struct TuneArguments {
  std::string recipe, out, scratch = "runs";
  std::vector<std::string> overrides;
  TuneOptions options;
};

std::string gain_text(const Gain& gain) {
  return fmt::format("{:.2f} times [{:.2f}, {:.2f}]", gain.ratio, gain.low, gain.high);
}

std::string step_line(const TuneStep& step) {
  std::string line =
      fmt::format("{:<8} {:<44} {}", step.rejected.empty() ? "kept" : "rejected",
                  fmt::format("{}", fmt::join(step.settings, " ")), gain_text(*step.fix.gain));
  if (step.loss) line += fmt::format("  loss {}", format_loss(*step.loss));
  return step.rejected.empty() ? line : line + "  " + step.rejected;
}

// One line per fix, then the total.
std::vector<std::string> table(const Tuning& tuning, double tolerance) {
  std::vector<std::string> lines;
  for (const TuneStep& step : tuning.steps) lines.push_back(step_line(step));
  if (lines.empty())
    lines.push_back(tuning.undecided ? "too little was measured to tell: raise --minutes"
                                     : "no change gave a speedup");
  lines.push_back(fmt::format("in all   {:.1f} to {:.1f} {}/s, {}", tuning.rate_before,
                              tuning.rate_after, tuning.unit, gain_text(tuning.gain)));
  if (tuning.loss_before && tuning.loss_after)
    lines.push_back(
        fmt::format("loss     {} to {} by the first {} samples (up to {:.0f} % more is "
                    "allowed)",
                    format_loss(*tuning.loss_before), format_loss(*tuning.loss_after),
                    tuning.samples, 100 * tolerance));
  return lines;
}

std::string file_text(const Tuning& tuning, const TuneArguments& arguments) {
  std::string text =
      fmt::format("# Tuned from {} on {}, {} cores, saturate {}:\n", arguments.recipe,
                  this_host().cpu, this_host().cores, build_commit());
  for (const std::string& line : table(tuning, arguments.options.tolerance))
    text += "#   " + line + "\n";
  return text + to_toml(tuning.recipe);
}

int run_tune(const TuneArguments& arguments) {
  require_release_build();
  Env& env = Env::posix();
  const Recipe recipe = load_recipe(env, arguments.recipe, arguments.overrides);
  if (env.exists(arguments.out))
    fail(ErrorKind::kUsage, "the file exists", arguments.out, "Choose another --out");
  require_output(arguments.out);
  catch_stop_signals();
  const ScratchFolder folder(arguments.scratch, "tune");
  TuneOptions options = arguments.options;
  options.folder = folder.path();
  options.should_stop = [] { return stop_signal() != 0; };
  const auto tuning = until_stopped([&] { return tune(env, recipe, options); });
  if (!tuning) return interrupted_code();
  write_and_print({{arguments.out, file_text(*tuning, arguments)}}, [&] {
    for (const std::string& line : table(*tuning, arguments.options.tolerance))
      fmt::print("{}\n", line);
  });
  fmt::print("\ntrain with it: {} train {}\n", shell_word(program_invocation_name),
             shell_word(arguments.out));
  return 0;
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<TuneArguments>(
      app, exit_code, "tune",
      "Apply diagnose's fixes, and keep those that speed up without changing the loss", run_tune);
  TuneOptions& options = arguments.options;
  add_recipe(command, arguments.recipe);
  command.add_option("--out", arguments.out, "The tuned recipe, a new file")->required();
  add_settings(command, arguments.overrides);
  add_number(command, "--minutes", options.minutes, 0.1, 1440.0, "Approximate total time");
  add_number(command, "--tolerance", options.tolerance, 0.0, 1.0,
             "Allowed relative increase of the loss after the same samples");
  add_number(command, "--rounds", options.rounds, 3, 1000, "Maximum number of rounds per change");
  command
      .add_option("--scratch", arguments.scratch,
                  "Where the measured runs save, in a temporary folder: on real runs' storage")
      ->capture_default_str();
}

}  // namespace saturate
