// Where the project's files are. In one source of its own, so that every other test compiles to the
// same object in any checkout and the compiler's cache can serve it.
#pragma once

#include <string>

namespace saturate::testing {

// The path of a file in the project, such as "docs/recipe.md".
std::string source_path(const std::string& file);
// The path of a file in the folder of real data beside the project, which may be absent.
std::string shared_path(const std::string& file);
// The command `saturate`; empty in the tests of the torch-free modules.
extern const std::string kCommand;
// A library in place of NVIDIA's; empty likewise.
extern const std::string kFakeNvml;
// Whether what is tested was built with AddressSanitizer or ThreadSanitizer; a test itself need not
// be.
extern const bool kSanitized;

}  // namespace saturate::testing
