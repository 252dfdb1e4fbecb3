// SPDX-License-Identifier: BSD-3-Clause
// Reading and writing the safetensors format (https://github.com/huggingface/safetensors): an
// 8-byte little-endian header length, a JSON header, and raw little-endian tensor data.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/model.h"

namespace saturate {

struct SafetensorsFile {
  std::vector<NamedTensor> tensors;  // CPU, contiguous, in file order
  std::map<std::string, std::string> metadata;
};

// Writes atomically. Tensors may be on any device and have any layout; they are stored
// contiguously. Fails with kRun.
void write_safetensors(Env& env, const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

// Validates every header field: lengths, offsets that overlap or leave the file, shapes that do not
// match their bytes, unknown types. Fails with kRun naming the file.
SafetensorsFile read_safetensors(Env& env, const std::string& path);

// Metadata "format" of a run's checkpoint. Its "crc32" is tensors_crc32(), or it is damaged.
inline constexpr const char* kCheckpointFormat = "saturate-checkpoint";

// CRC-32 over names and bytes of all tensors in the order of their names, in hexadecimal.
std::string tensors_crc32(const std::vector<NamedTensor>& tensors);

// Only the metadata, without reading tensor data. Checks and fails in the same way.
std::map<std::string, std::string> read_safetensors_metadata(Env& env, const std::string& path);

}  // namespace saturate
