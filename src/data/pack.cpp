// Packing: many threads read, shrink, re-encode, decode or segment samples; one writes them in
// order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/checksum.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "data/export.h"
#include "data/in_order.h"
#include "data/ordered.h"
#include "data/progress_meter.h"
#include "data/read_sample.h"
#include "data/require.h"
#include "data/sample_writer.h"
#include "data/scratch_pool.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/augment.h"
#include "saturate/data/error.h"
#include "saturate/data/registry.h"
#include "store/store_env.h"
#include "store/store_url.h"

namespace saturate {
namespace {

constexpr int kShrunkQuality = 90;

using OpenWriter = std::unique_ptr<SampleWriter> (*)(Env&, const std::string&, const Dataset&);
constexpr RegistryEntry<OpenWriter> kWriters[] = {
    {"shard", "shard:FILE", write_shard},
    {"lmdb", "lmdb:FOLDER", write_lmdb},
    {"tar", "tar:FILE", write_tar},
};

struct Scratch {
  Decoder decoder;
  Resizer resizer;
  Image image, other;
  JpegSegmenter segmenter;
  std::vector<std::byte> segments;
};

struct Packed {
  Sample sample;
  bool copied = false, segmented = false, joined = false, exact = false;
  std::string broken;  // why it was left out, if it was
};

// The part of a name that identifies the sample within its dataset: from the class folder on, or
// else after the last slash or colon. The dataset's location is not stored, and repacking keeps
// names.
std::string stored_name(const std::string& name, const std::string& class_name) {
  const std::string folder = class_name + "/";
  for (size_t at = name.rfind(folder); at != std::string::npos && !class_name.empty();
       at = at == 0 ? std::string::npos : name.rfind(folder, at - 1))
    if (at == 0 || name[at - 1] == '/' || name[at - 1] == ':') return name.substr(at);
  return name.substr(name.find_last_of("/:") + 1);
}

// True for an evenly spread `fraction` of the samples.
bool is_chosen(double fraction, size_t index) {
  return std::floor(double(index + 1) * fraction) > std::floor(double(index) * fraction);
}

void shrink(Image& image, int max_side, Resizer& resizer, Image& scratch) {
  const double scale = double(max_side) / std::max(image.width, image.height);
  const auto scaled = [&](int side) { return std::max(1, int(std::lround(side * scale))); };
  scratch.resize(scaled(image.width), scaled(image.height));
  resizer.resize(image, {0, 0, image.width, image.height}, scratch.width, scratch.height,
                 scratch.pixels.data());
  std::swap(image, scratch);
}

// Converts the sample to the requested size and encoding. Returns whether it is unchanged.
bool convert(const PackOptions& options, bool want_raw, Scratch& scratch, Sample& sample) {
  const bool was_raw = sample.encoding == SampleEncoding::kRaw;
  bool too_large = false;
  if (options.max_side > 0) {
    const ImageInfo info = probe_sample(scratch.decoder, sample);
    too_large = std::max(info.width, info.height) > options.max_side;
  }
  const bool to_jpeg = options.quality > 0 && !want_raw;
  if (!too_large && !to_jpeg && (!want_raw || was_raw)) return true;
  decode_sample(scratch.decoder, sample, scratch.image);
  if (too_large) shrink(scratch.image, options.max_side, scratch.resizer, scratch.other);
  if (want_raw || (was_raw && !to_jpeg)) {
    set_raw(scratch.image, sample);
  } else {
    const int quality = options.quality > 0 ? options.quality : kShrunkQuality;
    sample.bytes = encode_jpeg(scratch.image, quality, false);
    sample.encoding = SampleEncoding::kEncoded;
  }
  return false;
}

bool equal(const Image& a, int x, int y, const Image& b, const Box& part) {
  for (int row = 0; row < part.height; ++row) {
    const uint8_t* from = a.row(y + row) + ptrdiff_t{x} * 3;
    const uint8_t* to = b.row(part.y + row) + ptrdiff_t{part.x} * 3;
    if (!std::equal(from, from + ptrdiff_t{part.width} * 3, to)) return false;
  }
  return true;
}

// Checks that `cut` decodes to the same pixels as `file`, whole and in its middle; if `exact`, also
// that joining it returns the same bytes.
void verify(Scratch& scratch, std::span<const std::byte> file, const Sample& cut, bool exact) {
  scratch.decoder.decode(file, cut.name, scratch.image);
  const int w = cut.width, h = cut.height;
  for (const Box& part : {Box{0, 0, w, h}, Box{w / 3, h / 3, w / 3, h / 3}}) {
    const Box held =
        scratch.decoder.decode_segmented(cut.bytes, w, h, part, cut.name, scratch.other);
    if (!equal(scratch.other, part.x - held.x, part.y - held.y, scratch.image, part))
      fail(ErrorKind::kRun, "cutting a JPEG into segments changed its pixels", cut.name,
           "Pack with --segment 0, and report this image");
  }
  if (!exact) return;
  std::vector<std::byte> joined;
  scratch.segmenter.join(cut.bytes, w, h, cut.name, joined);
  if (!std::ranges::equal(joined, file))
    fail(ErrorKind::kRun, "joining a JPEG's segments does not restore its bytes", cut.name,
         "Pack with --segment 0, and report this image");
}

// Files that were read, not encoded here, are restored byte for byte, if possible.
void cut_into_segments(const PackOptions& options, Scratch& scratch, Packed& out) {
  Sample& sample = out.sample;
  if (sample.encoding != SampleEncoding::kEncoded || options.segment == 0) return;
  if (!scratch.segmenter.cut(sample.bytes, options.segment, scratch.segments, sample.width,
                             sample.height, out.copied))
    return;
  out.segmented = true;
  out.exact = scratch.segmenter.is_exact();
  sample.encoding = SampleEncoding::kSegmented;
  sample.bytes.swap(scratch.segments);
  if (options.verify) verify(scratch, scratch.segments, sample, out.exact);
}

// Optional capabilities of a format.
struct Abilities {
  bool raw, segments;
};

void require_for_tensors(const PackOptions& options, bool is_shard) {
  require(is_shard, "only a shard holds tensors", options.out.c_str(), "Write to shard:FILE");
  constexpr const char* kReason = "this option is for images, and the source has tensors";
  require(options.max_side == 0, kReason, "--max-side", "Remove it");
  require(options.quality == 0, kReason, "--quality", "Remove it");
  require(options.raw_fraction == 0, kReason, "--raw-fraction", "Remove it");
}

// Reads and converts sample `i`; sets `broken` if it is skipped.
void prepare_sample(const Dataset& dataset, const PackOptions& options, const Abilities& stores,
                    ScratchPool<Scratch>& pool, size_t i, Packed& out) {
  out.broken.clear();
  out.segmented = out.joined = out.exact = false;
  try {
    read_sample(dataset, i, out.sample);
    out.copied = out.sample.encoding == SampleEncoding::kTensors;
    if (out.copied) return;
    const ScratchPool<Scratch>::Lent scratch(pool);
    out.copied = convert(options, is_chosen(options.raw_fraction, i), *scratch, out.sample);
    // A sample that is stored unchanged was not decoded yet.
    if (out.copied && options.on_error == OnError::kSkip)
      decode_sample(scratch->decoder, out.sample, scratch->image);
    const SampleEncoding encoding = out.sample.encoding;
    if (stores.segments) {
      cut_into_segments(options, *scratch, out);
    } else {
      out.joined = encoding == SampleEncoding::kSegmented;
      out.exact = join_segments(out.sample);
    }
    if (!stores.raw) make_file(out.sample);
    out.copied = out.copied && out.sample.encoding == encoding;
  } catch (const Error& error) {
    if (options.on_error == OnError::kFail || error.kind() != ErrorKind::kData) throw;
    out.broken = error.reason();
  }
}

// About the bytes that all samples will take, from packing at most one in fifty of them.
uint64_t expected_bytes(const Dataset& dataset, PackOptions options, const Abilities& stores) {
  if (dataset.size() == 0) return 0;
  options.on_error = OnError::kSkip;  // reported when the sample is packed
  const size_t count = std::clamp<size_t>(dataset.size() / 50, 1, 100);
  std::atomic<uint64_t> bytes{0};
  ScratchPool<Scratch> pool;
  parallel_for(count, options.threads, [&](size_t i) {
    Packed packed;
    prepare_sample(dataset, options, stores, pool, i * dataset.size() / count, packed);
    if (packed.broken.empty()) bytes += packed.sample.bytes.size();
  });
  return bytes / count * dataset.size();
}

// REQUIRES: `env` is a StoreEnv if the output is an object.
std::unique_ptr<SampleWriter> open_writer(Env& env, const Dataset& dataset,
                                          const PackOptions& options, Abilities& stores) {
  require(options.max_side >= 0, "negative size", "--max-side", "Give 1 or more");
  require(options.quality >= 0 && options.quality <= 100, "quality is out of range", "--quality",
          "Give 1 to 100");
  require(options.raw_fraction >= 0 && options.raw_fraction <= 1, "share is out of range",
          "--raw-fraction", "Give 0 to 1");
  require(options.segment >= 0 && options.segment <= 64, "segment is out of range", "--segment",
          "Give 0 to 64");
  require(options.threads > 0, "no thread", "--threads", "Give 1 or more");
  const auto colon = options.out.find(':');
  if (colon == std::string::npos || colon + 1 == options.out.size() || is_store_url(options.out))
    fail(ErrorKind::kUsage, "no format and file are named", "--out",
         "Write shard:FILE, lmdb:FOLDER or tar:FILE; FILE may be s3://BUCKET/KEY");
  const auto& writer = find_entry(std::span<const RegistryEntry<OpenWriter>>(kWriters),
                                  options.out.substr(0, colon), "--out");
  stores = {writer.make != write_tar, writer.make == write_shard};
  const std::string path = options.out.substr(colon + 1);
  require_known_scheme(path, "--out");
  if (is_store_url(path) && writer.make == write_lmdb)
    fail(ErrorKind::kUsage, "an LMDB is not written into a store", store_name(options.out),
         "Write shard:URL or tar:URL");
  require(stores.raw || options.raw_fraction == 0, "a tar stores no raw pixels", "--raw-fraction",
          "Write to shard:FILE or lmdb:FOLDER");
  if (!dataset.tensors().empty()) require_for_tensors(options, writer.make == write_shard);
  if (is_store_url(path))
    dynamic_cast<StoreEnv&>(env).expect_bytes(expected_bytes(dataset, options, stores));
  return writer.make(env, path, dataset);
}

// Reads what was written, and compares its bytes by their checksums.
void read_back(Env& env, const PackOptions& options, const std::vector<uint32_t>& checksums,
               const ProgressCallback& progress) {
  const auto differs = [&](const std::string& what) {
    fail(ErrorKind::kRun, what, options.out, "Remove it, and pack again");
  };
  const auto written = open_dataset(env, options.out, options.store);
  if (written->size() != checksums.size()) differs("it has another number of samples than written");
  InOrder ahead(*written);
  const auto check = [&](size_t i, Sample& sample) {
    ahead.before(i);
    written->read(i, sample);
    if (checksum_of(sample.bytes) != checksums[i])
      differs("sample " + std::to_string(i) + " differs");
  };
  const auto count = [&](size_t, Sample&) {
    if (progress) progress(checksums.size(), checksums.size());
  };
  for_each_ordered<Sample>(checksums.size(), options.threads, check, count);
}

}  // namespace

PackReport pack_dataset(Env& env, const Dataset& dataset, const PackOptions& options,
                        const ProgressCallback& progress) {
  const bool is_far = is_store_url(options.out.substr(options.out.find(':') + 1));
  if (is_far && !dynamic_cast<StoreEnv*>(&env)) {
    StoreEnv with_stores(env, options.store);
    return pack_dataset(with_stores, dataset, options, progress);
  }
  if (dataset.has_masks())
    fail(ErrorKind::kUsage, "the source has masks, and packed formats do not hold them",
         store_name(options.out),
         "Train on the source itself; data.cache=ram keeps all of a sample");
  const bool is_tensors = !dataset.tensors().empty();
  const bool reads_back = options.verify && (is_far || is_tensors);
  std::vector<uint32_t> checksums;  // if it is read back
  Abilities stores{};
  const auto writer = open_writer(env, dataset, options, stores);
  ProgressMeter meter(progress, dataset.size());
  ScratchPool<Scratch> pool;
  PackReport report;
  InOrder ahead(dataset);
  const auto produce = [&](size_t i, Packed& out) {
    ahead.before(i);
    prepare_sample(dataset, options, stores, pool, i, out);
  };
  const auto consume = [&](size_t i, Packed& packed) {
    Sample& sample = packed.sample;
    if (!packed.broken.empty()) {
      const std::string& name = sample.name;
      report.skipped.push_back(
          {name.empty() ? "sample " + std::to_string(i) : name, packed.broken});
    } else {
      sample.name = is_tensors
                        ? std::string(trimmed(stored_name(sample.name, ""), " "))  // "FILE: row 3"
                        : stored_name(sample.name, dataset.classes()[size_t(sample.label)]);
      writer->append(sample, dataset.length(i));
      if (reads_back) checksums.push_back(checksum_of(sample.bytes));
      ++report.samples;
      report.copied += packed.copied;
      report.segmented += packed.segmented;
      report.joined += packed.joined;
      report.exact += packed.exact;
      report.raw += sample.encoding == SampleEncoding::kRaw;
      report.bytes += sample.bytes.size();
    }
    meter.add_one();
  };
  for_each_ordered<Packed>(dataset.size(), options.threads, produce, consume);
  if (report.samples == 0)
    fail(ErrorKind::kData, "no sample could be packed", options.out,
         "Run saturate data verify SOURCE to see why");
  writer->finish();
  if (reads_back) read_back(env, options, checksums, progress);
  return report;
}

}  // namespace saturate
