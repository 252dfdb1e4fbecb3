// Where pack_dataset() puts samples, one implementation per format.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "saturate/dataset.h"
#include "saturate/env.h"

namespace saturate {

// Not for concurrent use. One that is destroyed before finish() leaves nothing behind.
class SampleWriter {
 public:
  virtual ~SampleWriter() = default;
  // The next sample; its label is a position in the classes.
  virtual void append(const Sample& sample) = 0;
  // Makes the result appear under its name.
  virtual void finish() = 0;
};

// Each fails with kUsage where `path` is taken. `classes` must outlive the writer.
std::unique_ptr<SampleWriter> write_shard(Env& env, const std::string& path,
                                          const std::vector<std::string>& classes);
std::unique_ptr<SampleWriter> write_tar(Env& env, const std::string& path,
                                        const std::vector<std::string>& classes);
std::unique_ptr<SampleWriter> write_lmdb(Env& env, const std::string& path,
                                         const std::vector<std::string>& classes);

// Class names become folders, and may come from an archive: they must not lead elsewhere. Fails
// with kData.
void check_folder_names(const std::vector<std::string>& classes);

// CLASS/NNNNNNNN.jpg or .png. REQUIRES: the sample is encoded.
std::string member_name(const std::vector<std::string>& classes, size_t number,
                        const Sample& sample);

// Turns a JPEG in segments into a plain one, without loss.
void join_segments(Sample& sample);

// The same, and raw pixels into a PNG.
void make_file(Sample& sample);

}  // namespace saturate
