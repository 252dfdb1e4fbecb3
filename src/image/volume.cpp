// Volumes on the CPU: bounds are resolved row by row, outside the inner loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <type_traits>

#include "image/volume_kernels.h"

namespace saturate {
namespace {

void interpolate_plainly(const VolumeForm& form, const float* in, const VolumeLine& line, int first,
                         int last, float* out) {
  for (int x = first; x < last; ++x)
    for (int c = 0; c < form.channels; ++c)
      out[ptrdiff_t{x} * form.channels + c] = blend_voxels(form, in, line, x, c);
}

void change_plainly(const VolumeEffects& effects, uint32_t place, size_t n, float* values) {
  for (size_t i = 0; i < n; ++i)
    values[i] = changed_value(effects, place + static_cast<uint32_t>(i), values[i]);
}

// Consecutive voxels of a row.
struct Voxels {
  int first, last;
  bool empty() const { return first >= last; }
};

// Those of `among` whose place along an axis satisfies `inside`, an interval from `low` to `high`.
// The division estimates the ends; as the rounded place is monotonic in x, moving them while
// `inside` decides otherwise is exact.
template <class Inside>
Voxels voxels_inside(const VolumeLine& line, int axis, double low, double high, Voxels among,
                     const Inside& inside) {
  const Voxels none{among.first, among.first};
  const auto is_inside = [&](int x) { return inside(near_place(place_on(line, axis, x))); };
  const double start = line.start[axis], step = line.step[axis];
  if (among.empty()) return none;
  if (step == 0) return is_inside(among.first) ? among : none;
  const auto [least, most] = std::minmax({(low - start) / step, (high - start) / step});
  const auto bounded = [&](double x) {
    return static_cast<int>(std::clamp(x, double(among.first), double(among.last)));
  };
  Voxels found{bounded(std::ceil(least)), bounded(std::floor(most) + 1)};
  while (found.first > among.first && is_inside(found.first - 1)) --found.first;
  while (found.first < found.last && !is_inside(found.first)) ++found.first;
  while (found.last < among.last && found.last > found.first && is_inside(found.last)) ++found.last;
  while (found.last > found.first && !is_inside(found.last - 1)) --found.last;
  return found.empty() ? none : found;
}

// Those whose eight neighbours are all in the volume; along an axis of one voxel, those on it.
Voxels inner_voxels(const VolumeForm& form, const VolumeLine& line) {
  Voxels found{0, form.out[2]};
  for (int axis = 0; axis < 3; ++axis) {
    const auto end = static_cast<float>(form.in[axis] - 1);
    found = voxels_inside(line, axis, 0, end, found, [=](float place) {
      return end == 0 ? place == 0 : place >= 0 && place < end;
    });
  }
  return found;
}

// Those with a neighbour in the volume.
Voxels outer_voxels(const VolumeForm& form, const VolumeLine& line) {
  Voxels found{0, form.out[2]};
  if (form.pad_mode != PadMode::kZero) return found;
  for (int axis = 0; axis < 3; ++axis) {
    const auto end = static_cast<float>(form.in[axis]);
    found = voxels_inside(line, axis, -1, end, found,
                          [=](float place) { return place > -1 && place < end; });
  }
  return found;
}

// A transform by whole voxels that keeps each row's direction or reverses it.
struct Shift {
  int start[3];  // the place of output voxel 0
  int sign[3];
};
std::optional<Shift> whole_shift(const VolumeEffects& effects) {
  Shift shift{};
  for (int axis = 0; axis < 3; ++axis) {
    const float* const row = effects.matrix + axis * 4;
    for (int other = 0; other < 3; ++other)
      if (other != axis && row[other] != 0) return std::nullopt;
    if (std::abs(row[axis]) != 1 || row[3] != std::floor(row[3]) ||
        std::abs(row[3]) >= kFarthestPlace)
      return std::nullopt;
    shift.start[axis] = static_cast<int>(row[3]);
    shift.sign[axis] = row[axis] < 0 ? -1 : 1;
  }
  return shift;
}

// Output row (z, y) of a whole shift, for values and labels alike.
template <class Value>
void copy_row(const VolumeForm& form, const Shift& shift, const Value* in, int z, int y,
              Value outside, Value* out) {
  const int channels = form.channels, width = form.in[2];
  const int from_z = padded_index(shift.start[0] + shift.sign[0] * z, form.in[0], form.pad_mode);
  const int from_y = padded_index(shift.start[1] + shift.sign[1] * y, form.in[1], form.pad_mode);
  if (from_z < 0 || from_y < 0) {
    std::fill_n(out, ptrdiff_t{form.out[2]} * channels, outside);
    return;
  }
  const Value* const row = in + (int64_t{from_z} * form.in[1] + from_y) * width * channels;
  const int start = shift.start[2], sign = shift.sign[2];
  if (start >= 0 && sign > 0 && start + form.out[2] <= width) {
    std::memcpy(out, row + ptrdiff_t{start} * channels,
                size_t(form.out[2]) * size_t(channels) * sizeof(Value));
    return;
  }
  if (channels == 1 && sign < 0 && start < width && start - form.out[2] + 1 >= 0) {
    for (int x = 0; x < form.out[2]; ++x) out[x] = row[start - x];
    return;
  }
  for (int x = 0; x < form.out[2]; ++x, out += channels) {
    const int from = padded_index(start + sign * x, width, form.pad_mode);
    for (int c = 0; c < channels; ++c)
      out[c] = from < 0 ? outside : row[ptrdiff_t{from} * channels + c];
  }
}

void warp_row(const VolumeForm& form, const float* in, const VolumeLine& line, float* out) {
  const int channels = form.channels;
  const Voxels outer = outer_voxels(form, line);
  Voxels inner = inner_voxels(form, line);
  if (inner.empty()) inner = {outer.first, outer.first};
  std::fill_n(out, ptrdiff_t{outer.first} * channels, 0.0f);
  interpolate_plainly(form, in, line, outer.first, inner.first, out);
  volume_kernels().interpolate(form, in, line, inner.first, inner.last, out);
  interpolate_plainly(form, in, line, inner.last, outer.last, out);
  std::fill_n(out + ptrdiff_t{outer.last} * channels,
              ptrdiff_t{form.out[2] - outer.last} * channels, 0.0f);
}

bool changes_values(const VolumeEffects& effects) {
  return effects.gamma != 1 || effects.scale != 1 || effects.shift != 0 || effects.noise != 0;
}

// Calls row(z, y, number of the row's first value) for each row of the output.
template <class Row>
void for_rows(const VolumeForm& form, const Row& row) {
  int64_t place = 0;
  for (int z = 0; z < form.out[0]; ++z)
    for (int y = 0; y < form.out[1]; ++y, place += ptrdiff_t{form.out[2]} * form.channels)
      row(z, y, place);
}

template <class Label>
void transform_labels(const VolumeForm& form, const VolumeEffects& effects, const Label* in,
                      Label* out) {
  const auto outside = static_cast<Label>(form.outside);
  const std::optional<Shift> shift = whole_shift(effects);
  for_rows(form, [&](int z, int y, int64_t place) {
    if (shift) return copy_row(form, *shift, in, z, y, outside, out + place);
    const VolumeLine line = volume_line(effects, z, y);
    const int64_t voxel = place / form.channels;
    for (int x = 0; x < form.out[2]; ++x) copy_labels(form, in, line, voxel + x, x, out);
  });
}

void transform_floats(const VolumeForm& form, const VolumeEffects& effects, const float* in,
                      float* out) {
  const std::optional<Shift> shift = whole_shift(effects);
  const size_t count = size_t(form.out[2]) * size_t(form.channels);
  const bool changes = changes_values(effects);
  for_rows(form, [&](int z, int y, int64_t place) {
    if (shift)
      copy_row(form, *shift, in, z, y, 0.0f, out + place);
    else
      warp_row(form, in, volume_line(effects, z, y), out + place);
    if (changes) volume_kernels().change(effects, static_cast<uint32_t>(place), count, out + place);
  });
}

// Levels are rounded once, after all effects.
void transform_levels(const VolumeForm& form, const VolumeEffects& effects, const uint8_t* in,
                      VolumeScratch& scratch, uint8_t* out) {
  const std::optional<Shift> shift = whole_shift(effects);
  const bool changes = changes_values(effects);
  if (shift && !changes)
    return for_rows(form, [&](int z, int y, int64_t place) {
      copy_row(form, *shift, in, z, y, uint8_t{0}, out + place);
    });
  const auto count = size_t(form.values_in());
  scratch.values.resize(std::max(scratch.values.size(), count));
  for (size_t i = 0; i < count; ++i) scratch.values[i] = in[i];
  const size_t width = size_t(form.out[2]) * size_t(form.channels);
  scratch.row.resize(std::max(scratch.row.size(), width));
  float* const row = scratch.row.data();
  for_rows(form, [&](int z, int y, int64_t place) {
    if (shift)
      copy_row(form, *shift, scratch.values.data(), z, y, 0.0f, row);
    else
      warp_row(form, scratch.values.data(), volume_line(effects, z, y), row);
    if (changes) volume_kernels().change(effects, static_cast<uint32_t>(place), width, row);
    for (size_t i = 0; i < width; ++i) out[size_t(place) + i] = to_level(row[i]);
  });
}

// Sixteen sums, which the compiler vectorises, in double from block to block.
template <class Value>
VolumeRange range_of(const Value* values, size_t n) {
  constexpr size_t kLanes = 16, kBlock = 256 * kLanes;
  double total = 0;
  Value low = values[0], high = values[0];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, n), whole = begin + (end - begin) / kLanes * kLanes;
    float sum[kLanes] = {};
    Value least[kLanes], most[kLanes];
    std::fill_n(least, kLanes, low);
    std::fill_n(most, kLanes, high);
    for (size_t i = begin; i < whole; i += kLanes)
      for (size_t k = 0; k < kLanes; ++k) {
        const Value value = values[i + k];
        sum[k] += static_cast<float>(value);
        least[k] = value < least[k] ? value : least[k];
        most[k] = value > most[k] ? value : most[k];
      }
    for (size_t i = whole; i < end; ++i) {
      sum[0] += static_cast<float>(values[i]);
      least[0] = std::min(least[0], values[i]);
      most[0] = std::max(most[0], values[i]);
    }
    for (const float each : sum) total += double(each);
    low = *std::min_element(least, least + kLanes);
    high = *std::max_element(most, most + kLanes);
  }
  return {static_cast<float>(low), static_cast<float>(high), static_cast<float>(total / double(n))};
}

}  // namespace

const VolumeKernels& plain_volume_kernels() {
  static const VolumeKernels kernels{"plain", interpolate_plainly, change_plainly};
  return kernels;
}

VolumeRange volume_range(VoxelType type, const void* values, size_t n) {
  return type == VoxelType::kUint8 ? range_of(static_cast<const uint8_t*>(values), n)
                                   : range_of(static_cast<const float*>(values), n);
}

void apply_volume(const VolumeForm& form, const VolumeEffects& effects, const void* in,
                  VolumeScratch& scratch, void* out) {
  const auto values = [&](auto type) {
    using Value = decltype(type);
    const auto* const from = static_cast<const Value*>(in);
    if constexpr (std::is_same_v<Value, float>)
      transform_floats(form, effects, from, static_cast<float*>(out));
    else
      transform_levels(form, effects, from, scratch, static_cast<uint8_t*>(out));
  };
  const auto labels = [&](auto type) {
    using Label = decltype(type);
    transform_labels(form, effects, static_cast<const Label*>(in), static_cast<Label*>(out));
  };
  with_voxel_type(form.type, values, labels);
}

void transform_volumes_cpu(const VolumeArguments& batch) {
  for (int64_t i = 0; i < batch.count; ++i)
    transform_volume(LoneTeam(), batch, i, /*part=*/0, /*parts=*/1);
}

}  // namespace saturate
