// Reads the tensors described by torch.save() of a state_dict, without running anything.
//
// A pickle is a program for a stack machine (CPython's Lib/pickletools.py describes its
// instructions). Supported are those that make plain values. Classes and functions that rebuild
// tensors are interpreted, not called; those of plain values are ignored (pickle_globals.cpp).
// Anything else is refused by name, and every length, size and offset is validated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate {

struct PickledTensor {
  std::string name;                     // its key in the dictionary
  std::string_view type;                // element type in safetensors' naming: "F32"
  std::vector<int64_t> sizes, strides;  // elements; all of it lies within the storage
  int64_t offset = 0;                   // elements from the storage's beginning
  std::string storage;                  // key of the storage that it is a view of
  int64_t storage_elements = 0;         // of the same type
};

struct PickledStorage {
  std::string_view type;  // of its elements
  int64_t elements = 0;
};

struct TensorPickle {
  std::vector<PickledTensor> tensors;  // in the dictionary's order; no name twice
  // Legacy files: keys, in the order of their data; including storages that are ignored.
  std::vector<std::pair<std::string, PickledStorage>> storages;
  size_t end = 0;  // legacy files: offset of the data, bytes
};

// Files of torch 1.6 and later: data.pkl of their archive. A dictionary of tensors, or one that
// contains such, possibly nested, under one of the keys that training scripts use ("state_dict",
// "model", "net" ...), else averaged weights ("model_ema", "ema" ...). If no name there
// begins with `prefix`: all tensors whose path of keys begins with it, with that path in their
// names, as "model_ema.module.fc.bias". Everything else is ignored. Fails with kRun naming `path`.
TensorPickle read_tensor_pickle(std::span<const std::byte> pickle, const std::string& path,
                                const std::string& prefix = "");

// Older files, and those of torch.save(..., _use_new_zipfile_serialization=False), from their first
// byte: consecutive pickles, then the storages' data.
TensorPickle read_legacy_pickles(std::span<const std::byte> file, const std::string& path,
                                 const std::string& prefix = "");
// Whether a file is of that kind, by its first 16 bytes or fewer.
bool is_legacy_pickle(std::span<const std::byte> begin);

[[noreturn]] void fail_pickle(const std::string& what, const std::string& path);

}  // namespace saturate
