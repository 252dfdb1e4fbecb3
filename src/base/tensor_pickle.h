// What torch.save() of a state_dict describes, read without running anything.
//
// A pickle is a program for a machine with a stack (CPython's Lib/pickletools.py describes its
// instructions). Known here are those that make plain values, and of the functions that a pickle
// can name those that rebuild tensors: they are understood, not called. Anything else is refused by
// name, and every length, size and offset is checked before it is believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

struct PickledTensor {
  std::string name;                     // its key in the dictionary
  std::string_view type;                // of its elements, as safetensors names it: "F32"
  std::vector<int64_t> sizes, strides;  // elements; all of it lies within the storage
  int64_t offset = 0;                   // elements from the storage's beginning
  std::string storage;                  // the key of the memory that it is a view of
  int64_t storage_elements = 0;         // of the same type
};

struct TensorPickle {
  std::vector<PickledTensor> tensors;  // in the dictionary's order; no name twice
  std::vector<std::string> storages;   // legacy files: keys, in the order that their data follow
  size_t end = 0;                      // legacy files: where the data begin, bytes
};

// Files as of torch 1.6: the record data.pkl of their archive. A dictionary of tensors, or one that
// holds such under "state_dict", "model" or "model_state_dict"; what else is in it is passed over.
// Fails with kRun naming `path`.
TensorPickle read_tensor_pickle(std::span<const std::byte> pickle, const std::string& path);

// Older files, and those of torch.save(..., _use_new_zipfile_serialization=False), from their first
// byte on: pickles one after the other, then the storages' data.
TensorPickle read_legacy_pickles(std::span<const std::byte> file, const std::string& path);
// Whether that is what `file` begins like.
bool is_legacy_pickle(std::span<const std::byte> file);

[[noreturn]] void fail_pickle(const std::string& what, const std::string& path);

}  // namespace saturate
