// The output of pack_dataset(), one implementation per format.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "saturate/data/dataset.h"
#include "saturate/data/env.h"

namespace saturate {

// Not for concurrent use. Destroying it before finish() leaves nothing behind.
class SampleWriter {
 public:
  virtual ~SampleWriter() = default;
  // Appends the next sample; its label is an index into the classes, `length` is Dataset::length().
  virtual void append(const Sample& sample, size_t length) = 0;
  // Renames the result to its final name.
  virtual void finish() = 0;
};

// Each is for samples of `dataset`, which must outlive it, and fails with kUsage if `path` exists.
// Only a shard holds tensors: it fails with kData if they are of a form that it does not.
std::unique_ptr<SampleWriter> write_shard(Env& env, const std::string& path,
                                          const Dataset& dataset);
std::unique_ptr<SampleWriter> write_tar(Env& env, const std::string& path, const Dataset& dataset);
std::unique_ptr<SampleWriter> write_lmdb(Env& env, const std::string& path, const Dataset& dataset);

// Class names become folder names, and may come from an untrusted archive: they must not lead
// elsewhere. Fails with kData.
void check_folder_names(const std::vector<std::string>& classes);

// CLASS/NNNNNNNN.jpg, .png, .webp or .avif. REQUIRES: the sample is encoded.
std::string member_name(const std::vector<std::string>& classes, size_t number,
                        const Sample& sample);

// Converts a segmented JPEG to a plain one, without loss: to the original's bytes if it has a note;
// then returns true.
bool join_segments(Sample& sample);

// The same, and converts raw pixels to PNG.
void make_file(Sample& sample);

}  // namespace saturate
