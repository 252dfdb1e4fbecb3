#include <array>
#include <string_view>

#include "record/nvml.h"

namespace saturate {
namespace {

struct Peak {
  std::string_view part;    // of the name; the first match counts
  double half, tf32, fp32;  // TFLOP/s without sparsity
};

// NVIDIA's data sheets: "H200 Tensor Core GPU", "H100 Tensor Core GPU", "A100 Tensor Core GPU",
// "L40S", "L4 Tensor Core GPU" and "A10 Tensor Core GPU". Figures given with sparsity are halved.
constexpr std::array<Peak, 9> kPeaks = {{{"H200 NVL", 835.5, 417.5, 60},
                                         {"H200", 989.5, 494.5, 67},
                                         {"H100 PCIe", 756.5, 378, 51},
                                         {"H100 NVL", 835.5, 417.5, 60},
                                         {"H100", 989.5, 494.5, 67},
                                         {"A100", 312, 156, 19.5},
                                         {"L40S", 362, 183, 91.6},
                                         {"L4", 121, 60, 30.3},
                                         {"A10", 125, 62.5, 31.2}}};

// "A10" is in "A100-SXM4-80GB", but not as a word.
bool has_word(std::string_view text, std::string_view word) {
  const auto is_alnum = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_alnum(text[at - 1])) && (end == text.size() || !is_alnum(text[end])))
      return true;
  }
  return false;
}

}  // namespace

std::optional<double> peak_flop_per_s(const std::string& name, PrecisionMode mode) {
  for (const Peak& peak : kPeaks) {
    if (!has_word(name, peak.part)) continue;
    if (mode == PrecisionMode::kFp32) return peak.fp32 * 1e12;
    return (mode == PrecisionMode::kTf32 ? peak.tf32 : peak.half) * 1e12;
  }
  return std::nullopt;
}

}  // namespace saturate
