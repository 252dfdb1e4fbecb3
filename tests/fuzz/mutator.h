// Random changes of a file, like a fuzzer's, the same in every run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "saturate/data/random.h"

namespace saturate::testing {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed, 0, 0, RandomUse::kSynthetic) {}

  std::string mutate(std::string text) {
    for (uint64_t n = 1 + random_.below(4); n > 0 && !text.empty(); --n) {
      const size_t at = place(text.size());
      switch (random_.below(6)) {
        case 0:
          text[at] = char(random_.next_u32());
          break;
        case 1:
          text[at] = char(text[at] ^ (1 << random_.below(8)));
          break;
        case 2:
          text.resize(at);
          break;
        case 3:
          text.insert(at, text.substr(place(text.size()), random_.below(600)));
          break;
        case 4:
          text.erase(at, random_.below(600));
          break;
        case 5:
          put_extreme(text, at);
          break;
      }
    }
    return text;
  }
  bool coin() { return random_.bernoulli(0.5); }
  // Below `bound`, which is above 0.
  size_t below(size_t bound) { return random_.below(bound); }

 private:
  // Headers are at both ends: most mutations are there.
  size_t place(size_t size) {
    const size_t near = random_.below(std::min<size_t>(size, 700));
    switch (random_.below(4)) {
      case 0:
        return random_.below(size);
      case 1:
        return size - 1 - near;
      default:
        return near;
    }
  }
  // A number at an end of its range, of 1 to 8 bytes, in either byte order.
  void put_extreme(std::string& text, size_t at) {
    constexpr uint64_t kExtremes[] = {
        0, 1, 0x7f, 0xff, 0xffff, 0x7fffffff, 0xffffffff, UINT64_MAX, UINT64_MAX - 63, 1u << 31};
    uint64_t value = kExtremes[random_.below(std::size(kExtremes))];
    const size_t bytes = size_t{1} << random_.below(4);
    for (size_t i = 0; i < bytes && at + i < text.size(); ++i) {
      const size_t shift = coin() ? i : bytes - 1 - i;
      text[at + i] = char(value >> (8 * shift));
    }
  }
  RandomStream random_;
};

}  // namespace saturate::testing
