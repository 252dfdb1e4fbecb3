#include "feed/tensor_batch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "data/elements.h"
#include "feed/finish_batch.h"
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

// The tokens of varying length whose target is the token after each; null if they are none.
const TensorField* token_sequence(std::span<const TensorField> fields) {
  const TensorField* const target = target_of(fields);
  const auto tokens = std::ranges::find_if(fields, is_input_sequence);
  if (!target || !target->is_sequence || std::ranges::count_if(fields, is_input_sequence) != 1 ||
      tokens->shape.size() != 1 || tokens->shape != target->shape || tokens->values == 0 ||
      tokens->values != target->values || !is_integer(tokens->type) || !is_integer(target->type))
    return nullptr;
  return &*tokens;
}

bool is_unfinished(const BatchColumn& column) {
  return column.form.has_value();
}

// The bytes of a batch's memory that are in use.
size_t used_bytes(const std::vector<BatchColumn>& columns, size_t count) {
  size_t end = 0;
  for (const BatchColumn& column : columns) {
    end = std::max(end, column.offset + column.bytes_in_batch() * count);
    if (column.form) end = std::max(end, column.effects + sizeof(VolumeEffects) * count);
  }
  return end;
}

// [count, ...] of the batch's memory, in the field's own type, as it was loaded.
at::Tensor column_of(const BatchColumn& column, int64_t count, const at::Tensor& memory) {
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), column.field.shape.begin(), column.field.shape.end());
  if (column.form) std::copy_n(column.form->in, 3, shape.begin() + 1);
  const auto bytes = int64_t(column.bytes_in_batch()) * count;
  return memory.narrow(0, int64_t(column.offset), bytes)
      .view(scalar_type_of(column.field.type))
      .view(shape);
}

// A column as it is in the end: a volume or its labels transformed.
at::Tensor finished_column(const BatchColumn& column, int64_t count, const at::Tensor& memory) {
  const at::Tensor loaded = column_of(column, count, memory);
  if (!column.form) return loaded;
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), column.field.shape.begin(), column.field.shape.end());
  const at::Tensor out = at::empty(shape, loaded.options());
  const auto* const effects = memory.const_data_ptr<uint8_t>() + column.effects;
  transform_volumes(
      {*column.form, loaded.const_data_ptr(), reinterpret_cast<const VolumeEffects*>(effects),
       out.mutable_data_ptr(), count},
      memory.device());
  return out;
}

at::Tensor in_type(const at::Tensor& column, ElementType type) {
  return column.to(is_integer(type) ? at::kLong : at::kFloat);
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
               (!is_integer(field.type) || !field.shape.empty() || ++others > 1)) {
      fail(ErrorKind::kUsage,
           "samples of varying length also have the field " + field.name + " of one size",
           "data.source", "Leave it out with ,fields=NAME+NAME");
    }
  }
  return joined;
}

// Sets images and labels from the batch's memory.
void set_columns(const std::vector<BatchColumn>& columns, int64_t count, const at::Tensor& memory,
                 DeviceBatch& out) {
  std::vector<TensorField> fields;
  for (const BatchColumn& column : columns) fields.push_back(column.field);
  const bool has_voxels = labelled_volume(fields) != nullptr;
  // With sequences only they are inputs; the mask is the last.
  const bool varies = std::ranges::any_of(fields, is_input_sequence);
  const bool has_tokens = token_sequence(fields) != nullptr;
  std::vector<const TensorField*> inputs;
  std::vector<at::Tensor> values;
  for (const BatchColumn& column : columns) {
    if (column.field.is_target && is_class(column.field)) continue;
    if (varies && !column.field.is_target && !column.field.is_sequence) continue;
    const at::Tensor finished = finished_column(column, count, memory);
    if (column.field.is_target) {
      out.labels = has_voxels ? voxel_labels(finished) : in_type(finished, column.field.type);
      continue;
    }
    inputs.push_back(&column.field);
    values.push_back(finished);
  }
  if (has_tokens) {
    const at::Tensor& mask = values[1];
    out.images = in_type(values[0], inputs[0]->type);
    out.labels = out.labels.masked_fill(mask.logical_not(), kIgnoredLabel);
    return;
  }
  if (inputs.size() == 1) {  // no sequence, which has a mask beside it
    out.images = inputs[0]->is_volume ? as_channels(values[0], *inputs[0])
                                      : in_type(values[0], inputs[0]->type);
    return;
  }
  for (at::Tensor& each : values) each = varies ? in_channels(each) : in_rows(each);
  if (!values.empty()) out.images = at::cat(values, 1);
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
  if (std::ranges::any_of(inputs, is_input_sequence)) {
    const TensorField joined = input_of_sequences(inputs);
    const TensorField* const tokens = token_sequence(fields);
    if (!tokens) return joined;
    TensorField input = *tokens;
    input.type = ElementType::kInt64;
    return input;
  }
  if (inputs.size() == 1 && inputs[0].is_volume) {
    std::vector<int64_t>& shape = inputs[0].shape;
    if (shape.size() == 3) shape.push_back(1);
    std::rotate(shape.begin(), shape.end() - 1, shape.end());
    inputs[0].type = ElementType::kFloat32;
    return inputs[0];
  }
  if (inputs.size() == 1) {
    inputs[0].type = is_integer(inputs[0].type) ? ElementType::kInt64 : ElementType::kFloat32;
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
  const auto count = int64_t(batch.count());
  const at::Tensor memory =
      at::from_blob(
          batch.pixels.get(), {int64_t(used_bytes(columns, batch.count()))},
          [owner = batch.pixels](void*) mutable { owner.reset(); }, at::TensorOptions(at::kByte))
          .to(device, /*non_blocking=*/async);
  if (std::ranges::none_of(columns, is_unfinished)) return set_columns(columns, count, memory, out);
  out.pixels = memory;
  out.columns = batch.columns;
  for (const BatchColumn& column : columns)
    if (column.field.is_target && !is_class(column.field))
      out.labels = column_of(column, count, memory);
}

void finish_columns(DeviceBatch& batch) {
  const at::Tensor memory = std::exchange(batch.pixels, {});
  const auto columns = std::exchange(batch.columns, {});
  set_columns(*columns, batch.count(), memory, batch);
}

}  // namespace saturate
