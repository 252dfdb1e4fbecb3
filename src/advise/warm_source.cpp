#include "advise/warm_source.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "data/read_sample.h"
#include "data/source_index.h"
#include "saturate/data/error.h"
#include "saturate/data/input.h"

namespace saturate {
namespace {

constexpr int kReaders = 16;  // storage may be slow: more than cores

// Another dataset's samples: all, or only `picks`, repeated.
class View : public Dataset {
 public:
  explicit View(std::shared_ptr<const Dataset> source, std::vector<size_t> picks = {})
      : source_(std::move(source)), picks_(std::move(picks)) {}
  size_t size() const override { return source_->size(); }
  void read(size_t index, Sample& out) const override { source_->read(pick(index), out); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  bool has_masks() const override { return source_->has_masks(); }
  const std::vector<TensorField>& tensors() const override { return source_->tensors(); }
  const DecodedSample* decoded(size_t index) const override {
    return source_->decoded(pick(index));
  }
  std::vector<ObjectVersion> versions() const override { return source_->versions(); }
  size_t length(size_t index) const override { return source_->length(pick(index)); }
  uint64_t bytes(size_t index) const override { return source_->bytes(pick(index)); }
  SourceIndex* source_index() const override { return source_->source_index(); }
  uint64_t look_ahead() const override { return picks_.empty() ? source_->look_ahead() : 0; }
  void advise(ReadAdvice advice, size_t first, size_t count) const override {
    if (picks_.empty()) source_->advise(advice, first, count);
  }
  uint64_t request_bytes() const override {
    return picks_.empty() ? source_->request_bytes() : UINT64_MAX;
  }
  ImageSize size_of_parts(size_t index) const override {
    return source_->size_of_parts(pick(index));
  }
  void advise_rows(ReadAdvice advice, size_t index, ImageRows rows) const override {
    if (picks_.empty()) source_->advise_rows(advice, index, rows);
  }
  void read_rows(size_t index, ImageRows rows, Sample& out) const override {
    source_->read_rows(pick(index), rows, out);
  }

 private:
  size_t pick(size_t index) const { return picks_.empty() ? index : picks_[index % picks_.size()]; }

  const std::shared_ptr<const Dataset> source_;
  const std::vector<size_t> picks_;
};

// Runs `read`, and returns whether the sample is sound.
template <class Read>
bool reads(const Read& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kData) throw;
    return false;
  }
}

}  // namespace

std::vector<size_t> spread_samples(size_t size, size_t count) {
  std::vector<size_t> samples(std::min(size, count));
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = i * size / samples.size();
  return samples;
}

SourceFacts source_facts(const Dataset& source, const std::vector<size_t>& samples) {
  SourceFacts facts;
  facts.samples = source.size();
  facts.is_tensors = !source.tensors().empty();
  Decoder decoder;
  Sample sample;
  ScanIndex* const known = source.source_index() ? source.source_index()->points() : nullptr;
  ScanPoints points;
  double sound = 0, indexed = 0;
  for (const size_t index : samples) {
    ImageInfo info{};
    if (!reads([&] {
          read_sample(source, index, sample);
          if (!facts.is_tensors) info = probe_sample(decoder, sample);
        }))
      continue;
    ++sound;
    facts.has_jpeg = facts.has_jpeg || (!facts.is_tensors && info.format == ImageFormat::kJpeg);
    facts.is_encoded =
        facts.is_encoded || (sample.encoding != SampleEncoding::kRaw && !facts.is_tensors);
    facts.is_segmented = facts.is_segmented || sample.encoding == SampleEncoding::kSegmented;
    if (known && facts.has_jpeg) {
      known->find(scan_key(sample.bytes), points);
      indexed += !points.point.empty();
    }
    facts.bytes += double(sample.bytes.size());
    facts.pixel_bytes += 3.0 * info.width * info.height;
  }
  facts.is_indexed = indexed > 0 && 2 * indexed >= sound;
  facts.bytes /= std::max(1.0, sound);
  facts.pixel_bytes /= std::max(1.0, sound);
  return facts;
}

std::unique_ptr<Dataset> warm_source(const Dataset& source, const CacheOptions& cache,
                                     std::vector<size_t> samples) {
  // `source` stays the caller's.
  auto view =
      std::make_unique<View>(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), &source));
  if (cache.mode != CacheMode::kRam) return view;
  auto cached = cache_dataset(std::move(view), cache);
  parallel_for(samples.size(), kReaders, [&](size_t i) {
    Sample sample;
    reads([&] {
      if (!cached->decoded(samples[i])) cached->read(samples[i], sample);
    });
  });
  return std::make_unique<View>(std::move(cached), std::move(samples));
}

}  // namespace saturate
