// Paths of the project's files. In one separate source, so that every other test compiles to the
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
// A library that replaces NVIDIA's; empty likewise.
extern const std::string kFakeNvml;
// Whether the tested code was built with AddressSanitizer or ThreadSanitizer; the test itself may
// be built without.
extern const bool kSanitized;

}  // namespace saturate::testing
