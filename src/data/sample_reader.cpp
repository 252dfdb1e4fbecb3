#include "data/sample_reader.h"

#include "saturate/random.h"

namespace saturate {

SampleReader::SampleReader(const Dataset& dataset, const LoaderOptions& options,
                           const AugmentOptions& augment)
    : dataset_(dataset),
      options_(options),
      augment_(augment),
      normalize_(make_normalize(augment)),
      scratch_(size_t(augment.size) * size_t(augment.size) * 3) {}

int64_t SampleReader::read(uint32_t epoch, uint32_t index, std::byte* out) {
  sample_.name.clear();
  if (const DecodedSample* kept = dataset_.decoded(index)) {
    sample_.name = kept->name;
    write(kept->image, transform(epoch, index, kept->image.width, kept->image.height), out);
    return kept->label;
  }
  dataset_.read(index, sample_);
  // A shifted image is resized first and cut then, which only the exact path does.
  const bool fast = options_.decode == DecodeMode::kFast && augment_.crop != CropKind::kPad &&
                    sample_.encoding != SampleEncoding::kRaw;
  if (!fast || !read_fast(epoch, index, out)) read_exact(epoch, index, out);
  return sample_.label;
}

SampleTransform SampleReader::transform(uint32_t epoch, uint32_t index, int width,
                                        int height) const {
  if (!options_.train) return eval_transform(augment_, width, height);
  RandomStream random(options_.seed, epoch, index, RandomUse::kAugment);
  return draw_transform(augment_, random, width, height);
}

bool SampleReader::read_fast(uint32_t epoch, uint32_t index, std::byte* out) {
  const bool segmented = sample_.encoding == SampleEncoding::kSegmented;
  if (segmented) segmented_.open(sample_.bytes, sample_.width, sample_.height, sample_.name);
  const auto info =
      segmented ? fast_.open(segmented_, sample_.name) : fast_.open(sample_.bytes, sample_.name);
  if (!info) return false;
  const Normalize* normalize = options_.type == PixelType::kFloat32 ? &normalize_ : nullptr;
  return fast_.read(sample_.name, transform(epoch, index, info->width, info->height), augment_.size,
                    normalize, out);
}

void SampleReader::read_exact(uint32_t epoch, uint32_t index, std::byte* out) {
  if (sample_.encoding == SampleEncoding::kSegmented) {
    SampleTransform drawn = transform(epoch, index, sample_.width, sample_.height);
    const Box held = decoder_.decode_segmented(sample_.bytes, sample_.width, sample_.height,
                                               drawn.crop, sample_.name, image_);
    drawn.crop.x -= held.x;
    drawn.crop.y -= held.y;
    return write(image_, drawn, out);
  }
  decode_sample(decoder_, sample_, image_);
  write(image_, transform(epoch, index, image_.width, image_.height), out);
}

void SampleReader::write(const Image& image, const SampleTransform& transform, std::byte* out) {
  if (options_.type == PixelType::kUint8) {
    apply_transform(augment_, transform, image, resizer_, reinterpret_cast<uint8_t*>(out));
  } else {
    apply_transform(augment_, transform, image, resizer_, scratch_.data());
    normalize_pixels(normalize_, scratch_, reinterpret_cast<float*>(out));
  }
}

}  // namespace saturate
