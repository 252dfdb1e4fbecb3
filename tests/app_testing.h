// Running the command as a user does.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
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

// The same after training: the summary is on stdout too.
inline void expect_failed_run(CommandResult result, int exit_code,
                              const std::vector<std::string>& parts) {
  EXPECT_TRUE(result.out.starts_with("failed at step")) << result.out;
  result.out.clear();
  expect_error(result, exit_code, parts);
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

// Expects two runs to have the same losses in their records of a kind, and at least one.
inline void expect_same_losses(const std::string& run, const std::string& other,
                               const std::string& kind) {
  const auto expected = losses(run, kind);
  EXPECT_FALSE(expected.empty()) << run << " has no losses of kind " << kind;
  EXPECT_EQ(losses(other, kind), expected) << kind << " of " << other << " and " << run;
}

// Every file's content, as a number, and time; but for the lock, which says who holds it.
inline std::map<std::string, std::string> folder_contents(const std::string& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename() != ".lock")
      found[entry.path()] = std::to_string(std::hash<std::string>()(read_text(entry.path()))) +
                            " of " +
                            std::to_string(entry.last_write_time().time_since_epoch().count());
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

// The checksum over all weights and optimizer state of a checkpoint, from its header.
inline std::string checksum(const std::string& checkpoint) {
  const std::string text = read_text(checkpoint), key = "\"crc32\":\"";
  const auto at = text.find(key);
  EXPECT_NE(at, std::string::npos) << checkpoint;
  return at == std::string::npos ? checkpoint : text.substr(at + key.size(), 8);
}

// So that a run of whole epochs looks as if it was interrupted before these steps.
inline void remove_checkpoints(const std::string& run, const std::vector<int>& steps) {
  for (const int step : steps) {
    char name[64];
    std::snprintf(name, sizeof name, "/checkpoints/step-%08d.safetensors", step);
    EXPECT_TRUE(std::filesystem::remove(run + name)) << run << name;
  }
}

// Starts the command without waiting for it.
inline pid_t start_saturate(const std::vector<std::string>& arguments, const std::string& log) {
  const pid_t child = fork();
  if (child != 0) return child;
  if (!freopen(log.c_str(), "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
  std::vector<char*> argv = {const_cast<char*>(kCommand.c_str())};
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(kCommand.c_str(), argv.data());
  _exit(98);
}

// The default limit of waits: long enough for a busy machine.
constexpr double kPatienceS = 240;

// Waits until a condition holds; false after `seconds`.
template <class Condition>
bool wait_until(const Condition& condition, double seconds = kPatienceS) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// The exit code of a process started by start_saturate; 128 + N if signal N ended it, -1 (and the
// process is killed) if it does not end within `seconds`.
inline int exit_code_of(pid_t child, double seconds = kPatienceS) {
  int status = 0;
  if (!wait_until([&] { return waitpid(child, &status, WNOHANG) == child; }, seconds)) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The processes whose parent is `parent`.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = read_text(entry.path() / "stat");
    const auto end = stat.rfind(')');
    if (end == std::string::npos) continue;
    char state = 0;
    pid_t of = 0;
    std::istringstream(stat.substr(end + 1)) >> state >> of;
    if (of == parent) found.push_back(pid_t(std::stol(name)));
  }
  return found;
}

inline const char* kSmallSynth = "synth:size=16,count=200,difficulty=0.1";
inline const char* kSmallSynthTest = "synth:size=16,count=50,difficulty=0.1,split=test";

// Whole runs of a small recipe.
class TrainingTest : public ::testing::Test {
 protected:
  // Runs into the folder `name` with --set for each override.
  CommandResult train(const std::string& name, const std::vector<std::string>& overrides = {}) {
    std::string arguments = "train " + recipe + " --out " + (dir / name);
    for (const auto& text : overrides) arguments += " --set '" + text + "'";
    return run_saturate(arguments);
  }

  TempDir dir;
  std::string recipe = write_small_recipe(dir, kSmallSynth, kSmallSynthTest);
};

}  // namespace saturate::testing
