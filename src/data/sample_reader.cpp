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
  dataset_.read(index, sample_);
  decode_sample(decoder_, sample_, image_);
  RandomStream random(options_.seed, epoch, index, RandomUse::kAugment);
  const SampleTransform transform =
      options_.train ? draw_transform(augment_, random, image_.width, image_.height)
                     : eval_transform(augment_, image_.width, image_.height);
  if (options_.type == PixelType::kUint8) {
    apply_transform(augment_, transform, image_, resizer_, reinterpret_cast<uint8_t*>(out));
  } else {
    apply_transform(augment_, transform, image_, resizer_, scratch_.data());
    normalize_pixels(normalize_, scratch_, reinterpret_cast<float*>(out));
  }
  return sample_.label;
}

}  // namespace saturate
