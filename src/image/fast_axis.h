// Filters of one axis: of any resize, and of the fast path's, from the samples of a component's
// plane, at its own resolution, to output pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace saturate {

// The filter of all resizing: a triangle, widened by the reduction factor, like Pillow's BILINEAR
// and torchvision's antialias=True. One axis: output i is the sum over k < taps of
// weight[i * taps + k] times sample first[i] + k. Reuse avoids allocations.
struct TriangleFilter {
  int taps = 0;
  std::vector<int> first;       // [out]
  std::vector<double> weight;   // [out][taps], those of each output add up to 1
  std::vector<double> scratch;  // of make_triangle_filter()
};

// The filter that resizes the interval [begin, begin + length) of an axis, in fractional samples,
// to `out` samples, reading only [low, high). Sample j covers [j, j + 1). REQUIRES: low <= begin <
// begin + length <= high, up to a fraction of a sample.
void make_triangle_filter(double begin, double length, int low, int high, int out,
                          TriangleFilter& filter);

// A weight of 1, limited to 16 bits.
constexpr int kFastWeightOne = 65535;
// More taps would lose precision (image/fast_kernels.h).
constexpr int kFastMaxTaps = 64;

// Specification of one resize.
struct FastAxisSpec {
  int begin, length;  // the crop, in pixels of the image
  int out;            // pixels of the output
  int num, den;       // samples of the plane per pixel of the image: num / den, at most 1
  int samples;        // of the whole plane
  bool doubled;       // num / den is 1 / 2, and the exact path upsamples the plane before it crops
  bool mirrored;      // the last output pixel comes first
  bool repeated = false;  // the exact path repeats each sample den / num times, a whole number
};

// Output i is the sum over k < taps of weight[i * taps + k] / 65536 times sample first[i] + k.
struct FastAxis {
  int taps = 0;
  std::vector<int> first;        // [out]
  std::vector<uint16_t> weight;  // [out][taps]
  int low = 0, high = 0;         // samples in use: [low, high)
};

// Builds axes; keeps scratch memory, and the last filters.
class FastAxisMaker {
 public:
  // False if the fast path does not support it: too many taps.
  bool make(const FastAxisSpec& spec, FastAxis& axis);

 private:
  struct Kept {
    double begin = 0, length = 0;
    int low = 0, high = 0, out = 0;
    TriangleFilter filter;
  };
  const TriangleFilter& triangle(double begin, double length, int low, int high, int out);
  template <class First, class Add>
  void fold(const TriangleFilter& from, int out, const First& first, const Add& add);
  void double_taps(const TriangleFilter& from, const FastAxisSpec& spec);
  void repeat_taps(const TriangleFilter& from, const FastAxisSpec& spec);

  Kept kept_[2];     // of luma, across and down
  size_t next_ = 0;  // of kept_, to be replaced
  TriangleFilter folded_;
};

}  // namespace saturate
