// SPDX-License-Identifier: BSD-3-Clause
// Sources of samples. A Dataset maps an index to an image, encoded or as pixels, and a label, or to
// named tensors; everything else (order, decoding, augmentation, batches) is built on top of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "saturate/data/data_options.h"
#include "saturate/data/env.h"
#include "saturate/data/image.h"
#include "saturate/data/pixel.h"
#include "saturate/data/registry.h"

namespace saturate {

enum class SampleEncoding {
  kEncoded,  // a JPEG, PNG, WebP or AVIF file
  kRaw,      // uint8 [height, width, channels]
  // A JPEG that can be decoded in parts: kind 3 of docs/shard_format.md.
  kSegmented,
  // The values of Dataset::tensors(), in that order, without gaps, little-endian.
  kTensors,
};

// The type of a tensor's values, as numpy and torch name them.
enum class ElementType {
  kBool,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};
size_t bytes_of(ElementType type);
const char* element_name(ElementType type);  // "float32", ...

// One of the named tensors of a sample, the same for all samples of a dataset.
struct TensorField {
  std::string name;
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;  // of one sample; empty: a single value
  bool is_target = false;      // predicted from the other fields; at most one is
  int64_t values = 0;          // whole numbers in [0, values), such as classes; 0: any
  std::string symbols = {};    // of a text: the character of each value; empty: not known
  // [depth, height, width] or [depth, height, width, channels], to be augmented as a volume. A
  // target of the same depth, height and width, its labels, then has the same geometry.
  bool is_volume = false;
  // Samples differ in the first size: `shape` has the longest, Dataset::length() that of a sample,
  // and values beyond it have no meaning. All sequences of a dataset have one length.
  bool is_sequence = false;
  size_t bytes() const;  // of one sample
  bool operator==(const TensorField&) const = default;
};
size_t bytes_of(std::span<const TensorField> fields);

// One sample. Reusing a Sample avoids allocations; every Dataset sets all fields of its encoding.
struct Sample {
  std::vector<std::byte> bytes;
  SampleEncoding encoding = SampleEncoding::kEncoded;
  int width = 0, height = 0;  // pixels; not for kEncoded
  int channels = 0;           // kRaw only: 1 grey, 3 RGB
  int64_t label = 0;          // index into Dataset::classes(); 0 for sources without, or with masks
  std::string name;           // for messages: a path, or archive.tar:member
  StoredMask mask;            // for sources with masks
};

// A sample as decoded by decode_sample().
struct DecodedSample {
  Image image;
  int64_t label = 0;
  std::string name;
  ClassMap mask;  // for sources with masks, from decode_mask()
};

class SourceIndex;

// Immutable once opened; every method is safe to call from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual size_t size() const = 0;
  // Reads sample `index`. Fails with kData naming the sample. REQUIRES: index < size().
  virtual void read(size_t index, Sample& out) const = 0;
  // Class names, sorted bytewise except for sources with masks; a label is an index into them.
  // Empty for tensors without a target that is a class.
  virtual const std::vector<std::string>& classes() const = 0;
  // Whether every sample has a mask, which gives the class of each pixel.
  virtual bool has_masks() const { return false; }
  // The fields of every sample, if samples are named tensors; empty if they are images.
  virtual const std::vector<TensorField>& tensors() const;
  // The decoded sample in memory, valid as long as the dataset; else null, and read() must be used.
  // Errors as of read() and decode_sample().
  virtual const DecodedSample* decoded(size_t /*index*/) const { return nullptr; }
  // One sentence that warns the user before training of images in the source that are not samples,
  // such as those beside the class folders; empty if there are none.
  virtual std::string warning() const { return {}; }
  // A fact about the whole source that its samples do not show, without a full stop; may be empty.
  virtual std::string note() const { return {}; }
  // The objects of stores that this was opened from, as they were then; empty for local sources.
  // May hash the list of a bucket, so keep the result.
  virtual std::vector<ObjectVersion> versions() const { return {}; }
  // The length of the sample's sequences, at least 1; 0 for datasets without.
  virtual size_t length(size_t /*index*/) const { return 0; }
  // Bytes that read() returns; the default reads the sample.
  virtual uint64_t bytes(size_t index) const;
  // As ReadableFile::advise() for samples [first, first + count).
  virtual void advise(ReadAdvice, size_t /*first*/, size_t /*count*/) const {}
  // The index of its JPEGs, which open_input() opens; null: a Loader makes one in memory.
  virtual SourceIndex* source_index() const { return nullptr; }
  // As ReadableFile::look_ahead(), sample by sample.
  virtual uint64_t look_ahead() const { return 0; }
  // As ReadableFile::request_bytes(), if some images can be read in part; else UINT64_MAX.
  virtual uint64_t request_bytes() const { return UINT64_MAX; }
  // The size of an image that can be read in part; else not set.
  virtual ImageSize size_of_parts(size_t /*index*/) const { return {}; }
  // advise(), kSoon or kLater, and read() of the bytes that decoding these rows takes: the others
  // of `out` are 0, and no checksum is checked. advise(kNotAgain) withdraws the former.
  virtual void advise_rows(ReadAdvice advice, size_t index, ImageRows) const {
    advise(advice, index, 1);
  }
  virtual void read_rows(size_t index, ImageRows, Sample& out) const { read(index, out); }
};

// The sample's pixels, as Decoder::decode returns them; grey becomes three equal channels. Fails
// with kData naming the sample, also if the number of raw bytes does not match its size.
void decode_sample(Decoder& decoder, const Sample& sample, Image& out);
// The sample's mask, whose size must be `width` x `height`, that of the decoded image. Fails with
// kData, naming both files, if its size differs, and naming the mask if it is not a PNG of class
// numbers, or has a number that is neither below `classes` nor kIgnoredClass.
void decode_mask(const Sample& sample, int width, int height, size_t classes, ClassMap& out);
// Properties known without decoding, as Decoder::probe.
ImageInfo probe_sample(Decoder& decoder, const Sample& sample);

// Opens "SCHEME:REST" with the table of dataset_sources(), or a path by detecting its contents.
// Fails with kUsage on an unknown scheme or a missing path, with kData on a source that is missing,
// empty or damaged; `env` must outlive the result. `store` is for paths that are URLs of objects.
std::unique_ptr<Dataset> open_dataset(Env& env, const std::string& uri,
                                      const StoreOptions& store = {});

using DatasetFactory = std::unique_ptr<Dataset> (*)(Env& env, const std::string& rest);
std::span<const RegistryEntry<DatasetFactory>> dataset_sources();

// Adds a row to dataset_sources(): from now on open_dataset(), data.source and data.eval_source
// accept "SCHEME:REST", and `open` gets the rest. Both texts must outlive every use, like literals.
// Fails with kUsage if a source of that scheme exists. To be called before any other use of
// dataset_sources(), from one thread.
void add_source(std::string_view scheme, std::string_view doc, DatasetFactory open);

}  // namespace saturate
