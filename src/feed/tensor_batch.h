// Batches of named tensors (BatchOutput::kTensors) as a step takes them: one input, and labels.
#pragma once

#include "saturate/feed.h"

namespace saturate {

// Moves the columns to the device by one copy of the batch's memory; on the CPU they share it.
// Sets `images`, and `labels` unless the target is a class; if there are unfinished volumes, what
// finish_columns() needs. `async`: as BatchStages::copy().
void take_columns(const Batch& batch, const at::Device& device, bool async, DeviceBatch& out);

// Transforms volumes and their labels, on the device's current stream, and sets the same.
void finish_columns(DeviceBatch& batch);

// Whether labels are the loader's own numbers, BatchSample::label: the target is a class, or there
// is none.
bool has_class_labels(const Batch& batch);

}  // namespace saturate
