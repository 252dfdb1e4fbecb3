// The sources behind open_dataset(), one per scheme, and shared helpers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "saturate/data/dataset.h"
#include "saturate/data/env.h"
#include "saturate/data/error.h"

namespace saturate {

std::unique_ptr<Dataset> open_folder(Env& env, const std::string& rest);
// REQUIRES: `env` is a StoreEnv.
std::unique_ptr<Dataset> open_far_folder(Env& env, const std::string& url);
std::unique_ptr<Dataset> open_masks(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_tar(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_shard(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_lmdb(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_idx(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_cifar(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_synth(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_synth_text(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_synth_table(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_synth_volume(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_npy(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_npz(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_safetensors(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_csv(Env& env, const std::string& rest);
// A source for evaluation: a separate table gets ",fit=" and further options of the table that
// `training` reads, unless it has them. Any other source is returned as it is. Fails with kData if
// the table of `training` is missing.
std::string with_training_fit(Env& env, const std::string& uri, const std::string& training);
std::unique_ptr<Dataset> open_tokens(Env& env, const std::string& rest);
std::unique_ptr<Dataset> open_split(Env& env, const std::string& rest);

// The scheme of a source: from SCHEME:REST, or detected from a path without one; "" if neither.
std::string scheme_of_source(Env& env, const std::string& uri);
// The source of which `uri` is a split, or itself; "" if its fields are not complete.
std::string without_split(const std::string& uri);
// Whether each sample is a file, or an object, of its own.
bool has_file_per_sample(Env& env, const std::string& uri);

// A source that knows parts of a sample without reading all of it. Safe for concurrent use.
class IndexedSource : public Dataset {
 public:
  // The label that read() returns; -1 if only read() can report the problem.
  virtual int64_t label(size_t index) const = 0;
  // As read(), but may stop after `most` bytes of an encoded sample. Returns its full size.
  virtual uint64_t read_start(size_t index, size_t /*most*/, Sample& out) const {
    read(index, out);
    return out.bytes.size();
  }
};

// A source that hands everything on to another one. `Source`: Dataset or IndexedSource.
template <class Source>
class WrappedSource : public Source {
 public:
  explicit WrappedSource(std::unique_ptr<Source> source) : source_(std::move(source)) {}
  size_t size() const override { return source_->size(); }
  void read(size_t index, Sample& out) const override { source_->read(index, out); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  bool has_masks() const override { return source_->has_masks(); }
  const std::vector<TensorField>& tensors() const override { return source_->tensors(); }
  const DecodedSample* decoded(size_t index) const override { return source_->decoded(index); }
  std::string warning() const override { return source_->warning(); }
  std::string note() const override { return source_->note(); }
  std::vector<ObjectVersion> versions() const override { return source_->versions(); }
  size_t length(size_t index) const override { return source_->length(index); }
  uint64_t bytes(size_t index) const override { return source_->bytes(index); }
  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    source_->advise(advice, first, count);
  }
  SourceIndex* source_index() const override { return source_->source_index(); }
  uint64_t look_ahead() const override { return source_->look_ahead(); }
  uint64_t request_bytes() const override { return source_->request_bytes(); }
  ImageSize size_of_parts(size_t index) const override { return source_->size_of_parts(index); }
  void advise_rows(ReadAdvice advice, size_t index, ImageRows rows) const override {
    source_->advise_rows(advice, index, rows);
  }
  void read_rows(size_t index, ImageRows rows, Sample& out) const override {
    source_->read_rows(index, rows, out);
  }

 protected:
  const std::unique_ptr<Source> source_;
};

// Fails with kData if a sample of a file that is far away (ReadableFile::look_ahead) is too large
// to be one: memory is allocated for it before the server has sent anything.
inline void check_far_size(uint64_t bytes, const std::string& where) {
  constexpr uint64_t kMost = 1 << 30;
  if (bytes > kMost)
    fail(ErrorKind::kData,
         "it claims to have a sample or an array in memory of " + std::to_string(bytes) + " bytes",
         where, "Copy the file to a disk, if that is right");
}

// Refuses PATH/train/CLASS/..., where the folders in PATH would be taken for classes. REQUIRES: no
// image is in a class folder itself.
void refuse_parts(const std::vector<std::string>& classes, const std::string& root);
// As Dataset::warning() of class folders; `first` is one of the images beside them.
std::string warning_of_outside(uint64_t count, const std::string& first);

// Names for `count` classes that the data only numbers, zero-padded so that they sort numerically.
std::vector<std::string> number_classes(size_t count);
// Whether each class is named by its number, such as 7 or 07: a label is then the value.
bool are_numbered(const std::vector<std::string>& classes);
// A class's name without the zeros before it, which depend on the largest number; empty if it is
// not a whole number.
std::string_view digits_of(std::string_view name);

// Sorts the names of classes; returns the position of each name that was given.
std::vector<int64_t> sort_classes(std::vector<std::string>& names);

// Whether a file of this name counts as a sample: .jpg, .jpeg, .png, .webp or .avif in any case,
// and not hidden (macOS leaves "._photo.jpg" beside photo.jpg). So do .heic and .heif: decoding
// says that they are not supported, which skipping them would hide.
inline bool is_image_name(std::string_view name) {
  if (name.empty() || name.front() == '.') return false;
  const auto dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::string ending = lower_case(name.substr(dot + 1));
  for (const char* known : {"jpg", "jpeg", "png", "webp", "avif", "heic", "heif"})
    if (ending == known) return true;
  return false;
}

}  // namespace saturate
