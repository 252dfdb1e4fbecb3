// Helpers of the image tests.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/data/image.h"
#include "tests/paths.h"

namespace saturate::testing {

inline std::string golden(const std::string& name) {
  return source_path("tests/goldens/image/" + name);
}

inline std::vector<std::byte> golden_input(const std::string& name) {
  return read_file(Env::posix(), golden("inputs/" + name));
}

inline Image decoded_input(const std::string& name) {
  Image image;
  Decoder().decode(golden_input(name), name, image);
  return image;
}

// The lines of a golden text file, each ready for >>.
inline std::vector<std::istringstream> golden_lines(const std::string& name) {
  std::ifstream file(golden(name));
  std::vector<std::istringstream> lines;
  for (std::string line; std::getline(file, line);) lines.emplace_back(line);
  return lines;
}

// Like Python's zlib.crc32, in eight hexadecimal digits.
inline std::string crc(std::span<const uint8_t> bytes) {
  char text[9];
  const auto value = crc32(0, bytes.data(), static_cast<uInt>(bytes.size()));
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>(value));
  return text;
}

// The Kolmogorov-Smirnov distance between `values` and the pairs threshold:share in the rest of
// `line`, the shares being at or below the thresholds.
inline double share_distance(std::vector<double> values, std::istringstream& line) {
  std::sort(values.begin(), values.end());
  double distance = 0;
  for (std::string pair; line >> pair;) {
    const size_t colon = pair.find(':');
    const double threshold = std::stod(pair), share = std::stod(pair.substr(colon + 1));
    const double limit = threshold + 1e-6 * std::abs(threshold);  // it was printed with 7 digits
    const auto below = std::upper_bound(values.begin(), values.end(), limit) - values.begin();
    distance = std::max(distance, std::abs(double(below) / double(values.size()) - share));
  }
  return distance;
}
// A distance that two samples of `n` from one distribution exceed once in a thousand times.
inline double share_limit(size_t n) {
  return 1.95 * std::sqrt(2.0 / double(n));
}

}  // namespace saturate::testing
