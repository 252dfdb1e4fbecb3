#pragma once

#include <string>

namespace saturate {

// Whether any process holds Env::lock() of this file. Writes nothing and needs only read access; a
// file that is missing or unreadable counts as free. A process that locks the file at this moment
// waits for the check and is not refused.
bool is_locked(const std::string& path);

}  // namespace saturate
