// Where samples come from. A Dataset maps an index to encoded bytes and a label; everything else
// (order, decoding, augmentation, batches) is built on top of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/registry.h"

namespace saturate {

// One encoded image. A reused Sample stops allocating.
struct Sample {
  std::vector<std::byte> bytes;  // JPEG or PNG
  int64_t label = 0;             // index into Dataset::classes()
  std::string name;              // for messages: a path, or archive.tar:member
};

// Immutable once opened; every method is safe to call from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual size_t size() const = 0;
  // Reads sample `index`. Fails with kData naming the sample. REQUIRES: index < size().
  virtual void read(size_t index, Sample& out) const = 0;
  // Class names, sorted bytewise; a label is a position here.
  virtual const std::vector<std::string>& classes() const = 0;
};

// Opens "SCHEME:REST" with the table of dataset_sources(). Fails with kUsage on an unknown scheme
// and kData on a source that is missing, empty or damaged; `env` must outlive the result.
std::unique_ptr<Dataset> open_dataset(Env& env, const std::string& uri);

using DatasetFactory = std::unique_ptr<Dataset> (*)(Env& env, const std::string& rest);
std::span<const RegistryEntry<DatasetFactory>> dataset_sources();

}  // namespace saturate
