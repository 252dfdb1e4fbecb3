// A batch's last steps, from levels to normalised values, by teams of threads.
//
// If each of an image's effects needs one pixel only, the image is computed pixel by pixel from its
// source: several teams may share it, in independent strips of pixels. Any other image is processed
// by one team, pass by pass.
#pragma once

#include "image/effect_passes.h"

namespace saturate {

constexpr int kStripPixels = 2048;

// A team's memory.
struct FinishState {
  EffectState effects;
  alignas(kWidestAccess) uint8_t strip[kStripPixels * 3 + kWidestAccess];
};

// Teams per image: enough for several hundred teams in a batch, to occupy a GPU of some 130
// multiprocessors, but at most one per strip.
constexpr int64_t kTeamsWanted = 512;
SATURATE_HOST_DEVICE constexpr int finish_parts(int64_t count, const ImageSize& size) {
  const int64_t strips = (int64_t{size.area()} + kStripPixels - 1) / kStripPixels;
  const int64_t wanted = count > 0 ? (kTeamsWanted + count - 1) / count : 1;
  return static_cast<int>(wanted < strips ? wanted : strips);
}

// ---- Where pixels come from --------------------------------------------------------------------

// Pixel (x, y) of an image before its effects, as three levels in memory; null is black.
SATURATE_HOST_DEVICE inline const uint8_t* pixel_in_memory(const FinishArguments& batch,
                                                           int64_t index, int x, int y) {
  const int height = batch.size.height, width = batch.size.width;
  if (batch.held == nullptr) return batch.images + ((index * height + y) * width + x) * 3;
  const HeldPlace& place = batch.places[index];
  x = padded_index((place.flip != 0 ? width - 1 - x : x) + place.shift_x, width, batch.pad_mode);
  y = padded_index(y + place.shift_y, height, batch.pad_mode);
  if (x < 0 || y < 0) return nullptr;
  return batch.held + ((int64_t{place.index} * height + y) * width + x) * 3;
}

SATURATE_HOST_DEVICE inline int rounded_weighing(int sum, int precision) {
  const int level = sum >> precision;
  return level < 255 ? level : 255;
}

// Pixel (x, y) of a crop of a held photograph, equal to Resizer::resize(): columns first, each
// rounded to levels, then rows.
SATURATE_HOST_DEVICE inline void resized_pixel(const FinishArguments& batch, const HeldPlace& place,
                                               int x, int y, uint8_t* out) {
  if (place.flip != 0) x = batch.size.width - 1 - x;
  const HeldPhoto& photo = batch.photos[place.index];
  const HeldFilter& across = batch.filters[place.crop.width];
  const HeldFilter& down = batch.filters[batch.down + place.crop.height];
  const int16_t* const columns = batch.filter_values + across.begin;
  const int16_t* const rows = batch.filter_values + down.begin;
  const int16_t* const weight_x = columns + batch.size.width + ptrdiff_t{x} * across.pitch;
  const int16_t* const weight_y = rows + batch.size.height + ptrdiff_t{y} * down.pitch;
  const int64_t top = place.crop.y + static_cast<uint16_t>(rows[y]);
  const int64_t left = place.crop.x + static_cast<uint16_t>(columns[x]);
  const int64_t pitch = int64_t{photo.width} * 3;
  const uint8_t* column = photo.pixels + top * pitch + left * 3;
  int sum[3];
  for (int& channel : sum) channel = 1 << (across.precision - 1);
  for (int i = 0; i < across.taps; ++i, column += 3) {
    int below[3];
    for (int& channel : below) channel = 1 << (down.precision - 1);
    const uint8_t* from = column;
    for (int k = 0; k < down.taps; ++k, from += pitch)
      for (int c = 0; c < 3; ++c) below[c] += weight_y[k] * from[c];
    for (int c = 0; c < 3; ++c) sum[c] += weight_x[i] * rounded_weighing(below[c], down.precision);
  }
  for (int c = 0; c < 3; ++c)
    out[c] = static_cast<uint8_t>(rounded_weighing(sum[c], across.precision));
}

SATURATE_HOST_DEVICE inline void source_pixel(const FinishArguments& batch, int64_t index, int x,
                                              int y, uint8_t* out) {
  if (batch.photos != nullptr) return resized_pixel(batch, batch.places[index], x, y, out);
  const uint8_t* from = pixel_in_memory(batch, index, x, y);
  for (int c = 0; c < 3; ++c) out[c] = from == nullptr ? uint8_t{0} : from[c];
}

// ---- Images pixel by pixel ---------------------------------------------------------------------

// Whether each pixel of the result depends only on the image's source: every effect needs one
// pixel, except a first kAffine, which reads four pixels in memory.
SATURATE_HOST_DEVICE inline bool is_pixel_by_pixel(const FinishArguments& batch,
                                                   const EffectList& list) {
  for (int n = 0; n < list.count; ++n) {
    const EffectKind kind = list.effect[n].kind;
    const bool first_affine = n == 0 && kind == EffectKind::kAffine && batch.photos == nullptr;
    if (needs_histogram(kind) || (needs_neighbours(kind) && !first_affine)) return false;
  }
  return true;
}

// Pixel (x, y) after the effects. REQUIRES: is_pixel_by_pixel(batch, list).
SATURATE_HOST_DEVICE inline void effects_pixel(const FinishArguments& batch, int64_t index,
                                               const EffectList& list, int x, int y, uint8_t* out) {
  const ImageSize size = batch.size;
  uint8_t pixel[3];
  int n = 0;
  if (list.count > 0 && list.effect[0].kind == EffectKind::kAffine) {
    const auto pixel_at = [&](int from_x, int from_y) -> const uint8_t* {
      return is_inside(from_x, from_y, size) ? pixel_in_memory(batch, index, from_x, from_y)
                                             : nullptr;
    };
    store_levels(blend_pixels_at(pixel_at, affine_place(list.effect[n++].value, size, x, y)),
                 pixel);
  } else {
    source_pixel(batch, index, x, y, pixel);
  }
  for (; n < list.count; ++n) change_pixel(list.effect[n], x, y, pixel);
  for (int c = 0; c < 3; ++c) out[c] = pixel[c];
}

// Where a strip that begins with value `first` of a batch is stored in a team's memory: with the
// same alignment to kWidestAccess as its output, if the batch is aligned.
SATURATE_HOST_DEVICE inline uint8_t* strip_of(FinishState& state, int64_t first) {
  return state.strip + first % kWidestAccess;
}

// Pixels [first, last) of an image, after its effects or, without a list, before them.
template <class Team>
SATURATE_HOST_DEVICE void fill_strip(const Team& team, const FinishArguments& batch, int64_t index,
                                     const EffectList* list, int first, int last, uint8_t* strip) {
  Cursor at(batch.size.width, first + team.first());
  for (int i = first + team.first(); i < last; i += team.step(), at.advance(team.step())) {
    uint8_t* const out = strip + ptrdiff_t{i - first} * 3;
    if (list != nullptr)
      effects_pixel(batch, index, *list, at.x, at.y, out);
    else
      source_pixel(batch, index, at.x, at.y, out);
  }
}

template <class Team>
SATURATE_HOST_DEVICE void copy_levels(const Team& team, const uint8_t* in, int count,
                                      uint8_t* out) {
  const int head = bytes_before(out);
  in_chunks<kWidestAccess>(
      team, count, is_multiple(in + head, kWidestAccess) ? head : count,
      [&](int i) { out[i] = in[i]; },
      [&](int i) { store_piece(load_piece<kWidestAccess>(in + i), out + i); });
}

// Copies the whole image `index` from the held images into batch.images.
template <class Team>
SATURATE_HOST_DEVICE void take_image(Team& team, const FinishArguments& batch, int64_t index,
                                     FinishState& state) {
  const int pixels = batch.size.area();
  for (int first = 0; first < pixels; first += kStripPixels) {
    const int last = pixels - first < kStripPixels ? pixels : first + kStripPixels;
    const int64_t value = (index * pixels + first) * 3;
    uint8_t* const strip = strip_of(state, value);
    fill_strip(team, batch, index, nullptr, first, last, strip);
    team.wait();
    copy_levels(team, strip, (last - first) * 3, batch.images + value);
    team.wait();
  }
}

// ---- Normalisation -----------------------------------------------------------------------------

// The bits of a value of the type, in the low bytes.
template <PixelType kType>
SATURATE_HOST_DEVICE inline uint32_t finished_bits(uint8_t level, float scale, float shift) {
  const float value = normalize_value(level, scale, shift);
  if constexpr (kType == PixelType::kBfloat16) return to_bfloat16(value);
  if constexpr (kType == PixelType::kFloat16) return to_float16(value);
  return bits_of_float(value);
}

// Stores a level of a channel, as value `i` of `out`.
template <PixelType kType>
SATURATE_HOST_DEVICE inline void store_finished(const Normalize& by, int channel, uint8_t level,
                                                uint8_t* out, int64_t i) {
  if constexpr (kType == PixelType::kUint8) {
    out[i] = level;
  } else {
    const uint32_t bits = finished_bits<kType>(level, by.scale[channel], by.shift[channel]);
    if constexpr (kType == PixelType::kFloat32)
      reinterpret_cast<float*>(out)[i] = float_of_bits(bits);
    else
      reinterpret_cast<uint16_t*>(out)[i] = static_cast<uint16_t>(bits);
  }
}

// `in`: `count` levels of interleaved pixels, starting with red. `out`: as many values.
template <PixelType kType, class Team>
SATURATE_HOST_DEVICE void normalize_as(const Team& team, const Normalize& by, const uint8_t* in,
                                       int count, uint8_t* out) {
  constexpr int kBytes = static_cast<int>(bytes_of(kType)), kValues = kWidestAccess / kBytes;
  const int before = bytes_before(out), head = before / kBytes;
  const bool fits = before % kBytes == 0 && is_multiple(in + head, kValues);
  in_chunks<kValues>(
      team, count, fits ? head : count,
      [&](int i) { store_finished<kType>(by, i % 3, in[i], out, i); },
      [&](int i) {
        const auto levels = load_piece<kValues>(in + i);
        const int a = i % 3, b = a == 2 ? 0 : a + 1, c = b == 2 ? 0 : b + 1;
        const float scale[3] = {by.scale[a], by.scale[b], by.scale[c]};
        const float shift[3] = {by.shift[a], by.shift[b], by.shift[c]};
        Piece<kWidestAccess> values{};
        for (int k = 0; k < kValues; ++k)
          values.word[k * kBytes / 4] |=
              finished_bits<kType>(byte_of(levels, k), scale[k % 3], shift[k % 3])
              << 8 * (k * kBytes % 4);
        store_piece(values, out + ptrdiff_t{i} * kBytes);
      });
}

// Normalises to values [first, first + count) of the batch. REQUIRES: first is a multiple of three.
template <class Team>
SATURATE_HOST_DEVICE void normalize_levels(const Team& team, const FinishArguments& batch,
                                           const uint8_t* in, int64_t first, int count) {
  uint8_t* const out =
      static_cast<uint8_t*>(batch.out) + first * static_cast<int64_t>(bytes_of(batch.type));
  if (batch.type == PixelType::kBfloat16)
    normalize_as<PixelType::kBfloat16>(team, batch.normalize, in, count, out);
  else if (batch.type == PixelType::kFloat16)
    normalize_as<PixelType::kFloat16>(team, batch.normalize, in, count, out);
  else
    normalize_as<PixelType::kFloat32>(team, batch.normalize, in, count, out);
}

// ---- Images ------------------------------------------------------------------------------------

// Strips [part / parts, (part + 1) / parts) of an image. REQUIRES: is_pixel_by_pixel(batch, list).
template <class Team>
SATURATE_HOST_DEVICE void finish_strips(Team& team, const FinishArguments& batch, int64_t index,
                                        const EffectList& list, int part, int parts,
                                        FinishState& state) {
  const int pixels = batch.size.area(), strips = (pixels + kStripPixels - 1) / kStripPixels;
  const int64_t begin = int64_t{strips} * part / parts * kStripPixels;
  const int64_t bound = int64_t{strips} * (part + 1) / parts * kStripPixels;
  const int end = static_cast<int>(bound < pixels ? bound : pixels);
  if (list.count == 0 && batch.places == nullptr) {
    const int64_t value = (index * pixels + begin) * 3;
    return normalize_levels(team, batch, batch.images + value, value,
                            (end - static_cast<int>(begin)) * 3);
  }
  for (int first = static_cast<int>(begin); first < end; first += kStripPixels) {
    const int last = end - first < kStripPixels ? end : first + kStripPixels;
    const int64_t value = (index * pixels + first) * 3;
    uint8_t* const strip = strip_of(state, value);
    fill_strip(team, batch, index, &list, first, last, strip);
    team.wait();
    normalize_levels(team, batch, strip, value, (last - first) * 3);
    team.wait();
  }
}

// A team's part, of `parts`, of image `index`, from uint8 to normalised values. Teams of one image
// are independent: none writes what another reads or writes.
template <class Team>
SATURATE_HOST_DEVICE void finish_image(Team& team, const FinishArguments& batch, int64_t index,
                                       int part, int parts, FinishState& state) {
  const EffectList& list = batch.effects[index];
  if (is_pixel_by_pixel(batch, list))
    return finish_strips(team, batch, index, list, part, parts, state);
  if (part != 0) return;
  if (batch.places != nullptr) take_image(team, batch, index, state);
  const int values = batch.size.area() * 3;
  const int64_t begin = index * values;
  float* const rows = batch.rows != nullptr ? batch.rows : static_cast<float*>(batch.out);
  const uint8_t* in = run_effects(team, list, batch.size, state.effects, batch.images + begin,
                                  batch.spare + begin, rows + begin);
  normalize_levels(team, batch, in, begin, values);
}

}  // namespace saturate
