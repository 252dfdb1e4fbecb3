// Texts for messages about differences between ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace saturate {

// "rank 1", "ranks 1, 3 and 4 more"
std::string ranks_text(const std::vector<int>& ranks);

// The first lines in which two texts differ; "nothing" for a text that has ended.
std::pair<std::string, std::string> first_difference(const std::string& one,
                                                     const std::string& other);

}  // namespace saturate
