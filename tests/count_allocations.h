// Counts calls of operator new, in the program of the torch-free tests.
#pragma once

#include <cstddef>
#include <optional>

namespace saturate::testing {

// Calls of operator new on this thread so far; 0 under a sanitizer, which replaces operator new.
std::optional<size_t> allocation_count();

}  // namespace saturate::testing
