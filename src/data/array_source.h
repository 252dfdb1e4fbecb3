// Arrays in files, [samples, ...] each, as a source of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/sources.h"

namespace saturate {

// The values of an array as a file stores them.
struct ArrayLayout {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;  // all of it: the first size counts samples
  bool is_fortran = false;     // the first index varies fastest
  bool is_big_endian = false;
  uint64_t bytes = 0;  // of all values
};

// Sets layout.bytes. Fails with kData, naming `where`, if the values cannot be counted, or the
// array has no samples or no values.
void measure(ArrayLayout& layout, const std::string& where);

// An array as a source uses it: the values are in C order and little-endian.
struct StoredArray {
  TensorField field;  // `shape` without the samples
  size_t samples = 0;
  std::shared_ptr<const ReadableFile> file;  // null: in `values`
  uint64_t offset = 0;                       // of the values in `file`
  std::vector<std::byte> values;

  // Copies the values of a sample, field.bytes() of them.
  void read(size_t index, std::byte* out) const;
};

// An array in a file, of which `layout.bytes` are at `offset`; small ones, those in another order
// and those of whole numbers that may be classes are read now. Fails with kData, naming `where`, if
// those do not fit in memory. REQUIRES: they are in the file.
StoredArray stored_in(std::shared_ptr<const ReadableFile> file, uint64_t offset,
                      const std::string& name, const ArrayLayout& layout, const std::string& where);
// The same with the values in memory. REQUIRES: values.size() == layout.bytes.
StoredArray stored_in_memory(std::vector<std::byte> values, const std::string& name,
                             const ArrayLayout& layout);

// Which arrays a source uses, by name.
struct ArrayChoice {
  std::string target;               // empty: the array y, target, label or labels, if there is one
  std::vector<std::string> fields;  // empty: all
  std::vector<std::string> volumes;
  std::string lengths;                 // the array of the samples' lengths; empty: no sequences
  std::vector<std::string> sequences;  // empty: all but the target and the lengths
  size_t vocabulary = 0;               // above 0: as of split_tokens()
};
// Removes ",target=NAME", ",fields=NAME+NAME", ",volume=NAME+NAME", ",lengths=NAME",
// ",sequence=NAME+NAME" and ",vocabulary=N" from a source's URI.
ArrayChoice take_array_choice(std::string& rest);

// A sample has the same index in all arrays. `path` names the source in messages and samples. Fails
// with kUsage if the choice names no array, and with kData if the arrays have different lengths.
std::unique_ptr<Dataset> make_array_source(std::vector<StoredArray> arrays,
                                           const ArrayChoice& choice, const std::string& path);

// Samples of the array of `source` that is not choice.lengths, tokens below choice.vocabulary: all
// tokens but the last, and y, the token after each of them, the target, as in tokens:. Reading a
// sample with another token fails with kData. Fails with kUsage if there is no such array, or
// another one, and with kData if a sample has one token.
std::unique_ptr<Dataset> split_tokens(std::unique_ptr<IndexedSource> source,
                                      const ArrayChoice& choice, const std::string& path);

}  // namespace saturate
