// Times that the libraries below LibTorch report: oneDNN (convolutions, bf16 products) and
// MKL (fp32 products).
#pragma once

#include <string>

#include "advise/step_bench.h"

namespace saturate {

class Env;

// While it lives, both print every call to stdout, and everything that this process prints there
// goes to a file. For one at a time.
class LibraryOutput {
 public:
  // Fails with kRun where the file cannot be written.
  explicit LibraryOutput(std::string path);
  ~LibraryOutput();
  LibraryOutput(const LibraryOutput&) = delete;
  LibraryOutput& operator=(const LibraryOutput&) = delete;

  // Everything printed so far.
  std::string text(Env& env) const;

 private:
  const std::string path_;
  int stdout_;  // the real one
};

}  // namespace saturate
