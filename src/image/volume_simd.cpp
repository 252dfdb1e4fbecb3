// Highway kernels of volumes, like effect_simd.cpp: compiled once for each instruction set, chosen
// at run time, with -ffp-contract=off. Each line of arithmetic matches one of volume_passes.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "image/volume_simd.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <cstring>

#include "hwy/contrib/math/math-inl.h"  // quoted, as it must come after foreach_target.h
#include "image/simd_targets.h"
#include "image/volume_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace saturate {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

VolumeKernels kernels_of_volumes() {
  return plain_volume_kernels();
}

#else

namespace vn = hwy::HWY_NAMESPACE;
using VoxelFloats = vn::ScalableTag<float>;
using VoxelIntegers = vn::Rebind<int32_t, VoxelFloats>;
using VoxelBits = vn::Rebind<uint32_t, VoxelFloats>;
using VF = vn::Vec<VoxelFloats>;
using VI = vn::Vec<VoxelIntegers>;
using VU = vn::Vec<VoxelBits>;

HWY_INLINE VF all_of(float value) {
  return vn::Set(VoxelFloats(), value);
}

// A vector's places along one axis: the voxel below each, and the share of the next.
struct AxisPlaces {
  VI from;
  VF share, rest;
};
HWY_INLINE AxisPlaces places_on(const VolumeLine& line, int axis, VF x) {
  const VF place = vn::Add(all_of(line.start[axis]), vn::Mul(all_of(line.step[axis]), x));
  const VI from = vn::ConvertTo(VoxelIntegers(), place);  // inside the volume: not negative
  const VF share = vn::Sub(place, vn::ConvertTo(VoxelFloats(), from));
  return {from, share, vn::Sub(all_of(1.0f), share)};
}

HWY_INLINE VF blended(VF a, VF b, const AxisPlaces& by) {
  return vn::Add(vn::Mul(a, by.rest), vn::Mul(b, by.share));
}

void interpolate(const VolumeForm& form, const float* in, const VolumeLine& line, int first,
                 int last, float* out) {
  const int lanes = static_cast<int>(vn::Lanes(VoxelFloats()));
  if (last - first < lanes)
    return plain_volume_kernels().interpolate(form, in, line, first, last, out);
  const int channels = form.channels;
  const auto stride = [&](int axis, int64_t step) { return form.in[axis] > 1 ? step : 0; };
  const ptrdiff_t row = ptrdiff_t{form.in[2]} * channels;
  const ptrdiff_t dx = stride(2, channels), dy = stride(1, row), dz = stride(0, row * form.in[1]);
  for (int at = first; at < last; at += lanes) {
    const int x = at + lanes <= last ? at : last - lanes;  // the last vector overlaps
    const VF column = vn::ConvertTo(VoxelFloats(), vn::Iota(VoxelIntegers(), x));
    const AxisPlaces z_places = places_on(line, 0, column), y_places = places_on(line, 1, column),
                     x_places = places_on(line, 2, column);
    const auto size = [&](int value) { return vn::Set(VoxelIntegers(), value); };
    VI index = vn::Add(vn::Mul(z_places.from, size(form.in[1])), y_places.from);
    index = vn::Add(vn::Mul(index, size(form.in[2])), x_places.from);
    index = vn::Mul(index, size(channels));
    for (int c = 0; c < channels; ++c) {
      const auto along_row = [&](const float* from) {
        return blended(vn::GatherIndex(VoxelFloats(), from, index),
                       vn::GatherIndex(VoxelFloats(), from + dx, index), x_places);
      };
      const auto in_plane = [&](const float* from) {
        return blended(along_row(from), along_row(from + dy), y_places);
      };
      const VF value = blended(in_plane(in + c), in_plane(in + c + dz), z_places);
      if (channels == 1) {
        vn::StoreU(value, VoxelFloats(), out + x);
        continue;
      }
      float single[vn::MaxLanes(VoxelFloats())];
      vn::StoreU(value, VoxelFloats(), single);
      for (int i = 0; i < lanes; ++i) out[ptrdiff_t{x + i} * channels + c] = single[i];
    }
  }
}

HWY_INLINE VU mixed_lanes(VU bits) {
  const VoxelBits d;
  bits = vn::Mul(vn::Xor(bits, vn::ShiftRight<16>(bits)), vn::Set(d, 0x7feb352dU));
  bits = vn::Mul(vn::Xor(bits, vn::ShiftRight<15>(bits)), vn::Set(d, 0x846ca68bU));
  return vn::Xor(bits, vn::ShiftRight<16>(bits));
}

HWY_INLINE VU ones_in(VU bits) {
  const VoxelBits d;
  const auto mask = [&](VU value, uint32_t by) { return vn::And(value, vn::Set(d, by)); };
  bits = vn::Sub(bits, mask(vn::ShiftRight<1>(bits), 0x55555555U));
  bits = vn::Add(mask(bits, 0x33333333U), mask(vn::ShiftRight<2>(bits), 0x33333333U));
  bits = mask(vn::Add(bits, vn::ShiftRight<4>(bits)), 0x0f0f0f0fU);
  return vn::ShiftRight<24>(vn::Mul(bits, vn::Set(d, 0x01010101U)));
}

// normal_noise() of consecutive places.
HWY_INLINE VF noise_from(uint32_t seed, uint32_t place) {
  const VoxelBits d;
  const VoxelIntegers whole;
  const VU step = vn::Set(d, 0x9e3779b9U);
  const VU a = mixed_lanes(vn::Xor(vn::Set(d, seed), mixed_lanes(vn::Iota(d, place))));
  const VU b = mixed_lanes(vn::Add(a, step)), c = mixed_lanes(vn::Add(b, step));
  const auto number = [&](VI value) { return vn::ConvertTo(VoxelFloats(), value); };
  const VF uniform = vn::Sub(
      vn::Mul(number(vn::BitCast(whole, vn::ShiftRight<8>(c))), all_of(0x1p-24f)), all_of(0.5f));
  const VI ones = vn::BitCast(whole, vn::Add(ones_in(a), ones_in(b)));
  return vn::Mul(vn::Add(number(vn::Sub(ones, vn::Set(whole, 32))), uniform), all_of(0.24935149f));
}

HWY_INLINE VF raised(const VolumeEffects& effects, VF value) {
  const VF zero = all_of(0.0f);
  const VF share =
      vn::Max(vn::Div(vn::Sub(value, all_of(effects.low)), all_of(effects.range)), zero);
  const VF least = all_of(1e-37f);
  const VF power = vn::Exp(
      VoxelFloats(), vn::Mul(all_of(effects.gamma), vn::Log(VoxelFloats(), vn::Max(share, least))));
  const VF kept = vn::IfThenZeroElse(vn::Lt(share, least), power);
  return vn::Add(all_of(effects.low), vn::Mul(all_of(effects.range), kept));
}

HWY_INLINE VF changed(const VolumeEffects& effects, uint32_t place, VF value) {
  if (effects.gamma != 1.0f) value = raised(effects, value);
  value = vn::Add(vn::Mul(value, all_of(effects.scale)), all_of(effects.shift));
  if (effects.noise != 0.0f)
    value = vn::Add(value, vn::Mul(all_of(effects.noise), noise_from(effects.seed, place)));
  return value;
}

void change(const VolumeEffects& effects, uint32_t place, size_t n, float* values) {
  const VoxelFloats d;
  const size_t lanes = vn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    vn::StoreU(changed(effects, place + static_cast<uint32_t>(i), vn::LoadU(d, values + i)), d,
               values + i);
  if (i == n) return;
  float rest[vn::MaxLanes(VoxelFloats())] = {};
  std::memcpy(rest, values + i, (n - i) * sizeof(float));
  vn::StoreU(changed(effects, place + static_cast<uint32_t>(i), vn::LoadU(d, rest)), d, rest);
  std::memcpy(values + i, rest, (n - i) * sizeof(float));
}

VolumeKernels kernels_of_volumes() {
  return {hwy::TargetName(HWY_TARGET), interpolate, change};
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace saturate
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace saturate {

HWY_EXPORT(kernels_of_volumes);

const VolumeKernels& volume_kernels() {
  static const VolumeKernels best = HWY_DYNAMIC_DISPATCH(kernels_of_volumes)();
  return best;
}

std::vector<VolumeKernels> all_volume_kernels() {
  return all_targets(
      plain_volume_kernels(), [] { return HWY_DYNAMIC_DISPATCH(kernels_of_volumes)(); },
      &VolumeKernels::change);
}

}  // namespace saturate
#endif
