#pragma once

#include <string>

namespace saturate {

// Whether somebody holds Env::lock() of this file. Writes nothing, and needs no more than to read
// it; a file that is not there, or cannot be read, counts as free. Whoever locks the file in this
// moment waits for it, and is not refused.
bool is_locked(const std::string& path);

}  // namespace saturate
