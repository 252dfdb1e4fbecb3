// The fields of samples of tensors as a shard describes them: docs/shard_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/bytes.h"
#include "saturate/data/dataset.h"

namespace saturate {

void put_fields(std::vector<std::byte>& out, std::span<const TensorField> fields);

// Reads `count` fields. Returns the problem with what they say, or with their end, or "".
std::string take_fields(ByteReader& reader, uint32_t count, std::vector<TensorField>& fields);

// Why a shard cannot hold samples of these fields and classes; "" if it can. Sizes whose product
// overflows are among the reasons: nothing may be computed from fields before this.
std::string problem_of(std::span<const TensorField> fields, size_t classes);

// Which field of a sample has a number that the field does not allow, and "" if none has. A target
// that is the labels of a volume may have ignored ones, and padding beyond `length`, that of the
// sample's sequences, any. REQUIRES: `bytes` is of the fields' size.
std::string problem_of_values(std::span<const TensorField> fields, size_t length,
                              std::span<const std::byte> bytes);

}  // namespace saturate
