// Decodes packed JPEGs by teams of threads, one image after another: the results of
// FastDecoder::read(), bit for bit, or of convert_pixels() on them. Compiled by nvcc too.
//
// Tables are made in the team's memory. Then each thread decodes parts of the entropy-coded data to
// samples in the scratch memory, which holds some rows of MCUs at a time; these are resized to the
// output rows that need no others, and so on. Team: as in image/effect_passes.h.
#pragma once

#include "image/dct_passes.h"
#include "image/unpack_resize.h"

#ifdef __CUDA_ARCH__
#define SATURATE_ONE_COPY _Pragma("unroll 1")
#else
#define SATURATE_ONE_COPY
#endif

namespace saturate {

// ---- Tables ------------------------------------------------------------------------------------

SATURATE_HOST_DEVICE inline uint16_t look_entry(const PackedCodes& from, const CodeLimits& limits,
                                                int prefix) {
  for (int length = 1; length <= kUnpackLook; ++length) {
    const int code = prefix >> (kUnpackLook - length);
    if (code < limits.end[length])
      return static_cast<uint16_t>(length << 8 |
                                   from.huffval[(code + limits.offset[length]) & 255]);
  }
  return 0;
}

// Copies the header, and makes the plan and the codes' limits. The caller waits.
template <class Team>
SATURATE_HOST_DEVICE void begin_image(const Team& team, const UnpackTask& task,
                                      UnpackState& state) {
  auto* const to = reinterpret_cast<std::byte*>(&state.packed);
  for (int i = team.first() * 4; i < static_cast<int>(sizeof(PackedJpeg)); i += team.step() * 4)
    store_piece(load_piece<4>(task.from + i), to + i);
  for (int k = team.first(); k < kOrderPlaces; k += team.step()) state.order[k] = zigzag_place(k);
  team.wait();
  if (team.first() == 0 && !make_plan(state.packed, task.bytes, task.size, state.plan))
    team.increment(state.failures);
  for (int i = team.first(); i < kPackedTables; i += team.step())
    if (!limit_codes(state.packed.codes[i], i < 2, state.codes[i].limits))
      team.increment(state.failures);
}

// `rises`: outputs must be in the order of their samples.
template <class Team>
SATURATE_HOST_DEVICE void check_axis(const Team& team, const UnpackTask& task,
                                     const PackedAxis& axis, int out, bool rises,
                                     UnpackState& state) {
  const AxisView view = view_axis(task.from, axis, out);
  for (int i = team.first(); i < out; i += team.step()) {
    const int first = view.first[i];
    if (first < axis.low || first + view.taps > axis.high ||
        (rises && i > 0 && first < view.first[i - 1]))
      team.increment(state.failures);
  }
}

SATURATE_HOST_DEVICE inline const PackedPart* parts_of(const UnpackTask& task,
                                                       const PackedJpeg& packed) {
  return reinterpret_cast<const PackedPart*>(task.from + packed.parts_at);
}

// Parts may share a byte with the next one. REQUIRES: a plan.
template <class Team>
SATURATE_HOST_DEVICE void check_parts(const Team& team, const UnpackTask& task,
                                      UnpackState& state) {
  const PackedPart* const parts = parts_of(task, state.packed);
  const int count = state.packed.rows * state.packed.parts_across;
  for (int i = team.first(); i < count; i += team.step()) {
    const uint64_t end = uint64_t{parts[i].begin} + parts[i].bytes;
    if (end > state.packed.data_bytes || parts[i].skipped > 7 ||
        (i + 1 < count && end > uint64_t{parts[i + 1].begin} + 1))
      team.increment(state.failures);
  }
}

// Checks all that the plan does not, and makes the look-up tables. The caller waits.
template <class Team>
SATURATE_HOST_DEVICE void make_tables(const Team& team, const UnpackTask& task,
                                      UnpackState& state) {
  const PackedJpeg& packed = state.packed;
  for (int c = 0; c < state.plan.planes; c += 2) {
    const int axis = state.plan.plane[c].axis;
    check_axis(team, task, packed.across_axis[axis], task.size.width, /*rises=*/false, state);
    check_axis(team, task, packed.down_axis[axis], task.size.height, /*rises=*/true, state);
  }
  check_parts(team, task, state);
  constexpr int kEntries = 1 << kUnpackLook;
  for (int i = team.first(); i < kPackedTables * kEntries; i += team.step()) {
    UnpackCodes& codes = state.codes[i / kEntries];
    codes.look[i % kEntries] = look_entry(packed.codes[i / kEntries], codes.limits, i % kEntries);
  }
}

// ---- Samples -----------------------------------------------------------------------------------

template <int kSize>
SATURATE_HOST_DEVICE inline void store_samples(const int16_t (&v)[8], uint8_t* out) {
  if constexpr (kSize < 4) {
    for (int u = 0; u < kSize; ++u) out[u] = level_of(v[u]);
  } else {
    for (int u = 0; u < kSize; u += 4) {
      Piece<4> four{};
      for (int i = 0; i < 4; ++i) four.word[0] |= uint32_t{level_of(v[u + i])} << 8 * i;
      store_piece(four, out + u);
    }
  }
}

// Dequantises and transforms a block, which is changed.
template <int kSize>
SATURATE_HOST_DEVICE inline void transform_block(int16_t* block, const uint16_t* quant,
                                                 uint8_t* out, int pitch) {
  SATURATE_ONE_COPY
  for (int u = 0; u < 8; ++u) {
    int16_t v[8];
    for (int i = 0; i < 8; ++i) v[i] = static_cast<int16_t>(block[i * 8 + u] * quant[i * 8 + u]);
    dct_pass<kSize>(v, kDctColumnShift);
    for (int i = 0; i < kSize; ++i) block[i * 8 + u] = v[i];
  }
  SATURATE_ONE_COPY
  for (int y = 0; y < kSize; ++y, out += pitch) {
    int16_t v[8];
    for (int u = 0; u < 8; ++u) v[u] = block[y * 8 + u];
    dct_pass<kSize>(v, kDctRowShift);
    store_samples<kSize>(v, out);
  }
}

SATURATE_HOST_DEVICE inline void store_block(int16_t* block, int size, const uint16_t* quant,
                                             uint8_t* out, int pitch) {
  if (size == 8)
    transform_block<8>(block, quant, out, pitch);
  else if (size == 4)
    transform_block<4>(block, quant, out, pitch);
  else if (size == 2)
    transform_block<2>(block, quant, out, pitch);
  else
    *out = dct_mean(block[0], quant[0]);
}

// A part's place, and its state.
struct PartReader {
  BitWindow bits;
  uint32_t dc[3];
  int band;
};

// Reads a component's blocks of an MCU, of which `column` is the number among those stored; if it
// is negative, the blocks are only parsed.
SATURATE_HOST_DEVICE inline bool decode_blocks(const UnpackTask& task, const UnpackState& state,
                                               int c, int column, PartReader& part) {
  const PackedJpeg& packed = state.packed;
  const UnpackPlane& plane = state.plan.plane[c];
  const int dc = packed.dc_table[c], ac = 2 + packed.ac_table[c];
  const BlockCodes codes{&state.codes[dc], &state.codes[ac], packed.codes[dc].huffval,
                         packed.codes[ac].huffval};
  uint8_t* const band = task.scratch + plane.at +
                        int64_t{part.band % state.plan.ring_bands * plane.band_rows} * plane.pitch;
  alignas(kWidestAccess) int16_t block[64];
  for (int i = 0; i < plane.across * plane.down; ++i) {
    for (int k = 0; column >= 0 && k < 64; k += kWidestAccess / 2)
      store_piece(Piece<kWidestAccess>{}, block + k);
    if (!read_block(part.bits, codes, state.order, part.dc[c], column >= 0 ? block : nullptr))
      return false;
    if (column < 0) continue;
    const int x = column * plane.across + i % plane.across, y = i / plane.across;
    store_block(block, plane.size, packed.quant[c], band + (y * plane.pitch + x) * plane.size,
                plane.pitch);
  }
  return true;
}

// Part `index` of row `band` of MCUs. False if the data are irregular.
SATURATE_HOST_DEVICE inline bool decode_part(const UnpackTask& task, const UnpackState& state,
                                             int band, int index) {
  const PackedJpeg& packed = state.packed;
  const PackedPart& from = parts_of(task, packed)[band * packed.parts_across + index];
  PartReader part;
  part.band = band;
  part.bits.open(task.from + packed.data_at, from, packed.checks_ends != 0);
  part.bits.refill();
  part.bits.skip(from.skipped);
  for (int c = 0; c < 3; ++c) part.dc[c] = static_cast<uint32_t>(from.dc[c]);
  const int first = index * packed.part_mcus;
  const int end =
      first + packed.part_mcus < packed.row_mcus ? first + packed.part_mcus : packed.row_mcus;
  for (int mcu = first; mcu < end; ++mcu) {
    const int column =
        mcu >= packed.first_mcu && mcu < packed.end_mcu ? mcu - packed.first_mcu : -1;
    SATURATE_ONE_COPY
    for (int c = 0; c < packed.components; ++c)
      if (!decode_blocks(task, state, c, column, part)) return false;
  }
  if (packed.checks_ends == 0) return true;
  bool arrives = part.bits.ends_with(from.left);
  for (int c = 0; c < packed.components && from.left != kPadding; ++c)
    arrives = arrives && part.dc[c] == static_cast<uint32_t>(from.end_dc[c]);
  return arrives;
}

// Rows [first, end) of MCUs.
template <class Team>
SATURATE_HOST_DEVICE void decode_bands(const Team& team, const UnpackTask& task, UnpackState& state,
                                       int first, int end) {
  const int across = state.packed.parts_across;
  for (int i = team.first(); i < (end - first) * across; i += team.step())
    if (!decode_part(task, state, first + i / across, i % across)) team.increment(state.failures);
}

// ---- Images ------------------------------------------------------------------------------------

// The first output row from `y` on that needs row `until` of MCUs, or a later one.
SATURATE_HOST_DEVICE inline int rows_within(const UnpackTask& task, const UnpackState& state, int y,
                                            int until) {
  const int height = task.size.height;
  int end = height;
  while (y < end) {
    const int middle = y + (end - y) / 2;
    const Bands bands = bands_of_row(task.from, state.packed.down_axis, state.plan, height, middle);
    if (bands.end <= until)
      y = middle + 1;
    else
      end = middle;
  }
  return y;
}

// False, for all threads, if an output row needs more rows than the ring has. All threads have
// waited since the last part was decoded. REQUIRES: make_tables() found no failure.
template <class Team>
SATURATE_HOST_DEVICE bool decode_image(const Team& team, const UnpackTask& task,
                                       UnpackState& state) {
  const int rows = state.packed.rows, height = task.size.height;
  int band = 0, y = 0;
  while (y < height) {
    const Bands bands = bands_of_row(task.from, state.packed.down_axis, state.plan, height, y);
    const int first = bands.first > band ? bands.first : band;
    const int fit = bands.first + state.plan.ring_bands, until = fit < rows ? fit : rows;
    decode_bands(team, task, state, first, until);
    team.wait();
    const int end = rows_within(task, state, y, until);
    if (end <= y) return false;
    resize_rows(team, task, state, y, end);
    y = end;
    band = until > band ? until : band;
  }
  return true;
}

// Writes the pixels in memory or, if `black`, black ones: for a JPEG that failed.
template <class Team>
SATURATE_HOST_DEVICE void copy_pixels(const Team& team, const UnpackTask& task, bool black) {
  const auto* const in = reinterpret_cast<const uint8_t*>(task.from);
  if (!black && task.batch.format.type == PixelType::kUint8)
    return copy_levels(team, in, static_cast<int>(pixel_bytes(task.size)), task.out);
  SATURATE_ONE_COPY
  for (int i = team.first(); i < task.size.area(); i += team.step()) {
    uint8_t rgb[3];
    for (int c = 0; c < 3; ++c) rgb[c] = black ? uint8_t{0} : in[ptrdiff_t{i} * 3 + c];
    store_pixel(task, i, rgb);
  }
}

// Whether the packed JPEG was decoded; the same for all threads.
template <class Team>
SATURATE_HOST_DEVICE bool unpack_jpeg(const Team& team, UnpackTask task, UnpackState& state) {
  if (task.bytes < sizeof(PackedJpeg) || !is_multiple(task.from, 4)) return false;
  if (reinterpret_cast<const PackedJpeg*>(task.from)->turn & kPackedColumns)
    task.size = ImageSize(task.size.width, task.size.height);
  if (team.first() == 0) state.failures = 0;
  begin_image(team, task, state);
  team.wait();
  bool failed = state.failures != 0;
  team.wait();
  if (failed) return false;
  make_tables(team, task, state);
  team.wait();
  failed = state.failures != 0;
  team.wait();
  if (failed) return false;
  return decode_image(team, task, state) && state.failures == 0;
}

// Image `index` of a batch, by a team with that scratch memory. The team waits before its state is
// used again.
template <class Team>
SATURATE_HOST_DEVICE void unpack_image(const Team& team, const UnpackArguments& batch,
                                       int64_t index, uint8_t* scratch, UnpackState& state) {
  const PackedPlace place = batch.places[index];
  const auto bytes = static_cast<int64_t>(pixel_bytes(batch.size) * bytes_of(batch.format.type));
  const UnpackTask task{batch.memory + place.at * PackedPlace::kUnit,
                        place.bytes,
                        batch.size,
                        scratch,
                        batch,
                        batch.out + index * bytes};
  const bool ok = place.bytes == 0 || unpack_jpeg(team, task, state);
  if (place.bytes == 0 || !ok) copy_pixels(team, task, /*black=*/!ok);
  if (team.first() == 0) batch.failed[index] = ok ? 0 : 1;
}

}  // namespace saturate
