#include "data/sample_reader.h"

#include "saturate/random.h"

namespace saturate {
namespace {

// [pixels, 3] to [3, pixels].
void split_planes(const std::vector<float>& in, float* out) {
  const size_t pixels = in.size() / 3;
  for (size_t i = 0; i < pixels; ++i)
    for (size_t c = 0; c < 3; ++c) out[c * pixels + i] = in[i * 3 + c];
}

}  // namespace

SampleReader::SampleReader(const Dataset& dataset, const LoaderOptions& options,
                           const AugmentOptions& augment)
    : dataset_(dataset),
      options_(options),
      augment_(augment),
      normalize_(make_normalize(augment)),
      scratch_(size_t(augment.size) * size_t(augment.size) * 3),
      interleaved_(options.planar ? scratch_.size() : 0) {}

int64_t SampleReader::read(uint32_t epoch, uint32_t index, std::byte* out) {
  sample_.name.clear();
  dataset_.read(index, sample_);
  // A shifted image is resized first and cut then, which only the exact path does.
  std::byte* const pixels =
      options_.planar ? reinterpret_cast<std::byte*>(interleaved_.data()) : out;
  const bool fast = options_.decode == DecodeMode::kFast && augment_.crop != CropKind::kPad &&
                    sample_.encoding == SampleEncoding::kEncoded;
  if (!fast || !read_fast(epoch, index, pixels)) read_exact(epoch, index, pixels);
  if (options_.planar) split_planes(interleaved_, reinterpret_cast<float*>(out));
  return sample_.label;
}

SampleTransform SampleReader::transform(uint32_t epoch, uint32_t index, int width,
                                        int height) const {
  if (!options_.train) return eval_transform(augment_, width, height);
  RandomStream random(options_.seed, epoch, index, RandomUse::kAugment);
  return draw_transform(augment_, random, width, height);
}

bool SampleReader::read_fast(uint32_t epoch, uint32_t index, std::byte* out) {
  const auto info = fast_.open(sample_.bytes, sample_.name);
  if (!info) return false;
  const Normalize* normalize = options_.type == PixelType::kFloat32 ? &normalize_ : nullptr;
  return fast_.read(sample_.name, transform(epoch, index, info->width, info->height), augment_.size,
                    normalize, out);
}

void SampleReader::read_exact(uint32_t epoch, uint32_t index, std::byte* out) {
  decode_sample(decoder_, sample_, image_);
  const SampleTransform drawn = transform(epoch, index, image_.width, image_.height);
  if (options_.type == PixelType::kUint8) {
    apply_transform(augment_, drawn, image_, resizer_, reinterpret_cast<uint8_t*>(out));
  } else {
    apply_transform(augment_, drawn, image_, resizer_, scratch_.data());
    normalize_pixels(normalize_, scratch_, reinterpret_cast<float*>(out));
  }
}

}  // namespace saturate
