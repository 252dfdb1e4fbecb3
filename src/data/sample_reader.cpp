#include "data/sample_reader.h"

#include <algorithm>
#include <array>

#include "base/spans.h"
#include "data/read_sample.h"
#include "data/read_undamaged.h"
#include "saturate/data/error.h"
#include "saturate/data/random.h"

namespace saturate {
namespace {

// Writes one level to each of `pixels` pixels.
void fill_pixels(const std::array<uint8_t, 3>& level, size_t pixels, uint8_t* out) {
  for (size_t i = 0; i < pixels; ++i, out += 3) std::ranges::copy(level, out);
}

}  // namespace

SampleReader::SampleReader(const Dataset& dataset, const LoaderOptions& options,
                           const AugmentOptions& augment, ScanIndex* index, const CropRows* rows)
    : dataset_(dataset),
      options_(options),
      rows_(rows),
      all_epochs_(augment),
      augment_(options.train ? augment.of_epoch(0) : augment),
      format_{options.pixel_type(), make_normalize(augment)},
      fast_(Decoder::kDefaultMaxPixels, fast_kernels(), index),
      levels_(size_t(augment.size.height) * size_t(augment.size.width) * 3),
      volumes_(dataset.tensors(), options, augment) {}

void SampleReader::begin(uint32_t epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  if (options_.train && !all_epochs_.size_changes.empty())
    augment_.size = all_epochs_.of_epoch(epoch).size;
}

void SampleReader::read(uint32_t epoch, BatchSample& sample, std::byte* out) {
  begin(epoch);
  EffectList applied;
  EffectList& effects = options_.finishes() ? applied : sample.effects;
  sample.effects.count = 0;
  sample.stored = {};
  if (options_.train) effects = draw_effects(augment_, {options_.seed, epoch, sample.index});
  if (options_.masks) drawn_effects_ = effects;
  if (options_.output == BatchOutput::kPlaces) return locate(epoch, sample);
  const bool in_place = format_.type == PixelType::kUint8;
  uint8_t* const levels = in_place ? reinterpret_cast<uint8_t*>(out) : levels_.data();
  sample.label = read_pixels(epoch, sample.index, levels);
  if (applied.count > 0) {
    const Span span("effects");
    apply_effects(applied, augment_.size, effects_, levels);
  }
  if (in_place) return;
  const std::span all(levels_.data(), values());
  options_.output == BatchOutput::kPlanar ? convert_to_planes(format_, all, out)
                                          : convert_pixels(format_, all, out);
}

void SampleReader::read(uint32_t epoch, BatchSample& sample, BatchRoom& room) {
  room_ = &room;
  stored_.reset();
  read(epoch, sample, nullptr);
  sample.stored = stored_.value();
}

uint8_t* SampleReader::place_of_pixels(uint8_t* out) {
  if (!room_) return out;
  if (!stored_) stored_ = room_->take_pixels();
  return reinterpret_cast<uint8_t*>(room_->address(*stored_));
}

void SampleReader::read_tensors(uint32_t epoch, BatchSample& sample, const SequenceExtent& extent,
                                const std::function<std::byte*(size_t)>& address) {
  name_ = &sample_.name;
  {
    const Span span("read");
    read_sample(dataset_, sample.index, sample_);
  }
  sample.label = sample_.label;
  sample.effects.count = 0;
  sample.stored = {};
  const Span span("effects");
  volumes_.write(sample_.bytes, {options_.seed, epoch, sample.index}, options_.train, extent,
                 address);
}

void SampleReader::locate(uint32_t epoch, BatchSample& sample) {
  const HeldSample& held = options_.held[sample.index];
  if (held.width == 0) fail_broken(sample.index);
  name_ = &held.name;
  const SampleTransform drawn = transform(epoch, sample.index, held.width, held.height);
  sample.label = held.label;
  sample.place = {sample.index, int16_t(drawn.shift_x), int16_t(drawn.shift_y), drawn.flip ? 1 : 0,
                  drawn.crop};
}

void SampleReader::fail_broken(uint32_t index) {
  name_ = &sample_.name;
  read_sample(dataset_, index, sample_);
  decode_sample(decoder_, sample_, image_);
  fail(ErrorKind::kData, "it could not be read when the images were put on the device",
       sample_.name, "Run again");
}

SampleTransform SampleReader::transform(uint32_t epoch, uint32_t index, int width, int height) {
  width_ = width;
  height_ = height;
  return drawn_ = options_.train
                      ? training_transform(augment_, {options_.seed, epoch, index}, width, height)
                      : eval_transform(augment_, width, height);
}

void SampleReader::read_mask(uint8_t* out) {
  const Span span("mask");
  if (!kept_mask_) decode_mask(sample_, width_, height_, dataset_.classes().size(), mask_);
  const ClassMap& mask = kept_mask_ ? *kept_mask_ : mask_;
  transform_mask(augment_, drawn_, drawn_effects_, {mask.width, mask.height, mask.classes.data()},
                 kIgnoredClass, out);
}

int64_t SampleReader::read_pixels(uint32_t epoch, uint32_t index, uint8_t* out) {
  sample_.name.clear();
  name_ = &sample_.name;
  kept_mask_ = nullptr;
  if (const DecodedSample* kept = decoded_sample(dataset_, index)) {
    name_ = &kept->name;
    kept_mask_ = &kept->mask;
    write(kept->image, transform(epoch, index, kept->image.width, kept->image.height), out);
    return kept->label;
  }
  read_undamaged(dataset_, index, 1, [&] { read_encoded(epoch, index, out); });
  return sample_.label;
}

void SampleReader::read_encoded(uint32_t epoch, uint32_t index, uint8_t* out) {
  {
    const Span span("read");
    read_sample_once(dataset_, index, sample_, rows_ ? rows_->of(index) : ImageRows());
  }
  const Span span("decode and cut");
  // A shifted image is resized before it is cut, which only the exact path does.
  const bool fast = options_.decode == DecodeMode::kFast && augment_.crop != CropKind::kPad &&
                    sample_.encoding != SampleEncoding::kRaw;
  if (!fast || !read_fast(epoch, index, out)) read_exact(epoch, index, out);
}

bool SampleReader::read_fast(uint32_t epoch, uint32_t index, uint8_t* out) {
  const bool segmented = sample_.encoding == SampleEncoding::kSegmented;
  if (segmented) segmented_.open(sample_.bytes, sample_.width, sample_.height, sample_.name);
  const auto packed = room_ && segmented ? pack_segments(epoch, index) : std::nullopt;
  if (packed == true) return true;
  const auto info =
      segmented ? fast_.open(segmented_, sample_.name) : fast_.open(sample_.bytes, sample_.name);
  if (!info) return false;
  const SampleTransform drawn = transform(epoch, index, info->width, info->height);
  if (room_ && !packed && pack(drawn)) return true;
  out = place_of_pixels(out);
  if (drawn.fitted.width > 0) fill_pixels(mean_levels(augment_), values() / 3, out);
  return fast_.read(sample_.name, drawn, augment_.size, reinterpret_cast<std::byte*>(out));
}

std::optional<bool> SampleReader::pack_segments(uint32_t epoch, uint32_t index) {
  const auto info = fast_.open_to_pack(segmented_);
  if (!info) return std::nullopt;
  const SampleTransform drawn = transform(epoch, index, info->width, info->height);
  return pack(drawn);
}

bool SampleReader::pack(const SampleTransform& transform) {
  if (stored_) return false;
  const size_t bytes = fast_.plan_pack(transform, augment_.size);
  if (bytes > 0) stored_ = room_->take(bytes);
  if (!stored_) return false;
  fast_.pack(room_->address(*stored_));
  return true;
}

void SampleReader::read_exact(uint32_t epoch, uint32_t index, uint8_t* out) {
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

void SampleReader::write(const Image& image, const SampleTransform& transform, uint8_t* out) {
  apply_transform(augment_, transform, image, resizer_, place_of_pixels(out));
}

}  // namespace saturate
