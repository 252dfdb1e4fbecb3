// Transforms volumes voxel by voxel: the formulas of VolumeEffects, for CPU threads and a CUDA
// kernel. Compiled by nvcc too, without fused multiply-add; volume_simd.cpp has the same arithmetic
// in vectors, in the same order.
#pragma once

#include "image/effect_passes.h"
#include "saturate/data/effects.h"

namespace saturate {

// The places in the input of one row of output voxels, along depth, height and width.
struct VolumeLine {
  float start[3], step[3];
};
SATURATE_HOST_DEVICE inline VolumeLine volume_line(const VolumeEffects& effects, int z, int y) {
  VolumeLine line{};
  for (int axis = 0; axis < 3; ++axis) {
    const float* const row = effects.matrix + axis * 4;
    line.start[axis] = row[0] * static_cast<float>(z) + row[1] * static_cast<float>(y) + row[3];
    line.step[axis] = row[2];
  }
  return line;
}
SATURATE_HOST_DEVICE inline float place_on(const VolumeLine& line, int axis, int x) {
  return line.start[axis] + line.step[axis] * static_cast<float>(x);
}

// Places further outside are equal to this: their distance does not matter, and a float of any size
// cannot be converted to an integer.
constexpr float kFarthestPlace = 1 << 20;
SATURATE_HOST_DEVICE inline float near_place(float place) {
  return least(greatest(place, -kFarthestPlace), kFarthestPlace);
}

// The index of voxel (z, y, x) in a volume padded by form.pad_mode; -1: none.
SATURATE_HOST_DEVICE inline int64_t voxel_index(const VolumeForm& form, int z, int y, int x) {
  z = padded_index(z, form.in[0], form.pad_mode);
  y = padded_index(y, form.in[1], form.pad_mode);
  x = padded_index(x, form.in[2], form.pad_mode);
  if (z < 0 || y < 0 || x < 0) return -1;
  return (int64_t{z} * form.in[1] + y) * form.in[2] + x;
}

// The trilinear value of a channel at voxel x of a row; outside the volume is 0.
template <class Value>
SATURATE_HOST_DEVICE inline float blend_voxels(const VolumeForm& form, const Value* in,
                                               const VolumeLine& line, int x, int channel) {
  int from[3];
  float share[3];
  for (int axis = 0; axis < 3; ++axis) {
    const float place = near_place(place_on(line, axis, x));
    from[axis] = floor_to_int(place);
    share[axis] = place - static_cast<float>(from[axis]);
  }
  const auto value = [&](int dz, int dy, int dx) {
    const int64_t index = voxel_index(form, from[0] + dz, from[1] + dy, from[2] + dx);
    return index < 0 ? 0.0f : static_cast<float>(in[index * form.channels + channel]);
  };
  const auto along_row = [&](int dz, int dy) {
    return value(dz, dy, 0) * (1.0f - share[2]) + value(dz, dy, 1) * share[2];
  };
  const auto in_plane = [&](int dz) {
    return along_row(dz, 0) * (1.0f - share[1]) + along_row(dz, 1) * share[1];
  };
  return in_plane(0) * (1.0f - share[0]) + in_plane(1) * share[0];
}

// `place`: the value's number in its volume, from which its noise depends.
SATURATE_HOST_DEVICE inline float changed_value(const VolumeEffects& effects, uint32_t place,
                                                float value) {
  if (effects.gamma != 1.0f) {
    const float share = greatest((value - effects.low) / effects.range, 0.0f);
    value = effects.low + effects.range * powf(share, effects.gamma);
  }
  value = value * effects.scale + effects.shift;
  if (effects.noise != 0.0f) value = value + effects.noise * normal_noise(effects.seed, place);
  return value;
}

SATURATE_HOST_DEVICE inline void store_value(float value, float* out) {
  *out = value;
}
SATURATE_HOST_DEVICE inline void store_value(float value, uint8_t* out) {
  *out = to_level(value);
}

// The index of the voxel that is nearest to voxel x of a row; -1: outside the volume.
SATURATE_HOST_DEVICE inline int64_t nearest_voxel(const VolumeForm& form, const VolumeLine& line,
                                                  int x) {
  int from[3];
  for (int axis = 0; axis < 3; ++axis)
    from[axis] = floor_to_int(near_place(place_on(line, axis, x)) + 0.5f);
  return voxel_index(form, from[0], from[1], from[2]);
}

// Output voxel `voxel` of a volume, all channels.
template <class Value>
SATURATE_HOST_DEVICE inline void transform_values(const VolumeForm& form,
                                                  const VolumeEffects& effects, const Value* in,
                                                  const VolumeLine& line, int64_t voxel, int x,
                                                  Value* out) {
  for (int c = 0; c < form.channels; ++c) {
    const int64_t place = voxel * form.channels + c;
    const float value = blend_voxels(form, in, line, x, c);
    store_value(changed_value(effects, static_cast<uint32_t>(place), value), out + place);
  }
}

template <class Label>
SATURATE_HOST_DEVICE inline void copy_labels(const VolumeForm& form, const Label* in,
                                             const VolumeLine& line, int64_t voxel, int x,
                                             Label* out) {
  const int64_t index = nearest_voxel(form, line, x);
  for (int c = 0; c < form.channels; ++c)
    out[voxel * form.channels + c] =
        index < 0 ? static_cast<Label>(form.outside) : in[index * form.channels + c];
}

// Calls values(T{}), or labels(T{}), with the type of a volume's voxels.
template <class Values, class Labels>
SATURATE_HOST_DEVICE inline void with_voxel_type(VoxelType type, const Values& values,
                                                 const Labels& labels) {
  switch (type) {
    case VoxelType::kFloat32:
      return values(float{});
    case VoxelType::kUint8:
      return values(uint8_t{});
    case VoxelType::kLabel8:
      return labels(uint8_t{});
    case VoxelType::kLabel16:
      return labels(uint16_t{});
    case VoxelType::kLabel32:
      return labels(uint32_t{});
    case VoxelType::kLabel64:
      return labels(uint64_t{});
  }
}

// Output voxel `voxel` of volume `index` of a batch.
SATURATE_HOST_DEVICE inline void transform_voxel(const VolumeArguments& batch, int64_t index,
                                                 int64_t voxel) {
  const VolumeForm& form = batch.form;
  const VolumeEffects& effects = batch.effects[index];
  const int x = static_cast<int>(voxel % form.out[2]);
  const int64_t rows = voxel / form.out[2];
  const VolumeLine line = volume_line(effects, static_cast<int>(rows / form.out[1]),
                                      static_cast<int>(rows % form.out[1]));
  const int64_t in_place = index * form.values_in(), out_place = index * form.values_out();
  const auto values = [&](auto type) {
    using Value = decltype(type);
    transform_values(form, effects, static_cast<const Value*>(batch.in) + in_place, line, voxel, x,
                     static_cast<Value*>(batch.out) + out_place);
  };
  const auto labels = [&](auto type) {
    using Label = decltype(type);
    copy_labels(form, static_cast<const Label*>(batch.in) + in_place, line, voxel, x,
                static_cast<Label*>(batch.out) + out_place);
  };
  with_voxel_type(form.type, values, labels);
}

// A team's part of a batch: its turns among `parts` blocks of a volume.
template <class Team>
SATURATE_HOST_DEVICE void transform_volume(const Team& team, const VolumeArguments& batch,
                                           int64_t index, int part, int parts) {
  const int64_t voxels = int64_t{batch.form.out[0]} * batch.form.out[1] * batch.form.out[2];
  const int64_t stride = int64_t{parts} * team.step();
  for (int64_t i = int64_t{part} * team.step() + team.first(); i < voxels; i += stride)
    transform_voxel(batch, index, i);
}

// Blocks of each volume: enough for several hundred in a batch, and two voxels a thread or more.
SATURATE_HOST_DEVICE constexpr int volume_parts(const VolumeArguments& batch, int threads) {
  const int64_t voxels = int64_t{batch.form.out[0]} * batch.form.out[1] * batch.form.out[2];
  const int64_t most = (voxels + 2 * threads - 1) / (2 * threads);
  constexpr int64_t kBlocksWanted = 2048;
  const int64_t wanted = batch.count > 0 ? (kBlocksWanted + batch.count - 1) / batch.count : 1;
  return static_cast<int>(wanted < most ? wanted : most);
}

}  // namespace saturate
