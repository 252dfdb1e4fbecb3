#include "data/crop_rows.h"

namespace saturate {

SampleTransform training_transform(const AugmentOptions& augment, const SampleKey& key, int width,
                                   int height) {
  RandomStream random(key.seed, key.epoch, key.index, RandomUse::kAugment);
  SampleTransform transform = draw_transform(augment, random, width, height);
  if (augment.flip_alternate) {
    RandomStream once(key.seed, 0, key.index, RandomUse::kFlip);
    transform.flip = once.bernoulli(augment.flip) != (key.epoch % 2 != 0);
  }
  return transform;
}

CropRows::CropRows(const Dataset& data, const LoaderOptions& options, const AugmentOptions& augment)
    : data_(data),
      options_(options),
      all_epochs_(augment),
      random_(options.train && options.shuffle.mode == ShuffleMode::kFull &&
              options.output != BatchOutput::kPlaces) {}

void CropRows::begin(uint32_t epoch) {
  epoch_ = epoch;
  augment_ = all_epochs_.of_epoch(epoch);
  request_bytes_ = random_ ? data_.request_bytes() : UINT64_MAX;
}

ImageRows CropRows::of(uint32_t index) const {
  if (request_bytes_ == UINT64_MAX) return {};
  const ImageSize size = data_.size_of_parts(index);
  if (!size.is_set()) return {};
  const SampleKey key{options_.seed, epoch_, index};
  const Box crop = training_transform(augment_, key, size.width, size.height).crop;
  const uint64_t saved =
      data_.bytes(index) * uint64_t(size.height - crop.height) / uint64_t(size.height);
  return saved > request_bytes_ ? ImageRows{crop.y, crop.y + crop.height} : ImageRows{};
}

}  // namespace saturate
