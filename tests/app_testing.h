// Running the command as its user would.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/data_testing.h"
#include "tests/paths.h"

namespace saturate::testing {

struct CommandResult {
  int exit_code;
  std::string out, err;
};

// Runs `saturate ARGUMENTS` through the shell, with `before` in front (such as "ulimit -f 10;").
inline CommandResult run_saturate(const std::string& arguments, const std::string& before = "") {
  const TempDir dir;
  const std::string command = before + " '" + kCommand + "' " + arguments + " >'" + (dir / "out") +
                              "' 2>'" + (dir / "err") + "' </dev/null";
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, read_text(dir / "out"), read_text(dir / "err")};
}

inline int count_lines(const std::string& text) {
  return int(std::count(text.begin(), text.end(), '\n'));
}

// Expects one error line that holds every one of `parts`, and nothing on stdout.
inline void expect_error(const CommandResult& result, int exit_code,
                         const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  const auto begin = result.err.find("saturate: error: ");
  ASSERT_NE(begin, std::string::npos) << result.err;
  EXPECT_EQ(count_lines(result.err.substr(begin)), 1) << result.err;
  for (const auto& part : parts)
    EXPECT_NE(result.err.find(part, begin), std::string::npos) << part << " in " << result.err;
}

inline std::vector<nlohmann::json> read_metrics(const std::string& folder) {
  std::istringstream lines(read_text(folder + "/metrics.jsonl"));
  std::vector<nlohmann::json> records;
  for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

// Losses of all records of a kind.
inline std::vector<double> losses(const std::string& folder, const std::string& kind) {
  std::vector<double> found;
  for (const auto& record : read_metrics(folder))
    if (record["kind"] == kind) found.push_back(record["loss"]);
  return found;
}

// A recipe that trains within a second: its path, in `dir`.
inline std::string write_small_recipe(const TempDir& dir, const std::string& source,
                                      const std::string& eval_source = "") {
  const std::string path = dir / "small.toml";
  write_file(path, "seed = 3\n[data]\nsource = \"" + source + "\"\neval_source = \"" + eval_source +
                       "\"\nthreads = 2\n[augment]\nsize = 16\ncrop = \"pad\"\n"
                       "[model]\nname = \"simple_cnn\"\n[optimizer]\nlr = 0.05\n"
                       "[train]\nbatch = 20\nepochs = 2\nthreads = 1\n[watch]\nevery = 1\n");
  return path;
}

inline const char* kSmallSynth = "synth:size=16,count=200,difficulty=0.1";
inline const char* kSmallSynthTest = "synth:size=16,count=50,difficulty=0.1,split=test";

}  // namespace saturate::testing
