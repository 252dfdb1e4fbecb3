// ONNX's file format: a graph of operators as protocol buffers (onnx.proto). No torch needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace saturate {

// TensorProto.DataType
enum class OnnxType {
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kHalf = 10,
  kDouble = 11,
  kBfloat16 = 16
};

using OnnxAttribute = std::variant<int64_t, float, std::string, std::vector<int64_t>>;
using OnnxAttributes = std::map<std::string, OnnxAttribute>;

struct OnnxNode {
  std::string op;
  std::vector<std::string> inputs, outputs;  // an empty input is an optional one that is absent
  OnnxAttributes attributes;
};

struct OnnxTensor {
  std::string name;
  OnnxType type = OnnxType::kFloat;
  std::vector<int64_t> sizes;
  std::span<const std::byte> bytes;  // contiguous, little-endian; must outlive its use
};

// The graph's input or output. A size of kBatchSize is any number, the same in all of them.
inline constexpr int64_t kBatchSize = -1;
struct OnnxValue {
  std::string name;
  OnnxType type = OnnxType::kFloat;
  std::vector<int64_t> sizes;
};

struct OnnxModel {
  std::vector<OnnxNode> nodes;  // each after those whose outputs it takes
  std::vector<OnnxTensor> weights;
  OnnxValue input, output;
  std::map<std::string, std::string> metadata;
};

inline constexpr int64_t kOnnxOperatorSet = 17;

// The file's bytes. Fails with kRun, naming `path`, above 2 GiB, protocol buffers' limit.
std::string to_onnx(const OnnxModel& model, const std::string& path);

}  // namespace saturate
