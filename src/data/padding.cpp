#include "data/padding.h"

#include <algorithm>
#include <string>
#include <utility>

#include "saturate/data/error.h"

namespace saturate {

Padding::Padding(const Dataset& dataset, const std::vector<SampleColumn>& columns,
                 std::shared_ptr<const std::vector<BatchColumn>> fields)
    : columns_(columns), fields_(std::move(fields)), row_bytes_(columns.size()) {
  for (size_t i = 0; fields_ && i < fields_->size(); ++i)
    if (const TensorField& field = (*fields_)[i].field; field.is_sequence)
      row_bytes_[i] = field.bytes() / size_t(field.shape[0]);
  const auto sequence = std::ranges::find_if(dataset.tensors(), &TensorField::is_sequence);
  if (sequence == dataset.tensors().end()) return;
  most_ = most_padded(*sequence);
  for (size_t i = 0; i < dataset.size(); ++i) {
    const size_t length = dataset.length(i);
    if (length == 0 || length > size_t(sequence->shape[0]))
      fail(ErrorKind::kData,
           "its length is " + std::to_string(length) + ", and not from 1 to " +
               std::to_string(sequence->shape[0]),
           "sample " + std::to_string(i), "Correct Dataset::length()");
    lengths_.push_back(uint32_t(length));
  }
}

void Padding::group(uint32_t epoch, const LoaderOptions& options,
                    std::vector<uint32_t>& order) const {
  if (lengths_.empty() || options.shuffle.mode == ShuffleMode::kNone) return;
  order = length_order(std::move(order), options.batch, options.seed, epoch, lengths_);
}

void Padding::start(size_t batch, const std::vector<uint32_t>& order, size_t samples) {
  if (lengths_.empty()) return;
  padded_.assign((samples + batch - 1) / batch, 0);
  for (size_t place = 0; place < samples; ++place) {
    size_t& longest = padded_[place / batch];
    const size_t padded = padded_length(lengths_[order[place % order.size()]]);
    longest = std::max(longest, std::min(padded, most_));
  }
}

SequenceExtent Padding::extent(size_t batch, uint32_t index) const {
  if (lengths_.empty()) return {};
  return {lengths_[index], padded_[batch]};
}

size_t Padding::stride(size_t column, size_t batch) const {
  return row_bytes_[column] == 0 ? columns_[column].size : row_bytes_[column] * padded_[batch];
}

std::shared_ptr<const std::vector<BatchColumn>> Padding::columns(size_t batch) const {
  if (lengths_.empty()) return fields_;
  std::vector<BatchColumn> fields = *fields_;
  for (BatchColumn& column : fields)
    if (column.field.is_sequence) column.field.shape[0] = int64_t(padded_[batch]);
  return std::make_shared<const std::vector<BatchColumn>>(std::move(fields));
}

}  // namespace saturate
