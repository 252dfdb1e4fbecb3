#include "data/crop_rows.h"

#include "base/text.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

constexpr size_t kImagesALook = 32;  // images between two looks at the link
constexpr size_t kLooks = 8;         // at images, to learn their format

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

double mean_crop_rows(const AugmentOptions& augment) {
  constexpr int kWidth = 500, kHeight = 375;
  constexpr uint32_t kDraws = 1'000;
  if (augment.crop != CropKind::kRandomResized) return 1;
  double rows = 0;
  for (uint32_t i = 0; i < kDraws; ++i)
    rows += training_transform(augment, {0, 0, i}, kWidth, kHeight).crop.height;
  return rows / kDraws / kHeight;
}

double crop_share_of(const Dataset& data, const AugmentOptions& augment) {
  const bool may_gain = data.size() > 0 && data.tensors().empty() && !data.has_masks() &&
                        !data.size_of_parts(0).is_set();
  const double rows = may_gain ? mean_crop_rows(augment) : 1;
  double all = 0, jpegs = 0;
  Sample sample;
  for (size_t i = 0; rows < 1 && i < kLooks; ++i) {
    try {
      data.read(i * data.size() / kLooks, sample);
    } catch (const Error&) {
      continue;  // the run reports it
    }
    all += double(sample.bytes.size());
    if (as_text(sample.bytes).starts_with("\xff\xd8\xff")) jpegs += double(sample.bytes.size());
  }
  return all > 0 ? 1 - jpegs / all * (1 - rows) : 1;
}

CropRows::CropRows(const Dataset& data, const LoaderOptions& options, const AugmentOptions& augment)
    : data_(data),
      options_(options),
      all_epochs_(augment),
      may_choose_(options.train && options.shuffle.mode == ShuffleMode::kFull &&
                  options.output != BatchOutput::kPlaces && data.look_ahead() > 0) {}

CropRows::Epoch CropRows::begun(uint32_t number) const {
  return {number, all_epochs_.of_epoch(number),
          std::vector<Choice>(may_choose_ ? data_.size() : 0, Choice::kNone)};
}

void CropRows::begin(uint32_t epoch) {
  const bool is_next = !next_.choices.empty() && next_.number == epoch;
  now_ = is_next ? std::move(next_) : begun(epoch);
  next_ = {};
  chosen_ = 0;
}

ImageRows CropRows::choose_for_next(uint32_t index) {
  if (next_.choices.empty()) next_ = begun(now_.number + 1);
  return choose(next_, index);
}

ImageRows CropRows::choose(Epoch& epoch, uint32_t index) {
  if (epoch.choices.empty()) return {};
  Choice& choice = epoch.choices[index];
  if (choice != Choice::kNone) return of(epoch, index);  // a loader thread may read it already
  if (chosen_++ % kImagesALook == 0) request_bytes_ = data_.request_bytes();
  choice = Choice::kWhole;
  if (request_bytes_ == UINT64_MAX) return {};
  const ImageSize size = data_.size_of_parts(index);
  if (!size.is_set()) return {};
  const ImageRows rows = rows_of(epoch, index, size);
  const uint64_t saved =
      data_.bytes(index) * uint64_t(size.height - (rows.end - rows.first)) / uint64_t(size.height);
  if (saved <= request_bytes_) return {};
  choice = Choice::kPart;
  return rows;
}

ImageRows CropRows::of(const Epoch& epoch, uint32_t index) const {
  const bool in_part = !epoch.choices.empty() && epoch.choices[index] == Choice::kPart;
  return in_part ? rows_of(epoch, index, data_.size_of_parts(index)) : ImageRows();
}

ImageRows CropRows::rows_of(const Epoch& epoch, uint32_t index, const ImageSize& size) const {
  const SampleKey key{options_.seed, epoch.number, index};
  const Box crop = training_transform(epoch.augment, key, size.width, size.height).crop;
  return {crop.y, crop.y + crop.height};
}

}  // namespace saturate
