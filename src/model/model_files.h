// Files of weights and programs.
#pragma once

#include <c10/core/ScalarType.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/data/error.h"
#include "saturate/model.h"

namespace saturate {

// The element types common to safetensors and torch, by safetensors' names.
struct SafetensorsType {
  std::string_view name;
  at::ScalarType type;
};

inline constexpr std::array<SafetensorsType, 13> kSafetensorsTypes{{
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"U64", at::kUInt64},
    {"I32", at::kInt},
    {"U32", at::kUInt32},
    {"I16", at::kShort},
    {"U16", at::kUInt16},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
}};

// REQUIRES: a name of the table, as readers of headers and pickles accept no other.
inline at::ScalarType type_named(std::string_view name) {
  return std::ranges::find(kSafetensorsTypes, name, &SafetensorsType::name)->type;
}

// REQUIRES: a contiguous tensor on the CPU.
inline std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Any other value in a bool would be undefined behaviour.
inline bool are_bools(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte value) { return value <= std::byte{1}; });
}

// Env reports a failed read as bad data; here it is a failure of the run.
template <class Body>
auto as_of_the_run(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    fail(ErrorKind::kRun, error.reason(), error.where(), error.remedy(), error.thrown_at());
  }
}

// An Env file in the form of torch's archive reader interface.
class EnvReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit EnvReader(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}
  size_t size() const override { return file_->size(); }
  // Stops at the end of the file.
  size_t read(uint64_t at, void* out, size_t count, const char*) const override {
    if (at >= file_->size()) return 0;
    const size_t n = std::min<size_t>(count, file_->size() - at);
    file_->read_at(at, std::span(static_cast<std::byte*>(out), n));
    return n;
  }

 private:
  std::unique_ptr<ReadableFile> file_;
};

// Tensors of files written by torch.save(): an archive, as written by torch 1.6 and later, or the
// legacy format (tensor_pickle.h). Tensors may share memory. Fail with kRun, or as Env does.
// `prefix`: as in read_tensor_pickle().
std::vector<NamedTensor> read_pt_archive(Env& env, const std::string& path,
                                         const std::string& prefix);
std::vector<NamedTensor> read_legacy_pt(Env& env, const std::string& path,
                                        const std::string& prefix);

}  // namespace saturate
