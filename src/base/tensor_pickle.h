// What torch.save() of a state_dict describes, read without running anything.
//
// A pickle is a program for a machine with a stack (CPython's Lib/pickletools.py describes its
// instructions). Known here are those that make plain values, and of the classes and functions that
// a pickle can name those that rebuild tensors, which are understood, not called, and those of
// plain values, which are passed over (pickle_globals.h). Anything else is refused by name, and
// every length, size and offset is checked before it is believed.
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
  std::string_view type;                // of its elements, as safetensors names it: "F32"
  std::vector<int64_t> sizes, strides;  // elements; all of it lies within the storage
  int64_t offset = 0;                   // elements from the storage's beginning
  std::string storage;                  // the key of the memory that it is a view of
  int64_t storage_elements = 0;         // of the same type
};

struct PickledStorage {
  std::string_view type;  // of its elements
  int64_t elements = 0;
};

struct TensorPickle {
  std::vector<PickledTensor> tensors;  // in the dictionary's order; no name twice
  // Legacy files: keys, in the order that their data follow; also of what is passed over.
  std::vector<std::pair<std::string, PickledStorage>> storages;
  size_t end = 0;  // legacy files: where the data begin, bytes
};

// Files as of torch 1.6: the record data.pkl of their archive. A dictionary of tensors, or one that
// holds such, in another one perhaps, under "state_dict", "model", "model_state_dict", "net" or
// "weights", or else averaged ones under "model_ema", "ema" or "state_dict_ema". With a `prefix`
// that no name there begins with: all tensors that it begins the way to, with the keys on the way
// before their names, as "model_ema.module.fc.bias". What else is in it is passed over. Fails with
// kRun naming `path`.
TensorPickle read_tensor_pickle(std::span<const std::byte> pickle, const std::string& path,
                                const std::string& prefix = "");

// Older files, and those of torch.save(..., _use_new_zipfile_serialization=False), from their first
// byte on: pickles one after the other, then the storages' data.
TensorPickle read_legacy_pickles(std::span<const std::byte> file, const std::string& path,
                                 const std::string& prefix = "");
// Whether that is what a file begins like, by its first 16 bytes or fewer.
bool is_legacy_pickle(std::span<const std::byte> begin);

[[noreturn]] void fail_pickle(const std::string& what, const std::string& path);

}  // namespace saturate
