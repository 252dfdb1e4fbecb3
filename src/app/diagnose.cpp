// saturate diagnose: why a run is slow, and what to do about it.
#include "advise/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/bench_report.h"
#include "app/command.h"
#include "app/scratch_folder.h"
#include "base/printable.h"
#include "record/json_fields.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "trace/host.h"

namespace saturate {
namespace {

using Json = nlohmann::ordered_json;

struct DiagnoseArguments {
  std::string recipe, json, scratch = "runs";
  std::vector<std::string> overrides;
  DiagnoseOptions options;
};

bool has_interval(const WhatIf& what_if) {
  return what_if.measured || what_if.gain->low < what_if.gain->high;
}

std::string interval(const Gain& gain) {
  return fmt::format("[{:.2f}, {:.2f}]", gain.low, gain.high);
}

std::string interval(const WhatIf& what_if) {
  return (has_interval(what_if) ? interval(*what_if.gain) : "") +
         (what_if.measured ? "" : " inferred");
}

// As --set takes it, for copying, but for the queries of URLs, which may be secret.
std::string pasted(const WhatIf& what_if) {
  std::string text;
  for (const std::string& setting : what_if.settings)
    text += (text.empty() ? "" : " ") + shell_word(without_queries(setting));
  return text;
}

void print_what_if(const WhatIf& what_if, const std::string& more) {
  const std::string text =
      what_if.settings.empty() ? std::string(cause_name(what_if.cause)) : pasted(what_if);
  fmt::print("  {:<44} {:>6.2f}x {:<13} {}\n", text, what_if.gain->ratio, interval(what_if), more);
}

void print_phases(const PhaseTimes& step) {
  const double total = step.total();
  for (int i = 0; i < kPhaseCount; ++i) {
    if (const double s = step[Phase(i)]; s > 0.005 * total)
      fmt::print(" {} {:.0f} %", phase_name(Phase(i)), 100 * s / total);
    if (Phase(i) == Phase::kWait && step.network_wait > 0.005 * total)
      fmt::print(" (of which network {:.0f} %)", 100 * step.network_wait / total);
  }
  fmt::print("\n");
}

void print_interludes(const Measurements& found) {
  if (found.run_s <= 0) return;
  const auto each = [](const Interlude& interlude) {
    return interlude.times > 0 ? fmt::format(" ({} for each of {:.0f})",
                                             format_duration(interlude.seconds), interlude.times)
                               : "";
  };
  fmt::print(
      "  the training   {:>9}: evaluation {:.0f} %{}, checkpoints {:.0f} %{}, records {:.0f} %\n",
      format_duration(found.whole_s()), 100 * found.evaluation_share(), each(found.evaluations),
      100 * found.checkpoint_share(), each(found.saves), 100 * found.phase_share(Phase::kHost));
}

void print_ranks(const Diagnosis& diagnosis, const Measurements& found) {
  fmt::print(" over {} processes\n", found.ranks.size());
  fmt::print("  efficiency     {:>9.1f} % of the processes' time is not spent waiting for others\n",
             100 * diagnosis.efficiency);
  for (size_t rank = 0; rank < found.ranks.size(); ++rank) {
    const PhaseTimes& step = found.ranks[rank];
    fmt::print("  rank {:<4} works {:>9.2f} ms a step:", rank,
               1e3 * (step.total() - step[Phase::kReduce]));
    print_phases(step);
  }
  print_interludes(found);
}

void print_link(const Measurements& found) {
  if (!found.link) return;
  fmt::print("  the network    {}\n", link_text(*found.link));
  for (const std::string& line : link_advice(*found.link)) fmt::print("    {}\n", line);
}

void print_evidence(const Diagnosis& diagnosis, const Measurements& found) {
  fmt::print("\nmeasured\n  the recipe     {:>9.1f} {}/s, {:.2f} ms a step of {}", found.rate,
             found.unit, 1e3 * found.phases.total(), found.batch);
  if (!found.ranks.empty()) return print_ranks(diagnosis, found);
  fmt::print(
      "\n  compute alone  {:>9.1f} {}/s, on a batch that is held{}: {:.2f} times the recipe {}\n",
      found.compute_rate, found.unit, found.on_gpu ? ", without input and copy" : "",
      found.without_input.ratio, interval(found.without_input));
  fmt::print("  input alone    {:>9.1f} {}/s, {} loader thread{}: {:.2f} times the recipe {}\n",
             found.input_rate, found.unit, found.loader_threads,
             found.loader_threads == 1 ? "" : "s", found.input_alone.ratio,
             interval(found.input_alone));
  print_link(found);
  fmt::print("  efficiency     {:>9.1f} % of the slower of the two\n", 100 * diagnosis.efficiency);
  fmt::print("  cores in use   {:>9.2f} of {}\n", found.cores_used, found.cores);
  fmt::print("  a step        ");
  print_phases(found.phases);
  print_interludes(found);
}

void print_fixes(const Diagnosis& diagnosis, const Measurements& found) {
  fmt::print("\nworth doing, by the time saved\n");
  for (const WhatIf& fix : diagnosis.fixes) {
    std::string more = fmt::format("saves {:.0f} %", 100 * saved_share(*fix.gain));
    if (found.run_s > 0) more += fmt::format(" of {}", format_duration(found.whole_s()));
    if (!fix.note.empty()) more += "; " + fix.note;
    print_what_if(fix, more);
  }
  const auto first = std::ranges::find(diagnosis.fixes, diagnosis.cause, &WhatIf::cause);
  if (first->settings.empty()) return;
  fmt::print("\nto begin with, as recipe lines\n{}",
             without_queries(recipe_lines(found.recipe, first->settings)));
}

void print_others(const char* title, const std::vector<WhatIf>& what_ifs) {
  if (!what_ifs.empty()) fmt::print("\n{}\n", title);
  for (const WhatIf& what_if : what_ifs) print_what_if(what_if, "");
}

void print_diagnosis(const Diagnosis& diagnosis, const Measurements& found) {
  fmt::print("{}{}: {}\n", diagnosis.undecided ? "perhaps " : "", cause_name(diagnosis.cause),
             diagnosis.summary);
  print_evidence(diagnosis, found);
  if (!diagnosis.fixes.empty()) print_fixes(diagnosis, found);
  print_others("not certain", diagnosis.uncertain);
  print_others("not worth doing", diagnosis.idle);
  if (!diagnosis.skipped.empty()) fmt::print("\nnot measured\n");
  for (const WhatIf& what_if : diagnosis.skipped)
    fmt::print("  {:<44} {}\n", pasted(what_if), printable(what_if.skipped));
}

Json gain_json(const WhatIf& what_if) {
  Json settings = Json::array();
  for (const std::string& setting : what_if.settings) settings.push_back(without_queries(setting));
  Json json = {{"set", settings.empty() ? Json() : Json(without_queries(what_if.text()))},
               {"settings", settings},
               {"cause", cause_name(what_if.cause)},
               {"gain", what_if.gain->ratio}};
  json["low"] = has_interval(what_if) ? Json(what_if.gain->low) : Json();
  json["high"] = has_interval(what_if) ? Json(what_if.gain->high) : Json();
  json["measured"] = what_if.measured;
  json["changes"] = what_if.alters == Alters::kNothing    ? "nothing"
                    : what_if.alters == Alters::kRounding ? "rounding"
                                                          : "training";
  json["note"] = what_if.note;
  return json;
}

// Speedup over the recipe; null for several processes, which are not interleaved.
Json ratio_json(const Gain& gain, const Measurements& found) {
  if (!found.ranks.empty()) return Json();
  return {{"gain", gain.ratio}, {"low", gain.low}, {"high", gain.high}};
}

Json list_json(const std::vector<WhatIf>& what_ifs) {
  Json list = Json::array();
  for (const WhatIf& what_if : what_ifs) list.push_back(gain_json(what_if));
  return list;
}

// Shares of the whole training outside steps; null if unknown.
Json run_json(const Measurements& found) {
  if (found.run_s <= 0) return Json();
  const auto part = [](double share, const Interlude& each) {
    return Json{{"share", share}, {"seconds", each.seconds}, {"times", each.times}};
  };
  return {{"seconds", found.whole_s()},
          {"evaluation", part(found.evaluation_share(), found.evaluations)},
          {"checkpoints", part(found.checkpoint_share(), found.saves)},
          {"records", {{"share", found.phase_share(Phase::kHost)}}}};
}

Json link_json(const Measurements& found) {
  if (!found.link) return {};
  const LinkUse& link = *found.link;
  return {{"bytes_per_s", link.bytes_per_s},
          {"requests_per_s", link.requests_per_s},
          {"first_byte_s", link.first_byte_s},
          {"first_byte_s_95", link.late_first_byte_s},
          {"disk_share", link.disk_share},
          {"at_most", run_speedup(link, INFINITY)},
          {"large_requests", run_speedup(link, link.large_requests)},
          {"half_bytes", run_speedup(link, link.half_bytes)},
          {"larger_cache", run_speedup(link, link.larger_cache)},
          {"segments", run_speedup(link, segments_speedup(link))}};
}

Json to_json(const Diagnosis& diagnosis, const Measurements& found) {
  Json ranks = Json::array();
  for (const PhaseTimes& rank : found.ranks) ranks.push_back(phases_json(rank));
  const auto known = [](double rate) { return rate > 0 ? Json(rate) : Json(); };
  Json skipped = Json::array();
  for (const WhatIf& what_if : diagnosis.skipped)
    skipped.push_back(
        {{"set", without_queries(what_if.text())}, {"why", without_queries(what_if.skipped)}});
  const Host host = this_host();
  return {{"cause", cause_name(diagnosis.cause)},
          {"healthy", diagnosis.healthy},
          {"undecided", diagnosis.undecided},
          {"evidence",
           {{"summary", diagnosis.summary},
            {"images_per_s", found.rate},
            {"compute_images_per_s", known(found.compute_rate)},
            {"input_images_per_s", known(found.input_rate)},
            {"without_input", ratio_json(found.without_input, found)},
            {"input_alone", ratio_json(found.input_alone, found)},
            {"link", link_json(found)},
            {"cores_used", found.cores_used},
            {"cores", found.cores},
            {"phases", phases_json(found.phases)},
            {"network_wait_s", found.phases.network_wait},
            {"run", run_json(found)},
            {"ranks", ranks}}},
          {"efficiency", diagnosis.efficiency},
          {"fixes", list_json(diagnosis.fixes)},
          {"not_certain", list_json(diagnosis.uncertain)},
          {"not_worth_doing", list_json(diagnosis.idle)},
          {"not_measured", skipped},
          {"host", {{"cpu", host.cpu}, {"system", host.system}, {"cores", host.cores}}},
          {"commit", build_commit()},
          {"recipe", without_queries(to_toml(found.recipe))}};
}

std::optional<Measurements> measured(Env& env, const Recipe& recipe,
                                     const std::shared_ptr<Group>& group,
                                     DiagnoseOptions& options) {
  if (!group) return measure(env, recipe, options);
  try {
    options.folder = group->text_of_first(options.folder);
    return measure(env, recipe, group, options);
  } catch (const std::exception& error) {
    group->report_failure(error.what());
    throw;
  }
}

int diagnose(const DiagnoseArguments& arguments) {
  require_release_build();
  Env& env = Env::posix();
  const Recipe recipe = load_recipe(env, arguments.recipe, arguments.overrides);
  const std::shared_ptr<Group> group = join_group(recipe);
  require_output(arguments.json);
  catch_stop_signals();
  const bool is_first = !group || group->rank() == 0;
  std::optional<ScratchFolder> folder;
  if (is_first) folder.emplace(arguments.scratch, "diagnose");
  DiagnoseOptions options = arguments.options;
  if (folder) options.folder = folder->path();
  options.should_stop = [] { return stop_signal() != 0; };
  const auto found = until_stopped([&] { return measured(env, recipe, group, options); });
  if (!found) return interrupted_code();
  if (!is_first) return 0;
  const Diagnosis diagnosis = classify(*found);
  write_and_print({{arguments.json, json_text(to_json(diagnosis, *found))}},
                  [&] { print_diagnosis(diagnosis, *found); });
  return 0;
}

constexpr const char* kDiagnoseFooter =
    "Runs the recipe's own step, interleaved with variants that each change one thing; each\n"
    "speedup has a 95 % interval. Under `saturate launch` it shows which process the others wait\n"
    "for, and the cost of all-reducing gradients. See docs/diagnose.md.";

}  // namespace

void add_diagnose(CLI::App& app, int& exit_code) {
  const auto [command, arguments] = add_command<DiagnoseArguments>(
      app, exit_code, "diagnose", "Find a run's bottleneck by experiment", diagnose);
  add_recipe(command, arguments.recipe);
  add_settings(command, arguments.overrides);
  add_settings(command, arguments.options.tries, "--try",
               "section.key=value: one more change to measure; may be repeated");
  add_number(command, "--seconds", arguments.options.seconds, 1.0, 86400.0,
             "Approximate total time");
  add_number(command, "--rounds", arguments.options.rounds, 3, 1000,
             "Maximum number of rounds per change");
  command
      .add_option("--scratch", arguments.scratch,
                  "Where the measured runs save, in a temporary folder: give the storage of the "
                  "real runs, so that the cost of saving is right")
      ->capture_default_str();
  command.add_option("--json", arguments.json, "Write the diagnosis to this file too");
  command.footer(kDiagnoseFooter);
}

}  // namespace saturate
