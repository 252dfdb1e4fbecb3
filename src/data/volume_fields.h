// The fields of a sample of tensors in a batch: volumes are augmented, all others copied.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"

namespace saturate {

// Why a field cannot be a volume, such as "has values of int16"; null if it can.
const char* why_no_volume(const TensorField& field);

// Keeps scratch memory between samples. Not for concurrent use: one per thread.
class VolumeFields {
 public:
  // Fails with kUsage on options that volumes do not have, if a field is one, and if volumes differ
  // in size.
  VolumeFields(std::span<const TensorField> fields, const AugmentOptions& augment);

  // The fields as they are in a batch.
  std::vector<TensorField> batch_fields() const;

  // Writes the fields of a sample, whose values are `in`, to address(i) for field i.
  void write(std::span<const std::byte> in, const SampleKey& key, bool train,
             const std::function<std::byte*(size_t)>& address);

 private:
  struct Part {
    TensorField field;
    size_t offset;                   // in a sample
    std::optional<VolumeForm> form;  // of a volume or its labels
  };
  // A pointer to a field's values, aligned to their type.
  const std::byte* aligned(std::span<const std::byte> in, const Part& part);

  const AugmentOptions augment_;
  std::vector<Part> parts_;
  VolumeScratch scratch_;
  std::vector<uint64_t> moved_;  // a field that is not aligned in the sample
};

}  // namespace saturate
