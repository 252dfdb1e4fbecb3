#include "data/batch_columns.h"

#include <utility>

namespace saturate {

size_t local_batch_size(const LoaderOptions& options) {
  const size_t world = size_t(options.shard.world), rank = size_t(options.shard.rank);
  return (options.batch + world - 1 - rank) / world;
}

std::vector<SampleColumn> columns_of(const Dataset& dataset, const LoaderOptions& options,
                                     const AugmentOptions& augment) {
  std::vector<SampleColumn> columns;
  if (options.output == BatchOutput::kTensors) {
    for (const TensorField& field : batch_fields(dataset, augment))
      columns.push_back({0, field.bytes()});
  } else {
    const size_t area = size_t(augment.size) * size_t(augment.size);
    const bool places = options.output == BatchOutput::kPlaces;
    columns = {{0, places ? 0 : area * 3 * bytes_of(options.pixel_type())},
               {0, options.masks ? area : 0}};
  }
  constexpr size_t kAlignment = 64;
  size_t end = 0;
  for (SampleColumn& column : columns) {
    column.offset = end;
    end += column.size * local_batch_size(options);
    if (options.output == BatchOutput::kTensors) end = (end + kAlignment - 1) & ~(kAlignment - 1);
  }
  columns.push_back({end, 0});
  return columns;
}

std::shared_ptr<const std::vector<BatchColumn>> fields_of(
    const Dataset& dataset, const AugmentOptions& augment,
    const std::vector<SampleColumn>& columns) {
  if (dataset.tensors().empty()) return nullptr;
  std::vector<BatchColumn> fields;
  for (const TensorField& field : batch_fields(dataset, augment))
    fields.push_back({field, columns[fields.size()].offset});
  return std::make_shared<const std::vector<BatchColumn>>(std::move(fields));
}

}  // namespace saturate
