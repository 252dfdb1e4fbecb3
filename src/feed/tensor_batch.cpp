#include "feed/tensor_batch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "data/elements.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

at::ScalarType scalar_type_of(ElementType type) {
  switch (type) {
    case ElementType::kBool:
      return at::kBool;
    case ElementType::kUint8:
      return at::kByte;
    case ElementType::kInt8:
      return at::kChar;
    case ElementType::kUint16:
      return at::kUInt16;
    case ElementType::kInt16:
      return at::kShort;
    case ElementType::kUint32:
      return at::kUInt32;
    case ElementType::kInt32:
      return at::kInt;
    case ElementType::kUint64:
      return at::kUInt64;
    case ElementType::kInt64:
      return at::kLong;
    case ElementType::kFloat16:
      return at::kHalf;
    case ElementType::kBfloat16:
      return at::kBFloat16;
    case ElementType::kFloat32:
      return at::kFloat;
    case ElementType::kFloat64:
      break;
  }
  return at::kDouble;
}

// Whether it is a sequence of the samples, and not their mask.
bool is_input_sequence(const TensorField& field) {
  return field.is_sequence && !field.is_target && field.name != "mask";
}

bool counts(ElementType type) {
  return is_whole(type) && type != ElementType::kBool;
}

// [count, ...] of the batch's memory, in the field's own type.
at::Tensor column_of(const BatchColumn& column, const Batch& batch, const at::Tensor& memory) {
  std::vector<int64_t> shape = {int64_t(batch.count())};
  shape.insert(shape.end(), column.field.shape.begin(), column.field.shape.end());
  const auto bytes = int64_t(column.field.bytes() * batch.count());
  return memory.narrow(0, int64_t(column.offset), bytes)
      .view(scalar_type_of(column.field.type))
      .view(shape);
}

at::Tensor in_type(const at::Tensor& column, ElementType type) {
  return column.to(counts(type) ? at::kLong : at::kFloat);
}

// [N, D, H, W] or [N, D, H, W, C] as [N, C, D, H, W]; levels as numbers from 0 to 1.
at::Tensor as_channels(const at::Tensor& column, const TensorField& field) {
  const at::Tensor volumes =
      column.dim() == 4 ? column.unsqueeze(1) : column.movedim(-1, 1).contiguous();
  return field.type == ElementType::kUint8 ? volumes.to(at::kFloat).div_(255) : volumes;
}

// [N, D, H, W] or [N, D, H, W, 1] as [N, D, H, W], with kIgnoredLabel for those that are negative
// or kIgnoredClass, also outside the volume.
at::Tensor voxel_labels(const at::Tensor& column) {
  const at::Tensor labels = (column.dim() == 5 ? column.squeeze(-1) : column).to(at::kLong);
  const at::Tensor ignored = labels.lt(0).logical_or_(labels.eq(int64_t{kIgnoredClass}));
  return labels.masked_fill(ignored, kIgnoredLabel);
}

// [N, values] float32.
at::Tensor in_rows(const at::Tensor& column) {
  const at::Tensor rows = column.dim() > 1 ? column.flatten(1) : column.unsqueeze(1);
  return rows.to(at::kFloat);
}

// [N, L, ...] as [N, channels, L] float32.
at::Tensor in_channels(const at::Tensor& column) {
  const at::Tensor places = column.dim() > 2 ? column.flatten(2) : column.unsqueeze(2);
  return places.transpose(1, 2).to(at::kFloat);
}

// The channels of all sequences, and the mask as the last one. Fails with kUsage on a field that
// would be ignored, except one that may be the lengths.
TensorField input_of_sequences(const std::vector<TensorField>& inputs) {
  TensorField joined{"", ElementType::kFloat32, {1, 0}};
  joined.is_sequence = true;
  int others = 0;
  for (const TensorField& field : inputs) {
    if (is_input_sequence(field)) {
      joined.name += (joined.name.empty() ? "" : "+") + field.name;
      joined.shape[0] += int64_t(field.bytes() / bytes_of(field.type)) / field.shape[0];
      joined.shape[1] = field.shape[0];
    } else if (!field.is_sequence &&
               (!counts(field.type) || !field.shape.empty() || ++others > 1)) {
      fail(ErrorKind::kUsage,
           "samples of varying length also have the field " + field.name + " of one size",
           "data.source", "Leave it out with ,fields=NAME+NAME");
    }
  }
  return joined;
}

}  // namespace

const TensorField* target_of(std::span<const TensorField> fields) {
  const auto found = std::ranges::find_if(fields, &TensorField::is_target);
  return found == fields.end() ? nullptr : &*found;
}

bool is_class(const TensorField& target) {
  return target.values > 0 && target.shape.empty();
}

TensorField input_of(std::span<const TensorField> fields) {
  std::vector<TensorField> inputs;
  std::ranges::copy_if(fields, std::back_inserter(inputs),
                       [](const TensorField& field) { return !field.is_target; });
  if (inputs.empty())
    fail(ErrorKind::kUsage, "a sample has no tensor beside its target", "data.source",
         "Give a source with more arrays, or another ,target=NAME");
  if (std::ranges::any_of(inputs, is_input_sequence)) return input_of_sequences(inputs);
  if (inputs.size() == 1 && inputs[0].is_volume) {
    std::vector<int64_t>& shape = inputs[0].shape;
    if (shape.size() == 3) shape.push_back(1);
    std::rotate(shape.begin(), shape.end() - 1, shape.end());
    inputs[0].type = ElementType::kFloat32;
    return inputs[0];
  }
  if (inputs.size() == 1) {
    inputs[0].type = counts(inputs[0].type) ? ElementType::kInt64 : ElementType::kFloat32;
    return inputs[0];
  }
  TensorField joined{"", ElementType::kFloat32, {0}};
  for (const TensorField& field : inputs) {
    joined.name += (joined.name.empty() ? "" : "+") + field.name;
    joined.shape[0] += int64_t(field.bytes() / bytes_of(field.type));
  }
  return joined;
}

bool has_class_labels(const Batch& batch) {
  const auto target = std::ranges::find_if(
      *batch.columns, [](const BatchColumn& column) { return column.field.is_target; });
  return target == batch.columns->end() || is_class(target->field);
}

void take_columns(const Batch& batch, const at::Device& device, bool async, DeviceBatch& out) {
  const auto& columns = *batch.columns;
  const size_t bytes = columns.back().offset + columns.back().field.bytes() * batch.count();
  const at::Tensor memory =
      at::from_blob(
          batch.pixels.get(), {int64_t(bytes)},
          [owner = batch.pixels](void*) mutable { owner.reset(); }, at::TensorOptions(at::kByte))
          .to(device, /*non_blocking=*/async);
  std::vector<TensorField> fields;
  for (const BatchColumn& column : columns) fields.push_back(column.field);
  const bool has_voxels = labelled_volume(fields) != nullptr;
  std::vector<const BatchColumn*> inputs;
  for (const BatchColumn& column : columns) {
    if (!column.field.is_target)
      inputs.push_back(&column);
    else if (!is_class(column.field))
      out.labels = has_voxels ? voxel_labels(column_of(column, batch, memory))
                              : in_type(column_of(column, batch, memory), column.field.type);
  }
  if (inputs.size() == 1 && inputs[0]->field.is_volume) {
    out.images = as_channels(column_of(*inputs[0], batch, memory), inputs[0]->field);
    return;
  }
  if (inputs.size() == 1) {
    out.images = in_type(column_of(*inputs[0], batch, memory), inputs[0]->field.type);
    return;
  }
  // Of sequences only these, of which the mask is the last.
  const bool varies = std::ranges::any_of(fields, is_input_sequence);
  std::vector<at::Tensor> rows;
  for (const BatchColumn* column : inputs) {
    if (varies && !column->field.is_sequence) continue;
    const at::Tensor values = column_of(*column, batch, memory);
    rows.push_back(varies ? in_channels(values) : in_rows(values));
  }
  if (!rows.empty()) out.images = at::cat(rows, 1);
}

}  // namespace saturate
