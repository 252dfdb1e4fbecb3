#include "data/crop_rows.h"

namespace saturate {
namespace {

constexpr size_t kImagesALook = 32;  // images between two looks at the link

}  // namespace

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
      may_choose_(options.train && options.shuffle.mode == ShuffleMode::kFull &&
                  options.output != BatchOutput::kPlaces && data.look_ahead() > 0) {}

void CropRows::begin(uint32_t epoch) {
  epoch_ = epoch;
  augment_ = all_epochs_.of_epoch(epoch);
  chosen_ = 0;
  choices_.assign(may_choose_ ? data_.size() : 0, Choice::kNone);
}

ImageRows CropRows::choose(uint32_t index) {
  if (choices_.empty()) return {};
  if (choices_[index] != Choice::kNone) return of(index);  // a loader thread may read it already
  if (chosen_++ % kImagesALook == 0) request_bytes_ = data_.request_bytes();
  choices_[index] = Choice::kWhole;
  if (request_bytes_ == UINT64_MAX) return {};
  const ImageSize size = data_.size_of_parts(index);
  if (!size.is_set()) return {};
  const ImageRows rows = rows_of(index, size);
  const uint64_t saved =
      data_.bytes(index) * uint64_t(size.height - (rows.end - rows.first)) / uint64_t(size.height);
  if (saved <= request_bytes_) return {};
  choices_[index] = Choice::kPart;
  return rows;
}

ImageRows CropRows::of(uint32_t index) const {
  const bool in_part = !choices_.empty() && choices_[index] == Choice::kPart;
  return in_part ? rows_of(index, data_.size_of_parts(index)) : ImageRows();
}

ImageRows CropRows::rows_of(uint32_t index, const ImageSize& size) const {
  const SampleKey key{options_.seed, epoch_, index};
  const Box crop = training_transform(augment_, key, size.width, size.height).crop;
  return {crop.y, crop.y + crop.height};
}

}  // namespace saturate
