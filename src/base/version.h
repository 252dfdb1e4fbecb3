#pragma once

namespace saturate {
// From CMakeLists.txt's project().
inline constexpr const char* kVersion = SATURATE_VERSION;
}  // namespace saturate
