#include "data/batch_room.h"

#include <cstdint>

namespace saturate {

void BatchRoom::begin(std::byte* memory, size_t samples, size_t pixel_bytes) {
  const MutexLock lock(mutex_);
  memory_ = memory;
  pixel_bytes_ = whole_units(pixel_bytes);
  spare_ = used_ = 0;
  left_ = samples;
}

std::optional<PackedPlace> BatchRoom::take(size_t bytes) {
  if (bytes > kMostPixels * pixel_bytes_) return std::nullopt;
  const size_t whole = whole_units(bytes);
  const MutexLock lock(mutex_);
  if (left_ == 0 || whole > pixel_bytes_ + spare_) return std::nullopt;
  --left_;
  spare_ = spare_ + pixel_bytes_ - whole;
  const PackedPlace place{uint32_t(used_ / PackedPlace::kUnit), uint32_t(bytes)};
  used_ += whole;
  return place;
}

PackedPlace BatchRoom::take_pixels() {
  const auto place = take(pixel_bytes_);
  return {place.value().at, 0};
}

}  // namespace saturate
