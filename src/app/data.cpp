// saturate data: creating and examining datasets.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/dataset_report.h"
#include "base/printable.h"
#include "base/thread_pool.h"
#include "data/export.h"
#include "data/index_folder.h"
#include "data/inspect.h"
#include "data/source_index.h"
#include "record/json_fields.h"
#include "saturate/data/dataset.h"
#include "saturate/data/error.h"
#include "saturate/progress.h"
#include "store/store_url.h"

namespace saturate {
namespace {

struct SynthArguments {
  std::string spec, out;
};

struct InspectArguments {
  std::string source, json;
  int threads = 0;
  bool all = false;
};

// Images inspected by data inspect: enough to notice a share of one in a thousand.
constexpr size_t kInspected = 10'000;

struct PackArguments {
  std::string source;
  PackOptions options;
  int threads = 0;
  bool skip_broken = false;
};

int threads_or_all(int threads) {
  return threads > 0 ? threads : available_cores();
}

std::unique_ptr<Dataset> open_with_warning(Env& env, const std::string& source) {
  auto dataset = open_dataset(env, source);
  if (const std::string warning = dataset->warning(); !warning.empty()) print_warning(warning);
  return dataset;
}

const char* unit_of(const Dataset& dataset) {
  return dataset.tensors().empty() ? "images" : "samples";
}

// Calls `write(progress)`, which removes incomplete output when `progress` throws.
template <class Write>
void write_unless_stopped(Env& env, const char* title, const Dataset& dataset, const Write& write,
                          const char* then = "removing unfinished output") {
  catch_stop_signals_of_writing(then);
  Progress progress(env, title, unit_of(dataset), int64_t(dataset.size()), Progress::Style::kAuto);
  until_stopped([&] {
    write([&](size_t done, size_t) {
      require_running();
      progress.update(int64_t(done), "");
    });
  });
}

int synth(const SynthArguments& arguments) {
  Env& env = Env::posix();
  const auto dataset = open_dataset(env, "synth:" + arguments.spec);
  write_unless_stopped(env, "synth", *dataset, [&](const ProgressCallback& progress) {
    write_dataset(env, *dataset, arguments.out, available_cores(), progress);
  });
  const char* const scheme = arguments.out.ends_with(".tar") ? "tar:"
                             : dataset->has_masks()          ? "masks:"
                                                             : "folder:";
  fmt::print("{} images of {} classes in {}\ntrain on them with {}\n", dataset->size(),
             dataset->classes().size(), printable(arguments.out),
             shell_word("data.source=" + std::string(scheme) + arguments.out));
  return 0;
}

DatasetReport examine(Env& env, const InspectArguments& arguments, const char* title,
                      InspectDepth depth, size_t most) {
  const auto dataset = open_with_warning(env, arguments.source);
  Progress progress(env, title, unit_of(*dataset), int64_t(std::min(most, dataset->size())),
                    Progress::Style::kAuto);
  const auto show = [&](size_t done, size_t) { progress.update(int64_t(done), ""); };
  return inspect_dataset(*dataset, depth, threads_or_all(arguments.threads), show, most);
}

int inspect(const InspectArguments& arguments) {
  Env& env = Env::posix();
  require_output(arguments.json);
  const DatasetReport report = examine(env, arguments, "inspect", InspectDepth::kHeaders,
                                       arguments.all ? SIZE_MAX : kInspected);
  write_and_print({{arguments.json, to_json(report)}},
                  [&] { print_report(report, arguments.source); });
  return 0;
}

int verify(const InspectArguments& arguments) {
  Env& env = Env::posix();
  require_output(arguments.json);
  const DatasetReport report = examine(env, arguments, "verify", InspectDepth::kPixels, SIZE_MAX);
  const nlohmann::ordered_json json = {{"source", as_utf8(without_queries(arguments.source))},
                                       {"samples", report.samples},
                                       {"broken", to_json(report.broken)}};
  write_and_print({{arguments.json, json_text(json)}}, [&] {
    print_broken(report, "");
    fmt::print("{} of {} {} are broken ({})\n", report.broken.size(), report.samples,
               report.fields.empty() ? "images" : "samples", printable(arguments.source));
  });
  return report.broken.empty() ? 0 : int(ErrorKind::kData);
}

struct IndexArguments {
  std::string source, out, json;
  int threads = 0;
};

void print_index(const IndexArguments& arguments, const std::string& path,
                 const IndexReport& report, const IndexTotals& totals) {
  for (const auto& sample : report.broken)
    print_warning("no points of " + sample.name + ": " + sample.reason);
  fmt::print("{} of {} images are indexed, {} of them now; {} get no entry; {} are broken\n",
             report.found + report.known, report.samples, report.found, report.without,
             report.broken.size());
  if (totals.files == 0) return;
  fmt::print("{:.2f} MB in {}\nused with data.decode=fast{}\n", double(totals.bytes) * 1e-6,
             printable(path),
             arguments.out.empty()
                 ? ""
                 : " and " + shell_word("data.index=" + std::filesystem::absolute(path).string()));
}

// Ctrl-C keeps the positions found so far: the next call continues.
int index(const IndexArguments& arguments) {
  Env& env = Env::posix();
  require_output(arguments.json);
  const bool given = !arguments.out.empty();
  const std::string path = given ? arguments.out : index_path_of(env, arguments.source);
  if (path.empty())
    fail(ErrorKind::kUsage, "there is no folder for the index", "HOME",
         "Set HOME or XDG_CACHE_HOME, or give --out FILE");
  if (given && path.find("://") != std::string::npos)
    fail(ErrorKind::kUsage, "an index is a file, not an object of a store", without_queries(path),
         "Name a file on a disk of this machine");
  const auto dataset = open_with_warning(env, arguments.source);
  SourceIndex index(env, path, SourceIndex::Kind::kGiven);
  IndexReport report;
  write_unless_stopped(
      env, "index", *dataset,
      [&](const ProgressCallback& progress) {
        report = index_dataset(*dataset, index, threads_or_all(arguments.threads), progress);
      },
      "keeping what was found");
  // A given file may be that of several sources, and a split's is that of its other part too.
  const bool whole = !given && !arguments.source.starts_with("split:");
  IndexTotals totals;
  if (report.found + report.known > 0) totals = index.save(whole);
  nlohmann::ordered_json broken = nlohmann::ordered_json::array();
  for (const auto& sample : report.broken)
    broken.push_back({{"name", as_utf8(sample.name)}, {"reason", as_utf8(sample.reason)}});
  const nlohmann::ordered_json json = {{"source", as_utf8(without_queries(arguments.source))},
                                       {"index", as_utf8(path)},
                                       {"samples", report.samples},
                                       {"found", report.found},
                                       {"known", report.known},
                                       {"without", report.without},
                                       {"files", totals.files},
                                       {"bytes", totals.bytes},
                                       {"broken", broken}};
  write_and_print({{arguments.json, json_text(json)}},
                  [&] { print_index(arguments, path, report, totals); });
  return 0;
}

std::string packed_text(const Dataset& dataset, const PackOptions& options,
                        const PackReport& report) {
  const double megabytes = double(report.bytes) * 1e-6;
  if (!dataset.tensors().empty())
    return fmt::format("{} samples of {} fields, {:.1f} MB{}", report.samples,
                       dataset.tensors().size(), megabytes,
                       options.verify ? "; read back and compared" : "");
  std::string segments;
  if (report.joined > 0)
    segments = fmt::format("; {} joined ({} restored byte for byte)", report.joined, report.exact);
  if (report.segmented > 0)
    segments = fmt::format(" ({} can be restored byte for byte){}", report.exact,
                           options.verify ? ", their pixels compared" : "");
  return fmt::format(
      "{} images of {} classes, {:.1f} MB; {} copied as they were; {} cut into segments{}; {} "
      "stored as pixels",
      report.samples, dataset.classes().size(), megabytes, report.copied, report.segmented,
      segments, report.raw);
}

int pack(const PackArguments& arguments) {
  Env& env = Env::posix();
  const auto dataset = open_with_warning(env, arguments.source);
  PackOptions options = arguments.options;
  options.threads = threads_or_all(arguments.threads);
  options.on_error = arguments.skip_broken ? OnError::kSkip : OnError::kFail;
  PackReport report;
  const bool is_far = is_store_url(options.out.substr(options.out.find(':') + 1));
  write_unless_stopped(
      env, "pack", *dataset,
      [&](const ProgressCallback& progress) {
        report = pack_dataset(env, *dataset, options, progress);
      },
      is_far ? "keeping the parts that were uploaded" : "removing unfinished output");
  for (const auto& sample : report.skipped)
    print_warning("skipped " + sample.name + ": " + sample.reason);
  fmt::print("{}\ntrain on them with {}\n", packed_text(*dataset, options, report),
             shell_word("data.source=" + options.out));
  return 0;
}

void add_synth(CLI::App& data, int& exit_code) {
  const auto [command, arguments] = add_command<SynthArguments>(
      data, exit_code, "synth", "Write a procedural classification set as JPEG files", synth);
  command.add_option("SPEC", arguments.spec,
                     "key=value,...: size (pixels), count, classes, difficulty (0 to 1), seed, "
                     "split (train|test), quality (JPEG), masks (true|false)");
  command.add_option("--out", arguments.out, "A new folder, or a new file ending in .tar")
      ->required();
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Number of threads; default: one per available core")
      ->check(CLI::Range(1, 1024));
}

template <class Arguments>
void add_examined(CLI::App& command, Arguments& arguments) {
  command.add_option("SOURCE", arguments.source, "Source, as data.source of a recipe")->required();
  command.add_option("--json", arguments.json, "Write the report to this file too");
  add_threads(command, arguments.threads);
}

void add_inspect(CLI::App& data, int& exit_code) {
  const auto [command, arguments] = add_command<InspectArguments>(
      data, exit_code, "inspect",
      "Show counts, classes, sizes and formats from the headers of images", inspect);
  add_examined(command, arguments);
  command.add_flag("--all", arguments.all,
                   fmt::format("Inspect every image, not {} evenly spread ones", kInspected));
  command.add_flag("--headers")->group("");  // always the case: accepted for old scripts
}

void add_verify(CLI::App& data, int& exit_code) {
  const auto [command, arguments] = add_command<InspectArguments>(
      data, exit_code, "verify",
      "Decode every image, or read every tensor, and list broken samples; exit 3 if there are any",
      verify);
  add_examined(command, arguments);
}

void add_pack(CLI::App& data, int& exit_code) {
  const auto [command, arguments] = add_command<PackArguments>(
      data, exit_code, "pack", "Convert a source without masks to another format", pack);
  PackOptions& options = arguments.options;
  command.add_option("SOURCE", arguments.source, "Source, as data.source of a recipe")->required();
  command
      .add_option("--out", options.out,
                  "shard:FILE, lmdb:FOLDER or tar:FILE; a new one; FILE may be s3://BUCKET/KEY")
      ->required();
  command
      .add_option("--max-side", options.max_side,
                  "Shrink images to this many pixels on their longer side")
      ->check(CLI::Range(1, 65500));
  command
      .add_option("--quality", options.quality,
                  "Encode every image as JPEG of this quality (default: images are copied; 90 "
                  "for those that are shrunk)")
      ->check(CLI::Range(1, 100));
  command
      .add_option("--raw-fraction", options.raw_fraction,
                  "Store this share of the images as decoded pixels: larger, but no decoding in "
                  "the loader (shard and lmdb)")
      ->check(CLI::Range(0.0, 1.0));
  add_number(command, "--segment", options.segment, 0, 64,
             "Split JPEGs into segments of this many MCUs without changing a pixel, so that "
             "a crop is decoded on its own (shard); 0 keeps every file's bytes");
  command.add_flag(
      "--verify", options.verify,
      "Compare what was written: the pixels of JPEGs before and after splitting, their "
      "bytes if these can be restored, the bytes of tensors and objects");
  command.add_flag("--skip-broken", arguments.skip_broken,
                   "Skip samples that cannot be read or decoded; without it, reading errors stop "
                   "the command, and images that are copied are not decoded");
  add_threads(command, arguments.threads);
}

void add_index(CLI::App& data, int& exit_code) {
  const auto [command, arguments] = add_command<IndexArguments>(
      data, exit_code, "index",
      "Find positions in JPEG files, so that data.decode=fast needs to read only parts of them",
      index);
  add_examined(command, arguments);
  command.add_option("--out", arguments.out,
                     "Index file to make or extend (default: the file of data.index=auto)");
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Make, convert and examine datasets");
  data->require_subcommand(1);
  for (const auto add : {add_synth, add_inspect, add_pack, add_verify, add_index})
    add(*data, exit_code);
}

}  // namespace saturate
