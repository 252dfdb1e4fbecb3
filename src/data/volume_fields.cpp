#include "data/volume_fields.h"

#include <algorithm>
#include <cstring>

#include "data/elements.h"
#include "data/require.h"

namespace saturate {
namespace {

constexpr int64_t kLongestAxis = 1 << 15;
constexpr int64_t kIgnoredNumber = -100;  // kIgnoredLabel of feed.h

VolumeForm form_of(const TensorField& field, const AugmentOptions& augment) {
  VolumeForm form{};
  for (size_t axis = 0; axis < 3; ++axis) form.in[axis] = int32_t(field.shape[axis]);
  set_volume_size(augment, form.in, form.out);
  form.channels = field.shape.size() == 4 ? int32_t(field.shape[3]) : 1;
  form.type = field.type == ElementType::kUint8 ? VoxelType::kUint8 : VoxelType::kFloat32;
  form.pad_mode = augment.pad_mode;
  return form;
}

bool same_size(const TensorField& a, const TensorField& b) {
  return std::equal(a.shape.begin(), a.shape.begin() + 3, b.shape.begin(), b.shape.begin() + 3);
}

// Whether a target has a label for each voxel of a volume.
bool has_label_for_voxels(const TensorField& target, const TensorField& volume) {
  return target.is_target && !target.is_volume && is_whole(target.type) &&
         (target.shape.size() == 3 || (target.shape.size() == 4 && target.shape[3] == 1)) &&
         same_size(target, volume);
}

VoxelType label_type(ElementType type) {
  const size_t bytes = bytes_of(type);
  return bytes == 1   ? VoxelType::kLabel8
         : bytes == 2 ? VoxelType::kLabel16
         : bytes == 4 ? VoxelType::kLabel32
                      : VoxelType::kLabel64;
}

// The bits of a label outside the volume, which is ignored in training; a bool has no such value.
uint64_t outside_label(ElementType type) {
  if (type == ElementType::kBool) return 0;
  const bool is_signed = type == ElementType::kInt8 || type == ElementType::kInt16 ||
                         type == ElementType::kInt32 || type == ElementType::kInt64;
  return is_signed ? uint64_t(kIgnoredNumber) : kIgnoredClass;
}

// Copies a sequence's places, and pads them.
void write_sequence(const TensorField& field, const std::byte* values, const SequenceExtent& extent,
                    std::byte* out) {
  const size_t row = field.bytes() / size_t(field.shape[0]);
  std::memcpy(out, values, extent.length * row);
  std::memset(out + extent.length * row, 0, (extent.padded - extent.length) * row);
}

}  // namespace

const char* why_no_sequences(std::span<const TensorField> fields) {
  const auto first = std::ranges::find_if(fields, &TensorField::is_sequence);
  if (first == fields.end()) return nullptr;
  for (const TensorField& field : fields) {
    if (field.name == "mask") return "has a field named mask, as the mask of the padding is named";
    if (!field.is_sequence) continue;
    if (field.is_volume) return "has a volume that is a sequence";
    if (field.shape.empty()) return "has a sequence that is a single value";
    if (field.shape[0] != first->shape[0]) return "has sequences of different sizes";
  }
  return nullptr;
}

const char* why_no_volume(const TensorField& field) {
  if (field.type != ElementType::kFloat32 && field.type != ElementType::kUint8)
    return "has values that are neither float32 nor uint8";
  if (field.shape.size() != 3 && field.shape.size() != 4) return "is not one of volumes";
  const auto longest = *std::max_element(field.shape.begin(), field.shape.end());
  if (longest >= kLongestAxis || field.bytes() / bytes_of(field.type) > INT32_MAX)
    return "has more than 2^31 values a sample, or a side of more than 2^15";
  return nullptr;
}

VolumeFields::VolumeFields(std::span<const TensorField> fields, const LoaderOptions& options,
                           const AugmentOptions& augment)
    : augment_(augment) {
  if (const char* reason = why_no_sequences(fields))
    require(false, reason, "data.source", "Rename the field, or unset TensorField::is_sequence");
  const TensorField* volume = nullptr;
  size_t offset = 0;
  uint32_t volumes = 0;
  for (const TensorField& field : fields) {
    parts_.push_back({field, offset, volumes, {}, {}});
    offset += field.bytes();
    if (!field.is_volume) continue;
    const char* const reason = why_no_volume(field);
    require(!reason, reason, field.name.c_str(), "Unset TensorField::is_volume");
    require(!volume || same_size(*volume, field), "volumes of a sample differ in size",
            "data.source", "Name those of one size with volume=NAME+NAME");
    volume = &field;
    ++volumes;
    parts_.back().form = form_of(field, augment);
  }
  require(volume || augment.crop != CropKind::kRandom, "is for volumes", "augment.crop=random",
          "Name the volume in the source: npy:...,volume=NAME");
  if (!volume) return;
  check_volume_options(augment);
  for (Part& part : parts_) {
    if (!has_label_for_voxels(part.field, *volume)) continue;
    part.form = form_of(*volume, augment);
    part.form->type = label_type(part.field.type);
    part.form->channels = 1;
    part.form->outside = outside_label(part.field.type);
  }
  if (options.output == BatchOutput::kUnfinishedTensors && options.train) defer_transforms();
}

// A warp needs the whole volume; without one only the crop is handed on.
void VolumeFields::defer_transforms() {
  for (Part& part : parts_) {
    if (!part.form) continue;
    if (warps_volumes(augment_)) {
      part.deferred = part.form;
    } else if (part.field.is_volume && changes_volumes(augment_)) {
      part.deferred = part.form;
      std::copy_n(part.form->out, 3, part.deferred->in);
    }
  }
}

std::vector<BatchColumn> VolumeFields::batch_columns() const {
  std::vector<BatchColumn> columns;
  const BatchColumn* sequence = nullptr;
  columns.reserve(parts_.size() + 1);
  for (const Part& part : parts_) {
    BatchColumn& column = columns.emplace_back(BatchColumn{part.field, 0, part.deferred});
    if (part.form) std::copy_n(part.form->out, 3, column.field.shape.begin());
    if (!part.field.is_sequence) continue;
    column.field.shape[0] = int64_t(most_padded(part.field));
    if (!sequence) sequence = &column;
  }
  if (!sequence) return columns;
  TensorField mask{"mask", ElementType::kBool, {sequence->field.shape[0]}};
  mask.is_sequence = true;
  columns.push_back({std::move(mask)});
  return columns;
}

const std::byte* VolumeFields::aligned(std::span<const std::byte> in, const Part& part) {
  const std::byte* const values = in.data() + part.offset;
  const size_t bytes = part.field.bytes();
  if (reinterpret_cast<uintptr_t>(values) % bytes_of(part.form->type) == 0) return values;
  moved_.resize((bytes + 7) / 8);
  std::memcpy(moved_.data(), values, bytes);
  return reinterpret_cast<const std::byte*>(moved_.data());
}

VolumeEffects VolumeFields::write_volume(const Part& part, const std::byte* values,
                                         const SampleKey& key, bool train, std::byte* out) {
  const VolumeForm& form = *part.form;
  VolumeRange range;
  if (train && part.field.is_volume && needs_volume_range(augment_))
    range = volume_range(form.type, values, size_t(form.values_in()));
  VolumeEffects effects = train ? draw_volume(augment_, key, form, range) : eval_volume(form);
  effects.seed ^= part.volume * 0x9e3779b9U;  // each volume has noise of its own
  if (!part.deferred) {
    apply_volume(form, effects, values, scratch_, out);
  } else if (warps_volumes(augment_)) {
    std::memcpy(out, values, part.field.bytes());
  } else {
    VolumeEffects cut;
    std::swap(cut.matrix, effects.matrix);
    apply_volume(form, cut, values, scratch_, out);
  }
  return effects;
}

void VolumeFields::write(std::span<const std::byte> in, const SampleKey& key, bool train,
                         const SequenceExtent& extent,
                         const std::function<std::byte*(size_t)>& address) {
  size_t next = parts_.size() + (extent.padded > 0);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    std::byte* const out = address(i);
    if (part.field.is_sequence) {
      write_sequence(part.field, in.data() + part.offset, extent, out);
      continue;
    }
    if (!part.form) {
      std::memcpy(out, in.data() + part.offset, part.field.bytes());
      continue;
    }
    const VolumeEffects rest = write_volume(part, aligned(in, part), key, train, out);
    if (part.deferred) std::memcpy(address(next++), &rest, sizeof rest);
  }
  if (extent.padded == 0) return;
  std::byte* const mask = address(parts_.size());
  std::memset(mask, 1, extent.length);
  std::memset(mask + extent.length, 0, extent.padded - extent.length);
}

const TensorField* labelled_volume(std::span<const TensorField> fields) {
  const auto volume = std::ranges::find_if(fields, &TensorField::is_volume);
  if (volume == fields.end()) return nullptr;
  for (const TensorField& field : fields)
    if (has_label_for_voxels(field, *volume)) return &*volume;
  return nullptr;
}

std::vector<TensorField> batch_fields(const Dataset& dataset, const AugmentOptions& augment) {
  std::vector<TensorField> fields;
  for (BatchColumn& column : VolumeFields(dataset.tensors(), {}, augment).batch_columns())
    fields.push_back(std::move(column.field));
  return fields;
}

}  // namespace saturate
