#include "advise/library_times.h"

#include <ATen/native/verbose_wrapper.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

std::string field(const std::string& line, size_t index) {
  size_t from = 0;
  for (; index > 0 && from != std::string::npos; --index) {
    from = line.find(',', from);
    if (from != std::string::npos) ++from;
  }
  if (from == std::string::npos) return "";
  return line.substr(from, line.find(',', from) - from);
}

// "onednn_verbose,v1,primitive,exec,cpu,convolution,IMPLEMENTATION,...,MILLISECONDS"
void add_onednn(const std::string& line, LibraryTimes& times) {
  if (field(line, 3) != "exec") return;
  const double seconds = std::atof(line.c_str() + line.rfind(',') + 1) * 1e-3;
  times.onednn_s += seconds;
  times.kinds[field(line, 5)] += seconds;
}

// "MKL_VERBOSE SGEMM(N,T,...) 12.34us CNR:OFF ...", unlike its first line, which has words before a
// bracket.
void add_mkl(const std::string& line, LibraryTimes& times) {
  const size_t name = line.find(' '), open = line.find_first_of(" (", name + 1),
               close = line.find(") ");
  if (close == std::string::npos || line[open] != '(') return;
  char* unit = nullptr;
  const double value = std::strtod(line.c_str() + close + 2, &unit);
  const double factor = *unit == 'n' ? 1e-9 : *unit == 'u' ? 1e-6 : *unit == 'm' ? 1e-3 : 1;
  times.mkl_s += value * factor;
  times.kinds[line.substr(name + 1, open - name - 1)] += value * factor;
}

void set_verbose(bool on) {
  torch::verbose::_mkldnn_set_verbose(on ? 1 : 0);
  torch::verbose::_mkl_set_verbose(on ? 1 : 0);
}

}  // namespace

LibraryTimes parse_library_times(const std::string& text) {
  LibraryTimes times;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("onednn_verbose,")) add_onednn(line, times);
    if (line.starts_with("MKL_VERBOSE ")) add_mkl(line, times);
  }
  return times;
}

LibraryOutput::LibraryOutput(std::string path) : path_(std::move(path)) {
  std::fflush(stdout);
  const int file = open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0)
    fail(ErrorKind::kRun, "the file cannot be written", path_,
         "Look at the folder's space and rights");
  stdout_ = dup(STDOUT_FILENO);
  dup2(file, STDOUT_FILENO);
  close(file);
  set_verbose(true);
}

LibraryOutput::~LibraryOutput() {
  set_verbose(false);
  std::fflush(stdout);
  dup2(stdout_, STDOUT_FILENO);
  close(stdout_);
}

std::string LibraryOutput::text(Env& env) const {
  std::fflush(stdout);
  const auto bytes = read_file(env, path_);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace saturate
