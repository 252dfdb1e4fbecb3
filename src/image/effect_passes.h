// Applies a list of effects to one image with a team of threads: one CPU thread, or a CUDA block,
// running the same code. Each effect is a sequence of passes with barriers between them; effects
// that are not in the list cost nothing.
//
// Team: first() and step() divide the work, wait() is a barrier that makes all writes visible,
// increment(counter) is atomic within the team.
#pragma once

#include "image/effect_pixel.h"
#include "saturate/data/effects.h"

namespace saturate {

// The team's shared state for its image.
struct EffectState {
  uint32_t histogram[3][256];  // pixels of each level, by channel
  uint8_t table[3][256];       // the new level of each, by channel
  float blur[2 * kMaxBlurRadius + 1];
};

// A team of one thread.
struct LoneTeam {
  static constexpr int first() { return 0; }
  static constexpr int step() { return 1; }
  static void wait() {}
  static void increment(uint32_t& counter) { ++counter; }
};

// Effects that map a channel's level to a level, independent of the pixel's position.
SATURATE_HOST_DEVICE constexpr bool is_table(EffectKind kind) {
  return kind == EffectKind::kBrightness || kind == EffectKind::kContrast ||
         kind == EffectKind::kPosterize || kind == EffectKind::kSolarize ||
         kind == EffectKind::kAutocontrast || kind == EffectKind::kEqualize;
}
SATURATE_HOST_DEVICE constexpr bool needs_histogram(EffectKind kind) {
  return kind == EffectKind::kContrast || kind == EffectKind::kAutocontrast ||
         kind == EffectKind::kEqualize;
}
// Effects that read other pixels than the one they write.
SATURATE_HOST_DEVICE constexpr bool needs_neighbours(EffectKind kind) {
  return kind == EffectKind::kAffine || kind == EffectKind::kBlur || kind == EffectKind::kSharpness;
}

// ---- Memory ------------------------------------------------------------------------------------
//
// A range of memory is split into aligned chunks, each of which a GPU loads or stores in one
// access, and single values before and after them.

// The bytes of one access. REQUIRES: aligned to kBytes.
template <int kBytes>
struct [[gnu::may_alias]] alignas(kBytes) Piece {
  uint32_t word[kBytes / 4];  // the lowest byte first
};
constexpr int kWidestAccess = 16;  // bytes

template <int kBytes>
SATURATE_HOST_DEVICE inline Piece<kBytes> load_piece(const void* from) {
  return *static_cast<const Piece<kBytes>*>(from);
}
template <int kBytes>
SATURATE_HOST_DEVICE inline void store_piece(const Piece<kBytes>& piece, void* to) {
  *static_cast<Piece<kBytes>*>(to) = piece;
}
// Byte k of a piece.
template <int kBytes>
SATURATE_HOST_DEVICE inline uint8_t byte_of(const Piece<kBytes>& piece, int k) {
  return static_cast<uint8_t>(piece.word[k / 4] >> 8 * (k % 4));
}

SATURATE_HOST_DEVICE inline bool is_multiple(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<unsigned>(bytes) == 0;
}
// Bytes from `pointer` to the next multiple of kWidestAccess.
SATURATE_HOST_DEVICE inline int bytes_before(const void* pointer) {
  return static_cast<int>(-reinterpret_cast<uintptr_t>(pointer) % kWidestAccess);
}

// Divides values [0, count) among a team: chunk(i) for values [i, i + kValues), the first chunk
// starting at `head`, and one(i) for each value before the first and after the last chunk.
template <int kValues, class Team, class One, class Chunk>
SATURATE_HOST_DEVICE void in_chunks(const Team& team, int count, int head, const One& one,
                                    const Chunk& chunk) {
  const int first = head < count ? head : count;
  const int last = first + (count - first) / kValues * kValues;
  for (int i = team.first(); i < first; i += team.step()) one(i);
  for (int i = first + team.first() * kValues; i < last; i += team.step() * kValues) chunk(i);
  for (int i = last + team.first(); i < count; i += team.step()) one(i);
}

// ---- Tables ------------------------------------------------------------------------------------

template <class Team>
SATURATE_HOST_DEVICE void add_levels(const Team& team, const uint8_t* in, int values,
                                     uint32_t histogram[3][256]) {
  in_chunks<kWidestAccess>(
      team, values, bytes_before(in), [&](int i) { team.increment(histogram[i % 3][in[i]]); },
      [&](int i) {
        const auto levels = load_piece<kWidestAccess>(in + i);
        uint32_t* const of[3] = {histogram[i % 3], histogram[(i + 1) % 3], histogram[(i + 2) % 3]};
        for (int k = 0; k < kWidestAccess; ++k) team.increment(of[k % 3][byte_of(levels, k)]);
      });
}

template <class Team>
SATURATE_HOST_DEVICE void count_levels(Team& team, const uint8_t* in, int pixels,
                                       EffectState& state) {
  for (int i = team.first(); i < 3 * 256; i += team.step()) state.histogram[i / 256][i % 256] = 0;
  team.wait();
  add_levels(team, in, pixels * 3, state.histogram);
  team.wait();
}

// An integer sum, so that the order in which threads counted does not matter.
SATURATE_HOST_DEVICE inline float mean_grey(const EffectState& state, int pixels) {
  double mean[3];
  for (int c = 0; c < 3; ++c) {
    int64_t sum = 0;
    for (int v = 0; v < 256; ++v) sum += int64_t{v} * state.histogram[c][v];
    mean[c] = double(sum) / pixels;
  }
  return static_cast<float>(mean[0] * 0.2989 + mean[1] * 0.587 + mean[2] * 0.114);
}

SATURATE_HOST_DEVICE inline void make_stretch_table(const uint32_t* histogram, uint8_t* table) {
  int low = 0, high = 255;
  while (low < 255 && histogram[low] == 0) ++low;
  while (high > 0 && histogram[high] == 0) --high;
  const bool flat = low >= high;
  for (int v = 0; v < 256; ++v)
    table[v] =
        flat ? static_cast<uint8_t>(v)
             : to_level(static_cast<float>(v - low) * 255.0f / static_cast<float>(high - low));
}

// Pillow's ImageOps.equalize.
SATURATE_HOST_DEVICE inline void make_equalize_table(const uint32_t* histogram, int pixels,
                                                     uint8_t* table) {
  int high = 255;
  while (high > 0 && histogram[high] == 0) --high;
  const int64_t step = (pixels - int64_t{histogram[high]}) / 255;
  int64_t below = step / 2;
  for (int v = 0; v < 256; ++v) {
    const int64_t level = step == 0 ? v : below / step;
    table[v] = static_cast<uint8_t>(level < 255 ? level : 255);
    below += histogram[v];
  }
}

SATURATE_HOST_DEVICE inline uint8_t solarized(int level, float threshold) {
  return static_cast<uint8_t>(static_cast<float>(level) >= threshold ? 255 - level : level);
}

// The new level of `level` under a table effect other than kAutocontrast and kEqualize. `mean`: the
// image's mean grey under kContrast, else 0: brightness is the distance from black.
SATURATE_HOST_DEVICE inline uint8_t mapped_level(const Effect& effect, float mean, int level) {
  const float value = effect.value[0];
  if (effect.kind == EffectKind::kSolarize) return solarized(level, value);
  if (effect.kind == EffectKind::kPosterize) {
    const int dropped = 8 - static_cast<int>(value);
    return static_cast<uint8_t>(level >> dropped << dropped);
  }
  return to_level(blended(static_cast<float>(level), mean, value));
}

SATURATE_HOST_DEVICE inline void make_table(const Effect& effect, const EffectState& state,
                                            int pixels, int channel, uint8_t* table) {
  const uint32_t* histogram = state.histogram[channel];
  if (effect.kind == EffectKind::kAutocontrast) return make_stretch_table(histogram, table);
  if (effect.kind == EffectKind::kEqualize) return make_equalize_table(histogram, pixels, table);
  const float mean = effect.kind == EffectKind::kContrast ? mean_grey(state, pixels) : 0.0f;
  for (int v = 0; v < 256; ++v) table[v] = mapped_level(effect, mean, v);
}

template <class Team>
SATURATE_HOST_DEVICE void map_levels(const Team& team, const uint8_t table[3][256], int values,
                                     uint8_t* image) {
  in_chunks<kWidestAccess>(
      team, values, bytes_before(image), [&](int i) { image[i] = table[i % 3][image[i]]; },
      [&](int i) {
        const auto levels = load_piece<kWidestAccess>(image + i);
        const uint8_t* const of[3] = {table[i % 3], table[(i + 1) % 3], table[(i + 2) % 3]};
        Piece<kWidestAccess> mapped{};
        for (int k = 0; k < kWidestAccess; ++k)
          mapped.word[k / 4] |= uint32_t{of[k % 3][byte_of(levels, k)]} << 8 * (k % 4);
        store_piece(mapped, image + i);
      });
}

template <class Team>
SATURATE_HOST_DEVICE void run_table(Team& team, const Effect& effect, int pixels,
                                    EffectState& state, uint8_t* image) {
  if (needs_histogram(effect.kind)) count_levels(team, image, pixels, state);
  for (int c = team.first(); c < 3; c += team.step())
    make_table(effect, state, pixels, c, state.table[c]);
  team.wait();
  map_levels(team, state.table, pixels * 3, image);
}

// ---- Pixels ------------------------------------------------------------------------------------

SATURATE_HOST_DEVICE inline void recolour(const Effect& effect, uint8_t* pixel) {
  const Rgb in{static_cast<float>(pixel[0]), static_cast<float>(pixel[1]),
               static_cast<float>(pixel[2])};
  Rgb out = in;
  if (effect.kind == EffectKind::kSaturation) out = with_saturation(in, effect.value[0]);
  if (effect.kind == EffectKind::kHue) out = with_hue(in, effect.value[0]);
  if (effect.kind == EffectKind::kGrey) out.r = out.g = out.b = grey_of(in.r, in.g, in.b);
  store_levels(out, pixel);
}

template <class Team>
SATURATE_HOST_DEVICE void run_recolour(Team& team, const Effect& effect, int pixels,
                                       uint8_t* image) {
  for (int i = team.first(); i < pixels; i += team.step())
    recolour(effect, image + ptrdiff_t{i} * 3);
}

template <class Team>
SATURATE_HOST_DEVICE void run_erase(Team& team, const Effect& effect, int pitch, uint8_t* image) {
  const int x = static_cast<int>(effect.value[0]), y = static_cast<int>(effect.value[1]);
  const int width = static_cast<int>(effect.value[2]), height = static_cast<int>(effect.value[3]);
  for (int i = team.first(); i < width * height; i += team.step()) {
    uint8_t* pixel = image + (ptrdiff_t{y + i / width} * pitch + x + i % width) * 3;
    for (int c = 0; c < 3; ++c) pixel[c] = static_cast<uint8_t>(effect.value[4 + c]);
  }
}

// lowbias32 by Chris Wellons, a bijection: https://nullprogram.com/blog/2018/07/31/
SATURATE_HOST_DEVICE constexpr uint32_t mixed_bits(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 0x7feb352dU;
  bits = (bits ^ bits >> 15) * 0x846ca68bU;
  return bits ^ bits >> 16;
}

SATURATE_HOST_DEVICE constexpr int count_ones(uint32_t bits) {
  bits -= bits >> 1 & 0x55555555U;
  bits = (bits & 0x33333333U) + (bits >> 2 & 0x33333333U);
  return static_cast<int>(((bits + (bits >> 4)) & 0x0f0f0f0fU) * 0x01010101U >> 24);
}

// Standard normal noise for each `place`: the ones among 64 random bits, a binomial number, plus a
// uniform number from -1/2 to 1/2. In integers, so that a GPU gives the same as a CPU; its
// distribution function differs from the normal one's by less than 0.002.
SATURATE_HOST_DEVICE inline float normal_noise(uint32_t seed, uint32_t place) {
  const uint32_t a = mixed_bits(seed ^ mixed_bits(place)), b = mixed_bits(a + 0x9e3779b9U),
                 c = mixed_bits(b + 0x9e3779b9U);
  const float uniform = static_cast<float>(c >> 8) * 0x1p-24f - 0.5f;
  const float sum = static_cast<float>(count_ones(a) + count_ones(b) - 32) + uniform;
  return sum * 0.24935149f;  // 1 / sqrt(16 + 1 / 12)
}

SATURATE_HOST_DEVICE inline void add_noise(const Effect& effect, int x, int y, uint8_t* pixel) {
  const uint32_t seed =
      static_cast<uint32_t>(effect.value[1]) | static_cast<uint32_t>(effect.value[2]) << 16;
  const uint32_t place = (static_cast<uint32_t>(y) << 14 | static_cast<uint32_t>(x)) << 2;
  for (uint32_t c = 0; c < 3; ++c)
    pixel[c] =
        to_level(static_cast<float>(pixel[c]) + effect.value[0] * normal_noise(seed, place | c));
}

// Does to pixel (x, y) the same as run_table, run_recolour, run_erase or run_noise. REQUIRES:
// neither needs_histogram() nor needs_neighbours().
SATURATE_HOST_DEVICE inline void change_pixel(const Effect& effect, int x, int y, uint8_t* pixel) {
  if (effect.kind == EffectKind::kErase) {
    const int across = x - static_cast<int>(effect.value[0]);
    const int down = y - static_cast<int>(effect.value[1]);
    if (across < 0 || across >= static_cast<int>(effect.value[2]) || down < 0 ||
        down >= static_cast<int>(effect.value[3]))
      return;
    for (int c = 0; c < 3; ++c) pixel[c] = static_cast<uint8_t>(effect.value[4 + c]);
  } else if (effect.kind == EffectKind::kNoise) {
    add_noise(effect, x, y, pixel);
  } else if (is_table(effect.kind)) {
    for (int c = 0; c < 3; ++c) pixel[c] = mapped_level(effect, 0.0f, pixel[c]);
  } else {
    recolour(effect, pixel);
  }
}

// The column and row of a thread's next pixel, without a division per pixel.
struct Cursor {
  int width, x, y;
  SATURATE_HOST_DEVICE Cursor(int row, int first) : width(row), x(first % row), y(first / row) {}
  SATURATE_HOST_DEVICE void advance(int step) {
    for (x += step; x >= width; x -= width) ++y;
  }
};

template <class Team>
SATURATE_HOST_DEVICE void run_noise(Team& team, const Effect& effect, const ImageSize& size,
                                    uint8_t* image) {
  Cursor at(size.width, team.first());
  for (int i = team.first(); i < size.area(); i += team.step(), at.advance(team.step()))
    add_noise(effect, at.x, at.y, image + ptrdiff_t{i} * 3);
}

// ---- Neighbours --------------------------------------------------------------------------------

template <class Team>
SATURATE_HOST_DEVICE void run_affine(Team& team, const Effect& effect, const ImageSize& size,
                                     const uint8_t* in, uint8_t* out) {
  Cursor at(size.width, team.first());
  for (int i = team.first(); i < size.area(); i += team.step(), at.advance(team.step())) {
    const SourcePoint from = affine_place(effect.value, size, at.x, at.y);
    store_levels(sample_bilinear(in, size, from), out + ptrdiff_t{i} * 3);
  }
}

// Blurs rows first, into `rows` [height, width, 3], then columns.
template <class Team>
SATURATE_HOST_DEVICE void run_blur(Team& team, const Effect& effect, const ImageSize& size,
                                   const uint8_t* in, EffectState& state, float* rows,
                                   uint8_t* out) {
  const int radius = blur_radius(effect.value[0], size.shorter()), values = size.area() * 3;
  const int pitch = size.width * 3;
  if (team.first() == 0) make_blur_weights(effect.value[0], radius, state.blur);
  team.wait();
  for (int i = team.first(); i < values; i += team.step()) {
    const int in_row = i % pitch;
    rows[i] = blurred_across(state.blur, radius, in + (i - in_row) + i % 3, size.width, in_row / 3);
  }
  team.wait();
  for (int i = team.first(); i < values; i += team.step()) {
    const int y = i / pitch;
    float sum = 0.0f;
    for (int k = -radius; k <= radius; ++k)
      sum += state.blur[k + radius] *
             rows[ptrdiff_t{mirrored(y + k, size.height)} * pitch + i % pitch];
    out[i] = to_level(sum);
  }
}

template <class Team>
SATURATE_HOST_DEVICE void run_sharpness(Team& team, const Effect& effect, const ImageSize& size,
                                        const uint8_t* in, uint8_t* out) {
  Cursor at(size.width, team.first());
  for (int i = team.first(); i < size.area(); i += team.step(), at.advance(team.step())) {
    const bool border = at.x == 0 || at.y == 0 || at.x == size.width - 1 || at.y == size.height - 1;
    for (int n = i * 3; n < i * 3 + 3; ++n)
      out[n] = border ? in[n] : to_level(sharpened(in + n, size.width, effect.value[0]));
  }
}

// ---- The list ----------------------------------------------------------------------------------

// `image` and `spare` [size.height, size.width, 3], `rows` as many floats if the list has kBlur.
// Returns which of the two holds the result, visible to the whole team.
template <class Team>
SATURATE_HOST_DEVICE uint8_t* run_effects(Team& team, const EffectList& list, const ImageSize& size,
                                          EffectState& state, uint8_t* image, uint8_t* spare,
                                          float* rows) {
  const int pixels = size.area();
  for (int n = 0; n < list.count; ++n) {
    const Effect& effect = list.effect[n];
    if (is_table(effect.kind))
      run_table(team, effect, pixels, state, image);
    else if (effect.kind == EffectKind::kErase)
      run_erase(team, effect, size.width, image);
    else if (effect.kind == EffectKind::kNoise)
      run_noise(team, effect, size, image);
    else if (effect.kind == EffectKind::kAffine)
      run_affine(team, effect, size, image, spare);
    else if (effect.kind == EffectKind::kBlur)
      run_blur(team, effect, size, image, state, rows, spare);
    else if (effect.kind == EffectKind::kSharpness)
      run_sharpness(team, effect, size, image, spare);
    else
      run_recolour(team, effect, pixels, image);
    team.wait();
    if (needs_neighbours(effect.kind)) {
      uint8_t* const result = spare;
      spare = image;
      image = result;
    }
  }
  return image;
}

}  // namespace saturate
