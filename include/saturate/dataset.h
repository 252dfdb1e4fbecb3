// Where samples come from. A Dataset maps an index to an image, encoded or as pixels, and a label;
// everything else (order, decoding, augmentation, batches) is built on top of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/image.h"
#include "saturate/mask.h"
#include "saturate/registry.h"

namespace saturate {

enum class SampleEncoding {
  kEncoded,  // JPEG or PNG
  kRaw,      // uint8 [height, width, channels]
  // A JPEG that can be decoded in parts: kind 3 of docs/shard_format.md.
  kSegmented,
};

// One image. A reused Sample stops allocating; every Dataset sets all that its encoding needs.
struct Sample {
  std::vector<std::byte> bytes;
  SampleEncoding encoding = SampleEncoding::kEncoded;
  int width = 0, height = 0;  // pixels; not of kEncoded
  int channels = 0;           // kRaw alone: 1 grey, 3 RGB
  int64_t label = 0;          // index into Dataset::classes(); 0 of sources with masks
  std::string name;           // for messages: a path, or archive.tar:member
  StoredMask mask;            // of sources with masks alone
};

// A sample as decode_sample() gives it.
struct DecodedSample {
  Image image;
  int64_t label = 0;
  std::string name;
  ClassMap mask;  // of sources with masks, as decode_mask() gives it
};

// Immutable once opened; every method is safe to call from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual size_t size() const = 0;
  // Reads sample `index`. Fails with kData naming the sample. REQUIRES: index < size().
  virtual void read(size_t index, Sample& out) const = 0;
  // Class names, sorted bytewise, but of sources with masks; a label is a position here.
  virtual const std::vector<std::string>& classes() const = 0;
  // Whether every sample has a mask, which says what each pixel shows.
  virtual bool has_masks() const { return false; }
  // The sample where it lies decoded in memory, for as long as the dataset lives; else null, and
  // read() is the way. Errors as of read() and decode_sample().
  virtual const DecodedSample* decoded(size_t /*index*/) const { return nullptr; }
  // Bytes that read() gives; sources that do not know without reading read.
  virtual uint64_t bytes(size_t index) const;
  // As ReadableFile::advise() for samples [first, first + count).
  virtual void advise(ReadAdvice, size_t /*first*/, size_t /*count*/) const {}
};

// The sample's pixels, as Decoder::decode gives them; grey becomes three equal channels. Fails with
// kData naming the sample, also where raw bytes are not as many as their size says.
void decode_sample(Decoder& decoder, const Sample& sample, Image& out);
// The sample's mask, of the size of its image, which is `width` x `height` as decode_sample() gives
// it. Fails with kData, naming both files, where it has another size, and naming the mask where it
// is no PNG of class numbers, or one of them is neither below `classes` nor kIgnoredClass.
void decode_mask(const Sample& sample, int width, int height, size_t classes, ClassMap& out);
// What is known without decoding, as Decoder::probe.
ImageInfo probe_sample(Decoder& decoder, const Sample& sample);

// Opens "SCHEME:REST" with the table of dataset_sources(), or a path by what lies there. Fails with
// kUsage on an unknown scheme or a path to nothing, with kData on a source that is missing, empty
// or damaged; `env` must outlive the result.
std::unique_ptr<Dataset> open_dataset(Env& env, const std::string& uri);

using DatasetFactory = std::unique_ptr<Dataset> (*)(Env& env, const std::string& rest);
std::span<const RegistryEntry<DatasetFactory>> dataset_sources();

}  // namespace saturate
