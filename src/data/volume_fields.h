// The fields of a sample of tensors in a batch: volumes are augmented, sequences padded, all others
// copied.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"
#include "saturate/data/loader.h"

namespace saturate {

// Why a field cannot be a volume, such as "has values of int16"; null if it can.
const char* why_no_volume(const TensorField& field);

// Why fields cannot have sequences as they are, such as "has sequences of different sizes"; null if
// they can, or have none.
const char* why_no_sequences(std::span<const TensorField> fields);

// The length of a sample's sequences, and that to which its batch is padded; 0 without sequences.
struct SequenceExtent {
  size_t length = 0, padded = 0;
};
constexpr size_t padded_length(size_t longest) {
  return (longest + 7) / 8 * 8;
}
// At most. Tokens are not padded beyond the longest sample, which is a language model's context.
inline size_t most_padded(const TensorField& sequence) {
  const auto longest = size_t(sequence.shape[0]);
  return sequence.values > 0 ? longest : padded_length(longest);
}

// Keeps scratch memory between samples. Not for concurrent use: one per thread.
class VolumeFields {
 public:
  // Fails with kUsage on options that volumes do not have, if a field is one, and if volumes or
  // sequences differ in size.
  VolumeFields(std::span<const TensorField> fields, const LoaderOptions& options,
               const AugmentOptions& augment);

  // The fields as they are in a batch; without offsets.
  std::vector<BatchColumn> batch_columns() const;

  // Writes the fields of a sample, whose values are `in`, to address(i) for column i; then the
  // VolumeEffects of each whose column has a form, in their order, to the addresses that follow.
  void write(std::span<const std::byte> in, const SampleKey& key, bool train,
             const SequenceExtent& extent, const std::function<std::byte*(size_t)>& address);

 private:
  struct Part {
    TensorField field;
    size_t offset;                       // in a sample
    uint32_t volume;                     // number of the volume among those of the sample
    std::optional<VolumeForm> form;      // of a volume or its labels
    std::optional<VolumeForm> deferred;  // the transform that the batch's consumer applies
  };
  // Sets Part::deferred.
  void defer_transforms();
  // A pointer to a field's values, aligned to their type.
  const std::byte* aligned(std::span<const std::byte> in, const Part& part);

  // Writes a volume or its labels, and returns the effects to be applied by the consumer, if
  // deferred.
  VolumeEffects write_volume(const Part& part, const std::byte* values, const SampleKey& key,
                             bool train, std::byte* out);

  const AugmentOptions augment_;
  std::vector<Part> parts_;
  VolumeScratch scratch_;
  std::vector<uint64_t> moved_;  // a field that is not aligned in the sample
};

}  // namespace saturate
