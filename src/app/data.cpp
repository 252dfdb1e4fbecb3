// saturate data: making and examining datasets.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/command.h"
#include "saturate/dataset.h"
#include "saturate/export.h"
#include "saturate/inspect.h"
#include "saturate/progress.h"
#include "saturate/thread_pool.h"

namespace saturate {
namespace {

struct SynthArguments {
  std::string spec, out;
};

struct InspectArguments {
  std::string source, json;
  int threads = 0;
  bool headers = false;
};

// A progress bar as the callback that the data room takes.
ProgressCallback show(Progress& progress) {
  return [&progress](size_t done, size_t) { progress.update(int64_t(done), ""); };
}

int synth(const SynthArguments& arguments) {
  Env& env = Env::posix();
  const auto dataset = open_dataset(env, "synth:" + arguments.spec);
  {
    Progress progress(env, "synth", "images", int64_t(dataset->size()), Progress::Style::kAuto);
    write_dataset(env, *dataset, arguments.out, available_cores(), show(progress));
  }
  const bool tar = arguments.out.ends_with(".tar");
  fmt::print("{} images of {} classes in {}\ntrain on them with data.source={}:{}\n",
             dataset->size(), dataset->classes().size(), arguments.out, tar ? "tar" : "folder",
             arguments.out);
  return 0;
}

nlohmann::ordered_json to_json(const Spread& spread) {
  return {{"min", spread.min}, {"median", spread.median}, {"max", spread.max}};
}

std::string to_json(const DatasetReport& report) {
  nlohmann::ordered_json broken = nlohmann::ordered_json::array();
  for (const auto& sample : report.broken)
    broken.push_back({{"name", sample.name}, {"reason", sample.reason}});
  nlohmann::ordered_json classes = nlohmann::ordered_json::object();
  for (size_t i = 0; i < report.classes.size(); ++i)
    classes[report.classes[i]] = report.class_samples[i];
  const nlohmann::ordered_json json = {{"samples", report.samples},
                                       {"bytes", report.bytes},
                                       {"jpeg", report.jpeg},
                                       {"png", report.png},
                                       {"grey", report.components[1] + report.components[2]},
                                       {"width", to_json(report.width)},
                                       {"height", to_json(report.height)},
                                       {"classes", classes},
                                       {"broken", broken}};
  // Names come from files, and may not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void print_report(const DatasetReport& report, const std::string& source) {
  const size_t sound = report.samples - report.broken.size();
  fmt::print("{}\n", source);
  fmt::print("  images   {} in {} classes, {:.1f} MB\n", report.samples, report.classes.size(),
             double(report.bytes) * 1e-6);
  fmt::print("  format   {} JPEG, {} PNG; {} grey, {} colour, {} CMYK or RGBA\n", report.jpeg,
             report.png, report.components[1] + report.components[2], report.components[3],
             report.components[4]);
  if (sound > 0) {
    fmt::print("  width    {} to {}, median {}\n", report.width.min, report.width.max,
               report.width.median);
    fmt::print("  height   {} to {}, median {}\n", report.height.min, report.height.max,
               report.height.median);
  }
  constexpr size_t kShown = 20;
  fmt::print("  classes\n");
  for (size_t i = 0; i < std::min(kShown, report.classes.size()); ++i)
    fmt::print("    {:>8}  {}\n", report.class_samples[i], report.classes[i]);
  if (report.classes.size() > kShown)
    fmt::print("    and {} more (--json FILE lists all)\n", report.classes.size() - kShown);
  fmt::print("  broken   {}\n", report.broken.size());
  for (const auto& sample : report.broken) fmt::print("    {}: {}\n", sample.name, sample.reason);
}

int inspect(const InspectArguments& arguments) {
  Env& env = Env::posix();
  const auto dataset = open_dataset(env, arguments.source);
  const InspectDepth depth = arguments.headers ? InspectDepth::kHeaders : InspectDepth::kPixels;
  const int threads = arguments.threads > 0 ? arguments.threads : available_cores();
  DatasetReport report;
  {
    Progress progress(env, "inspect", "images", int64_t(dataset->size()), Progress::Style::kAuto);
    report = inspect_dataset(*dataset, depth, threads, show(progress));
  }
  print_report(report, arguments.source);
  if (!arguments.json.empty()) write_atomically(env, arguments.json, to_json(report));
  return 0;
}

void add_synth(CLI::App& data, int& exit_code) {
  auto arguments = std::make_shared<SynthArguments>();
  CLI::App* command =
      data.add_subcommand("synth", "Write a procedural classification set as JPEG files");
  command->add_option("SPEC", arguments->spec,
                      "key=value,...: size (pixels), count, classes, difficulty (0 to 1), seed, "
                      "split (train|test), quality (JPEG)");
  command->add_option("--out", arguments->out, "A new folder, or a new file ending in .tar")
      ->required();
  command->callback([arguments, &exit_code] { exit_code = synth(*arguments); });
}

void add_inspect(CLI::App& data, int& exit_code) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = data.add_subcommand(
      "inspect", "Tell counts, classes, sizes and formats, and list broken images");
  command->add_option("SOURCE", arguments->source, "Source, as data.source of a recipe")
      ->required();
  command->add_option("--json", arguments->json, "Write the report to this file too");
  command->add_option("--threads", arguments->threads, "Default: one per available core")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--headers", arguments->headers,
                    "Read only image headers: faster, finds fewer broken images");
  command->callback([arguments, &exit_code] { exit_code = inspect(*arguments); });
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Make and examine datasets");
  data->require_subcommand(1);
  add_synth(*data, exit_code);
  add_inspect(*data, exit_code);
}

}  // namespace saturate
