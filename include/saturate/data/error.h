// SPDX-License-Identifier: BSD-3-Clause
// The only error type. Every user-visible failure is thrown as saturate::Error by fail(), and
// main() turns it into one line on stderr and the exit code of the kind:
//
//   saturate: error: WHAT (WHERE). TRY
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace saturate {

// The values are the process's exit codes, a contract for scripts.
enum class ErrorKind {
  kUsage = 2,  // bad command line or recipe
  kData = 3,   // bad or missing input data
  kRun = 4,    // the run itself failed: disk full, checkpoint unreadable, loss not finite, ...
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string what, std::string where, std::string remedy,
        std::source_location thrown_at);

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }
  // The reason only, without place and remedy.
  const std::string& reason() const { return reason_; }
  // The file, recipe key or rank concerned.
  const std::string& where() const { return where_; }
  // The remedy, an imperative sentence without a full stop.
  const std::string& remedy() const { return remedy_; }
  const std::source_location& thrown_at() const { return thrown_at_; }

 private:
  ErrorKind kind_;
  std::string reason_, where_, remedy_;
  std::source_location thrown_at_;
};

[[noreturn]] void fail(ErrorKind kind, std::string what, std::string where, std::string remedy,
                       std::source_location thrown_at = std::source_location::current());

}  // namespace saturate
