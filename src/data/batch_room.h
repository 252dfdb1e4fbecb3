// Places for the samples of a batch in its memory, for a loader that packs JPEGs.
#pragma once

#include <cstddef>
#include <optional>

#include "base/mutex.h"
#include "saturate/data/effects.h"

namespace saturate {

// `bytes`, rounded up to whole units of a PackedPlace.
constexpr size_t whole_units(size_t bytes) {
  return (bytes + PackedPlace::kUnit - 1) / PackedPlace::kUnit * PackedPlace::kUnit;
}

// Memory for the pixels of all samples of a batch. A packed JPEG mostly takes less than them; the
// others of the batch may take what it leaves. Each sample that has no place yet can still get one
// for its pixels, so none waits for another. Safe for concurrent use.
class BatchRoom {
 public:
  // A packed JPEG of more than that many times the pixels' bytes gets no place: one of them would
  // hold up the other images of its batch on the GPU.
  static constexpr size_t kMostPixels = 4;

  // `memory`, aligned to a unit, is of `samples` * whole_units(pixel_bytes). REQUIRES: no other
  // thread uses this.
  void begin(std::byte* memory, size_t samples, size_t pixel_bytes);

  // A place for a packed JPEG of that many bytes; none if there is too little room. REQUIRES, here
  // and below: the sample has no place yet.
  std::optional<PackedPlace> take(size_t bytes);
  PackedPlace take_pixels();
  std::byte* address(const PackedPlace& place) const {
    return memory_ + size_t{place.at} * PackedPlace::kUnit;
  }

 private:
  std::byte* memory_ = nullptr;
  size_t pixel_bytes_ = 0;  // whole units
  Mutex mutex_;
  size_t left_ GUARDED_BY(mutex_) = 0;   // samples without a place
  size_t spare_ GUARDED_BY(mutex_) = 0;  // bytes that are left beside the pixels of these
  size_t used_ GUARDED_BY(mutex_) = 0;   // bytes
};

}  // namespace saturate
