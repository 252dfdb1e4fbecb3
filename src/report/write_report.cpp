#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "base/files.h"
#include "base/printable.h"
#include "report/report.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

bool is_run(Env& env, const std::string& input) {
  return !input.ends_with(".json") || env.is_directory(input);
}

// An existing file is replaced only if it is a page, by its name or by how it begins: `path` may
// name a run's records by mistake. A link's own name says nothing of the file.
void require_replaceable(Env& env, const std::string& path) {
  constexpr std::string_view kPageBegin = "<!DOCTYPE html>";  // of src/report/page/page.html
  std::error_code none;
  if (env.is_directory(path))
    fail(ErrorKind::kUsage, "the report's file is a folder", path,
         "Name a file, such as " + path + "/report.html");
  if (!is_link(path) && (path.ends_with(".html") || path.ends_with(".htm"))) return;
  if (!std::filesystem::is_regular_file(path, none)) return;  // new, or such as /dev/stdout
  const auto file = env.open_readable(path);
  if (file->size() == 0) return;
  std::string begin(std::min<uint64_t>(file->size(), kPageBegin.size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(begin)));
  if (begin == kPageBegin) return;
  fail(ErrorKind::kUsage, "the report's file is not an HTML page, and would be lost", path,
       "Name a new file, or one that ends in .html");
}

}  // namespace

std::string report_path(Env& env, const std::vector<std::string>& inputs, const std::string& out) {
  if (!out.empty()) return out;
  const auto is_one = [&](const std::string& input) { return is_run(env, input); };
  if (std::ranges::count_if(inputs, is_one) != 1) return "report.html";
  return *std::ranges::find_if(inputs, is_one) + "/report.html";
}

std::string write_report(Env& env, const std::vector<std::string>& inputs, const std::string& out) {
  std::string path = report_path(env, inputs, out);
  if (out.empty() && is_link(path))
    fail(ErrorKind::kUsage,
         "the report's file is a symbolic link, which may lead out of the run's folder", path,
         "Remove it, or name another file for the report");
  require_replaceable(env, path);
  std::set<std::string> seen;
  std::vector<RunReading> runs;
  std::vector<LadderReading> ladders;
  for (const auto& input : inputs) {
    if (input.empty())
      fail(ErrorKind::kUsage, "the name of a run is empty", "report", "Give the folder of a run");
    const bool is_folder = is_run(env, input);
    std::error_code none;  // reported when the input is read
    if (!seen.insert(std::filesystem::weakly_canonical(input, none).string()).second)
      fail(ErrorKind::kUsage, is_folder ? "the run is given twice" : "the file is given twice",
           input, "Name each once");
    if (!is_folder) {
      ladders.push_back(read_ladder_json(env, input));
      continue;
    }
    runs.push_back(read_run(env, input));
    for (const auto& warning : runs.back().warnings) print_warning(input + ": " + warning);
  }
  write_atomically(env, path, make_report(runs, ladders));
  return path;
}

}  // namespace saturate
