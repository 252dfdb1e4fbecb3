// What a rung can ask of the machine.
#pragma once

#include <string>
#include <string_view>

#include "saturate/ladder.h"

namespace saturate {

// What stands before what this version cannot do, in words.
inline constexpr std::string_view kFeature = "feature: ";

// "cuda", "cuda>=2" or "feature: WORDS"; fails with kUsage on anything else.
void check_need(const std::string& need, const std::string& where);

}  // namespace saturate
