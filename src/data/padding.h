// Batches of samples of varying length (TensorField::is_sequence): how far each is padded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "data/batch_memory.h"
#include "data/volume_fields.h"
#include "saturate/data/loader.h"

namespace saturate {

// start() belongs to the consumer, while no thread fills a batch; the rest is for any thread.
class Padding {
 public:
  // `columns` must outlive this; `fields` are those of fields_of(), whose sequences have the
  // longest size. Fails with kData if Dataset::length() is out of range.
  Padding(const Dataset& dataset, const std::vector<SampleColumn>& columns,
          std::shared_ptr<const std::vector<BatchColumn>> fields);

  // Groups the order of an epoch by length, if it is shuffled and there are sequences. It is that
  // of all processes: their batches have the same length.
  void group(uint32_t epoch, const LoaderOptions& options, std::vector<uint32_t>& order) const;
  // An epoch of that order begins, of so many samples over all processes, as for rank_order().
  void start(size_t batch, const std::vector<uint32_t>& order, size_t samples);

  // REQUIRES of the rest: `batch` is one of the epoch.
  SequenceExtent extent(size_t batch, uint32_t index) const;
  // Bytes of a sample in a column of the batch.
  size_t stride(size_t column, size_t batch) const;
  std::shared_ptr<const std::vector<BatchColumn>> columns(size_t batch) const;

 private:
  const std::vector<SampleColumn>& columns_;
  const std::shared_ptr<const std::vector<BatchColumn>> fields_;
  std::vector<size_t> row_bytes_;  // by column: of one place of a sequence; else 0
  std::vector<uint32_t> lengths_;  // by sample; empty: no sequences
  size_t most_ = 0;                // most_padded()
  std::vector<size_t> padded_;     // by batch
};

}  // namespace saturate
