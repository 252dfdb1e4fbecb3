// Packing: read, perhaps shrink, re-encode or decode on many threads, written in order by one.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "data/ordered.h"
#include "data/progress_meter.h"
#include "data/sample_writer.h"
#include "data/scratch_pool.h"
#include "saturate/augment.h"
#include "saturate/error.h"
#include "saturate/export.h"
#include "saturate/registry.h"

namespace saturate {
namespace {

constexpr int kShrunkQuality = 90;

using OpenWriter = std::unique_ptr<SampleWriter> (*)(Env&, const std::string&,
                                                     const std::vector<std::string>&);
constexpr RegistryEntry<OpenWriter> kWriters[] = {
    {"shard", "shard:FILE", write_shard},
    {"lmdb", "lmdb:FOLDER", write_lmdb},
    {"tar", "tar:FILE", write_tar},
};

struct Scratch {
  Decoder decoder;
  Resizer resizer;
  Image image, shrunk;
};

struct Packed {
  Sample sample;
  bool copied = false;
  std::string broken;  // why, where it is left out
};

// The part of a name that tells the sample within its data set: from the class folder on, or else
// what follows the last slash or colon. Where the data lay is not stored, and packing what was
// packed changes no name.
std::string stored_name(const std::string& name, const std::string& class_name) {
  const std::string folder = class_name + "/";
  for (size_t at = name.rfind(folder); at != std::string::npos && !class_name.empty();
       at = at == 0 ? std::string::npos : name.rfind(folder, at - 1))
    if (at == 0 || name[at - 1] == '/' || name[at - 1] == ':') return name.substr(at);
  return name.substr(name.find_last_of("/:") + 1);
}

// Every 1 / fraction-th sample.
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

void set_raw(const Image& image, Sample& sample) {
  const auto pixels = std::as_bytes(std::span(image.pixels));
  sample.bytes.assign(pixels.begin(), pixels.end());
  sample.encoding = SampleEncoding::kRaw;
  sample.width = image.width;
  sample.height = image.height;
  sample.channels = 3;
}

// Gives the sample the size and encoding that the options ask for. Returns whether it is as it was.
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
  if (too_large) shrink(scratch.image, options.max_side, scratch.resizer, scratch.shrunk);
  if (want_raw || (was_raw && !to_jpeg)) {
    set_raw(scratch.image, sample);
  } else {
    const int quality = options.quality > 0 ? options.quality : kShrunkQuality;
    sample.bytes = encode_jpeg(scratch.image, quality, false);
    sample.encoding = SampleEncoding::kEncoded;
  }
  return false;
}

void require(bool ok, const char* what, const char* where, const char* remedy) {
  if (!ok) fail(ErrorKind::kUsage, what, where, remedy);
}

std::unique_ptr<SampleWriter> open_writer(Env& env, const Dataset& dataset,
                                          const PackOptions& options, bool& stores_raw) {
  require(options.max_side >= 0, "negative size", "--max-side", "Give 1 or more");
  require(options.quality >= 0 && options.quality <= 100, "quality is out of range", "--quality",
          "Give 1 to 100");
  require(options.raw_fraction >= 0 && options.raw_fraction <= 1, "share is out of range",
          "--raw-fraction", "Give 0 to 1");
  require(options.threads > 0, "no thread", "--threads", "Give 1 or more");
  const auto colon = options.out.find(':');
  if (colon == std::string::npos || colon + 1 == options.out.size())
    fail(ErrorKind::kUsage, "\"" + options.out + "\" names no format or no file", "--out",
         "Write shard:FILE, lmdb:FOLDER or tar:FILE");
  const auto& writer = find_entry(std::span<const RegistryEntry<OpenWriter>>(kWriters),
                                  options.out.substr(0, colon), "--out");
  stores_raw = writer.make != write_tar;
  require(stores_raw || options.raw_fraction == 0, "a tar stores no raw pixels", "--raw-fraction",
          "Write to shard:FILE or lmdb:FOLDER");
  return writer.make(env, options.out.substr(colon + 1), dataset.classes());
}

}  // namespace

PackReport pack_dataset(Env& env, const Dataset& dataset, const PackOptions& options,
                        const ProgressCallback& progress) {
  bool stores_raw = true;
  const auto writer = open_writer(env, dataset, options, stores_raw);
  ProgressMeter meter(progress, dataset.size());
  ScratchPool<Scratch> pool;
  PackReport report;
  const auto produce = [&](size_t i, Packed& out) {
    out.broken.clear();
    out.sample.name.clear();
    try {
      dataset.read(i, out.sample);
      const ScratchPool<Scratch>::Lent scratch(pool);
      out.copied = convert(options, is_chosen(options.raw_fraction, i), *scratch, out.sample);
      if (!stores_raw && out.sample.encoding == SampleEncoding::kRaw) {
        encode_raw(out.sample);
        out.copied = false;
      }
    } catch (const Error& error) {
      if (options.on_error == OnError::kFail || error.kind() != ErrorKind::kData) throw;
      out.broken = error.reason();
    }
  };
  const auto consume = [&](size_t i, Packed& packed) {
    Sample& sample = packed.sample;
    if (!packed.broken.empty()) {
      const std::string& name = sample.name;
      report.skipped.push_back(
          {name.empty() ? "sample " + std::to_string(i) : name, packed.broken});
    } else {
      sample.name = stored_name(sample.name, dataset.classes()[size_t(sample.label)]);
      writer->append(sample);
      ++report.samples;
      report.copied += packed.copied;
      report.raw += sample.encoding == SampleEncoding::kRaw;
      report.bytes += sample.bytes.size();
    }
    meter.add_one();
  };
  for_each_ordered<Packed>(dataset.size(), options.threads, produce, consume);
  if (report.samples == 0)
    fail(ErrorKind::kData, "no sample could be packed", options.out,
         "saturate data verify SOURCE says what is wrong with them");
  writer->finish();
  return report;
}

}  // namespace saturate
