#include "saturate/data/augment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/fast_kernels.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// Python's round(): rounds halves to even, as in the default rounding mode.
int round_half_even(double value) {
  return static_cast<int>(std::nearbyint(value));
}

Box centred(int image_width, int image_height, int width, int height) {
  return {(image_width - width) / 2, (image_height - height) / 2, width, height};
}

bool takes_whole_image(CropKind kind) {
  return kind == CropKind::kNone || kind == CropKind::kPad || kind == CropKind::kLetterbox;
}

// The centred box with the size's ratio, `times` smaller than the largest one inside the image, or
// as large.
Box centre_crop(int width, int height, ImageSize size, double times) {
  if (!size.is_set()) size = 1;  // any square
  times = std::max(times, 1.0);
  const bool is_wider = int64_t{width} * size.height > int64_t{height} * size.width;
  double w = width / times, h = height / times;
  if (is_wider)
    w = h * (double(size.width) / size.height);
  else
    h = w * (double(size.height) / size.width);
  return centred(width, height, std::clamp(round_half_even(w), 1, width),
                 std::clamp(round_half_even(h), 1, height));
}

// Where an image fits inside the output with its ratio kept, centred; empty if it fills it.
Box letterbox(int width, int height, const ImageSize& size) {
  const bool is_wider = int64_t{width} * size.height > int64_t{height} * size.width;
  int w = size.width, h = size.height;
  if (is_wider)
    h = std::max(1, round_half_even(double(height) * w / width));
  else
    w = std::max(1, round_half_even(double(width) * h / height));
  if (w == size.width && h == size.height) return {};
  return centred(size.width, size.height, w, h);
}

int draw_shift(RandomStream& random, int padding) {
  return static_cast<int>(random.below(2 * static_cast<uint64_t>(padding) + 1)) - padding;
}

void copy_padded_pixels(const uint8_t* row, int width, int from, int to, PadMode mode,
                        uint8_t* out) {
  for (int x = from; x < to; ++x, out += 3) {
    const int at = padded_index(x, width, mode);
    if (at < 0) {
      std::memset(out, 0, 3);
    } else {
      std::memcpy(out, row + ptrdiff_t{at} * 3, 3);
    }
  }
}

void flip_rows(uint8_t* pixels, int width, int height) {
  for (int y = 0; y < height; ++y, pixels += ptrdiff_t{width} * 3) {
    for (int left = 0, right = width - 1; left < right; ++left, --right)
      std::swap_ranges(pixels + left * 3, pixels + left * 3 + 3, pixels + right * 3);
  }
}

void cut_and_resize(const Image& in, const Box& box, const ImageSize& size, Resizer& resizer,
                    uint8_t* out) {
  if (box.width == size.width && box.height == size.height) {
    crop_padded(in, box, PadMode::kZero, out);
  } else {
    resizer.resize(in, box, size.width, size.height, out);
  }
}

// Writes `image` to the box of the output, and `level` around it.
void place_in(const Box& box, const Image& image, const std::array<uint8_t, 3>& level,
              const ImageSize& size, uint8_t* out) {
  for (ptrdiff_t i = 0; i < size.area(); ++i) std::copy(level.begin(), level.end(), out + i * 3);
  for (int y = 0; y < box.height; ++y)
    std::memcpy(out + (ptrdiff_t{box.y + y} * size.width + box.x) * 3, image.row(y),
                size_t(box.width) * 3);
}

}  // namespace

Box random_resized_crop(RandomStream& random, int width, int height, double scale_min,
                        double scale_max, double ratio_min, double ratio_max) {
  const double area = double(width) * height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(scale_min, scale_max);
    const double ratio = std::exp(random.uniform(std::log(ratio_min), std::log(ratio_max)));
    const int w = round_half_even(std::sqrt(target * ratio));
    const int h = round_half_even(std::sqrt(target / ratio));
    if (w <= 0 || w > width || h <= 0 || h > height) continue;
    const int y = static_cast<int>(random.below(static_cast<uint64_t>(height - h + 1)));
    const int x = static_cast<int>(random.below(static_cast<uint64_t>(width - w + 1)));
    return {x, y, w, h};
  }
  int w = width, h = height;
  const double ratio = double(width) / height;
  if (ratio < ratio_min) h = round_half_even(w / ratio_min);
  if (ratio > ratio_max) w = round_half_even(h * ratio_max);
  // torchvision lets rounding and extreme ratios make an empty or overlarge box; this does not.
  return centred(width, height, std::clamp(w, 1, width), std::clamp(h, 1, height));
}

SampleTransform draw_transform(const AugmentOptions& options, RandomStream& random, int width,
                               int height) {
  SampleTransform transform = eval_transform(options, width, height);
  if (options.crop == CropKind::kRandomResized)
    transform.crop = random_resized_crop(random, width, height, options.scale_min,
                                         options.scale_max, options.ratio_min, options.ratio_max);
  if (options.crop == CropKind::kPad) {
    transform.shift_y = draw_shift(random, options.padding);
    transform.shift_x = draw_shift(random, options.padding);
  }
  transform.flip = random.bernoulli(options.flip);
  return transform;
}

SampleTransform eval_transform(const AugmentOptions& options, int width, int height) {
  SampleTransform transform;
  transform.crop = {0, 0, width, height};
  if (options.crop == CropKind::kLetterbox)
    transform.fitted = letterbox(width, height, options.size);
  if (!takes_whole_image(options.crop))
    transform.crop = centre_crop(width, height, options.size, options.eval_resize);
  return transform;
}

void crop_padded(const Image& in, const Box& box, PadMode mode, uint8_t* out) {
  // Columns [inside, outside) of the box overlap the image.
  const int inside = std::clamp(-box.x, 0, box.width);
  const int outside = std::clamp(in.width - box.x, inside, box.width);
  const size_t row_bytes = size_t(box.width) * 3;
  for (int y = 0; y < box.height; ++y, out += row_bytes) {
    const int source_y = padded_index(box.y + y, in.height, mode);
    if (source_y < 0) {
      std::memset(out, 0, row_bytes);
      continue;
    }
    const uint8_t* row = in.row(source_y);
    copy_padded_pixels(row, in.width, box.x, box.x + inside, mode, out);
    if (outside > inside)
      std::memcpy(out + ptrdiff_t{inside} * 3, row + ptrdiff_t{box.x + inside} * 3,
                  size_t(outside - inside) * 3);
    copy_padded_pixels(row, in.width, box.x + outside, box.x + box.width, mode,
                       out + ptrdiff_t{outside} * 3);
  }
}

void apply_transform(const AugmentOptions& options, const SampleTransform& transform,
                     const Image& in, Resizer& resizer, uint8_t* out) {
  const ImageSize& size = options.size;
  const Box shifted = {transform.shift_x, transform.shift_y, size.width, size.height};
  if (const Box& fitted = transform.fitted; fitted.width > 0) {
    Image& resized = resizer.scratch();
    resized.resize(fitted.width, fitted.height);
    cut_and_resize(in, transform.crop, {fitted.height, fitted.width}, resizer,
                   resized.pixels.data());
    place_in(fitted, resized, mean_levels(options), size, out);
  } else if (shifted.x == 0 && shifted.y == 0) {
    cut_and_resize(in, transform.crop, size, resizer, out);
  } else if (transform.crop == Box{0, 0, size.width, size.height} && in.width == size.width &&
             in.height == size.height) {
    crop_padded(in, shifted, options.pad_mode, out);
  } else {
    Image& resized = resizer.scratch();
    resized.resize(size.width, size.height);
    cut_and_resize(in, transform.crop, size, resizer, resized.pixels.data());
    crop_padded(resized, shifted, options.pad_mode, out);
  }
  if (transform.flip) flip_rows(out, size.width, size.height);
}

std::array<uint8_t, 3> mean_levels(const AugmentOptions& options) {
  std::array<uint8_t, 3> levels{};
  for (size_t c = 0; c < 3; ++c)
    levels[c] = uint8_t(std::clamp(std::nearbyint(255 * options.mean[c]), 0.0, 255.0));
  return levels;
}

// fp16's largest number: training cannot use larger values.
constexpr double kMostNormalized = 65504;

Normalize make_normalize(const AugmentOptions& options) {
  const auto check = [](bool right, const char* key, const char* what) {
    if (!right)
      fail(ErrorKind::kUsage, what, key,
           "Give three values, for red, green and blue, those of std positive");
  };
  check(options.mean.size() == 3, "augment.mean", "not three values");
  check(options.std.size() == 3, "augment.std", "not three values");
  Normalize normalize{};
  for (size_t c = 0; c < 3; ++c) {
    check(options.std[c] > 0, "augment.std", "a value is not positive");
    const double black = -options.mean[c] / options.std[c], white = black + 1 / options.std[c];
    if (!(std::max(std::abs(black), std::abs(white)) <= kMostNormalized))
      fail(ErrorKind::kUsage,
           fmt::format("normalised pixels would lie between {:.3g} and {:.3g}", black, white),
           1 / options.std[c] > kMostNormalized ? "augment.std" : "augment.mean",
           "Give mean and standard deviation of values from 0 to 1, not to 255");
    normalize.scale[c] = static_cast<float>(1 / (255 * options.std[c]));
    normalize.shift[c] = static_cast<float>(-options.mean[c] / options.std[c]);
  }
  return normalize;
}

// There are only 256 levels per channel: each is rounded once, into a table. Channel c of pixel i
// goes to out[i * pixel + c * channel].
void normalize_float16(const Normalize& normalize, std::span<const uint8_t> in, size_t pixel,
                       size_t channel, uint16_t* out) {
  uint16_t value[3][256];
  for (int c = 0; c < 3; ++c)
    for (int level = 0; level < 256; ++level)
      value[c][level] = to_float16(
          normalize_value(static_cast<uint8_t>(level), normalize.scale[c], normalize.shift[c]));
  for (size_t i = 0; 3 * i + 3 <= in.size(); ++i)
    for (size_t c = 0; c < 3; ++c) out[i * pixel + c * channel] = value[c][in[3 * i + c]];
}

void convert_pixels(const PixelFormat& format, std::span<const uint8_t> in, std::byte* out) {
  const FastKernels& kernels = fast_kernels();
  switch (format.type) {
    case PixelType::kUint8:
      std::memcpy(out, in.data(), in.size());
      return;
    case PixelType::kBfloat16:
      kernels.normalize_bfloat16(format.normalize, in.data(), in.size(),
                                 reinterpret_cast<uint16_t*>(out));
      return;
    case PixelType::kFloat16:
      return normalize_float16(format.normalize, in, 3, 1, reinterpret_cast<uint16_t*>(out));
    case PixelType::kFloat32:
      kernels.normalize(format.normalize, in.data(), in.size(), reinterpret_cast<float*>(out));
  }
}

void convert_to_planes(const PixelFormat& format, std::span<const uint8_t> in, std::byte* out) {
  const FastKernels& kernels = fast_kernels();
  const size_t pixels = in.size() / 3;
  auto* const halves = reinterpret_cast<uint16_t*>(out);
  if (format.type == PixelType::kFloat32)
    kernels.normalize_planes(format.normalize, in.data(), pixels, reinterpret_cast<float*>(out));
  else if (format.type == PixelType::kBfloat16)
    kernels.normalize_planes_bfloat16(format.normalize, in.data(), pixels, halves);
  else
    normalize_float16(format.normalize, in, 1, pixels, halves);
}

void normalize_pixels(const Normalize& normalize, std::span<const uint8_t> in, float* out) {
  fast_kernels().normalize(normalize, in.data(), in.size(), out);
}

}  // namespace saturate
