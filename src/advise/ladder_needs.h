// Requirements of a rung on the machine.
#pragma once

#include <string>
#include <string_view>

#include "advise/ladder.h"

namespace saturate {

// The prefix of a requirement that this version cannot meet, in words.
inline constexpr std::string_view kFeature = "feature: ";

// "cuda", "cuda>=2" or "feature: WORDS"; fails with kUsage on anything else.
void check_need(const std::string& need, const std::string& where);

}  // namespace saturate
