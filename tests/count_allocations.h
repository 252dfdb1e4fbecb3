// Counts operator new, in the program of the torch-free tests.
#pragma once

#include <cstddef>
#include <optional>

namespace saturate::testing {

// Calls of operator new on this thread so far; nothing under a sanitizer, which needs its own.
std::optional<size_t> allocation_count();

}  // namespace saturate::testing
