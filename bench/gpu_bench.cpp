// A GPU's work on a batch before its step: copies from the host, and the kernels that augment
// images and volumes, compared with a plain copy of as many bytes. Without a GPU: the kernel's CPU
// version on one thread.
//   saturate_gpu_bench [SECONDS of each measurement]
//   saturate_gpu_bench SECONDS SOURCE    only decoding: the source's JPEGs, packed on one core
// Prints the JSON of `saturate bench`. Exits with 1 if decoding has other bits than the CPU's.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_room.h"
#include "feed/finish_batch.h"
#include "image/fast_decoder.h"
#include "image/packed_jpeg.h"
#include "image/segmented_jpeg.h"
#include "saturate/data/dataset.h"
#include "saturate/data/effects.h"
#include "saturate/data/error.h"
#include "trace/host.h"

namespace {

constexpr int kRounds = 5;
constexpr int kSide = 224;

using Work = std::function<void()>;

class Bench {
 public:
  Bench(const at::Device& device, double seconds) : device_(device), seconds_(seconds) {}

  // Measures rates in `unit`, of which a call of `work` does `amount`; returns their median.
  double add(const std::string& name, const std::string& unit, double amount, const Work& work) {
    int64_t calls = 1;
    while (time(work, calls) < seconds_) calls *= 2;  // warms up, too
    std::vector<double> rates;
    for (int round = 0; round < kRounds; ++round)
      rates.push_back(amount * double(calls) / time(work, calls));
    std::sort(rates.begin(), rates.end());
    rows_.push_back({{"name", name},
                     {"unit", unit},
                     {"median", rates[kRounds / 2]},
                     {"min", rates.front()},
                     {"max", rates.back()},
                     {"n", kRounds}});
    return rates[kRounds / 2];
  }
  void add_to_last(const char* key, double value) { rows_.back()[key] = value; }
  const nlohmann::json& rows() const { return rows_; }

 private:
  double time(const Work& work, int64_t calls) const {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) work();
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  // Reading a value waits for all that the GPU was given before.
  void wait() const {
    if (device_.is_cuda()) at::zeros({}, device_).item();
  }

  const at::Device device_;
  const double seconds_;
  nlohmann::json rows_ = nlohmann::json::array();
};

void bench_copies(Bench& bench, const at::Device& device) {
  for (const int64_t bytes : {int64_t{256} * kSide * kSide * 3, int64_t{256} * kSide * kSide * 12})
    for (const bool pinned : {true, false}) {
      const auto host = at::TensorOptions(at::kByte).pinned_memory(pinned);
      const at::Tensor source = at::empty({bytes}, host).zero_();
      const at::Tensor target = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
      const std::string memory = pinned ? "pinned" : "pageable";
      bench.add("copy to the GPU, " + memory + ", " + std::to_string(bytes) + " bytes", "GB/s",
                double(bytes) * 1e-9, [&] { target.copy_(source, /*non_blocking=*/true); });
    }
}

// One list of effects for each image.
std::vector<saturate::EffectList> lists_of(int64_t count, const saturate::AugmentOptions& options) {
  std::vector<saturate::EffectList> lists;
  for (int64_t i = 0; i < count; ++i)
    lists.push_back(saturate::draw_effects(options, {/*seed=*/1, /*epoch=*/0, uint64_t(i)}));
  return lists;
}

struct FinishCase {
  std::string name;
  int64_t count;  // images
  saturate::AugmentOptions options;
  bool photographs = false;  // images are cut out of held ones, by options.crop
};

template <class T>
at::Tensor bytes_on(const at::Device& device, const std::vector<T>& values) {
  return at::from_blob(const_cast<T*>(values.data()), {int64_t(values.size() * sizeof(T))},
                       at::TensorOptions(at::kByte))
      .to(device, /*non_blocking=*/false, /*copy=*/true);
}
template <class T>
const T* values_of(const at::Tensor& bytes) {
  return reinterpret_cast<const T*>(bytes.const_data_ptr());
}

// Photographs of ImageNet's mean size, 500 x 375, and a crop of one for each image.
class Photographs {
 public:
  Photographs(const at::Device& device, const FinishCase& what)
      : pixels_(at::randint(256, {kHeld, kHeight, kWidth, 3},
                            at::TensorOptions(at::kByte).device(device))) {
    std::vector<saturate::HeldPhoto> photos;
    for (int64_t i = 0; i < kHeld; ++i)
      photos.push_back(
          {pixels_.const_data_ptr<uint8_t>() + i * kHeight * kWidth * 3, kWidth, kHeight});
    std::vector<saturate::HeldPlace> places;
    for (int64_t i = 0; i < what.count; ++i) {
      saturate::RandomStream random(1, 0, uint64_t(i), saturate::RandomUse::kAugment);
      const auto drawn = saturate::draw_transform(what.options, random, kWidth, kHeight);
      places.push_back({uint32_t(i % kHeld), 0, 0, drawn.flip ? 1 : 0, drawn.crop});
    }
    const saturate::ResizeFilters filters = saturate::resize_filters(kWidth, kSide);
    photos_ = bytes_on(device, photos);
    places_ = bytes_on(device, places);
    filters_ = bytes_on(device, filters.by_length);
    values_ = bytes_on(device, filters.values);
  }
  void add_to(saturate::FinishArguments& batch) const {
    batch.places = values_of<saturate::HeldPlace>(places_);
    batch.photos = values_of<saturate::HeldPhoto>(photos_);
    batch.filters = values_of<saturate::HeldFilter>(filters_);
    batch.filter_values = values_of<int16_t>(values_);
  }

 private:
  static constexpr int kHeld = 64, kWidth = 500, kHeight = 375;
  at::Tensor pixels_, photos_, places_, filters_, values_;
};

// The kernel reads one byte and writes two or four for each value, like a copy of half as many
// bytes. Bytes that effects and crops move in addition do not count.
void bench_finish(Bench& bench, const at::Device& device, const FinishCase& what) {
  const saturate::PixelType type = what.options.output;
  const auto bytes = at::TensorOptions(at::kByte).device(device);
  at::Tensor pixels = at::randint(256, {what.count, kSide, kSide, 3}, bytes);
  at::Tensor spare = at::empty_like(pixels);
  at::Tensor out = at::empty({pixels.numel() * int64_t(saturate::bytes_of(type))}, bytes);
  at::Tensor rows = at::empty(pixels.sizes(), bytes.dtype(at::kFloat));
  const at::Tensor effects = bytes_on(device, lists_of(what.count, what.options));
  saturate::FinishArguments batch{pixels.mutable_data_ptr<uint8_t>(),
                                  values_of<saturate::EffectList>(effects),
                                  spare.mutable_data_ptr<uint8_t>(),
                                  what.count,
                                  kSide,
                                  {{0.017f, 0.018f, 0.019f}, {-2.1f, -2.0f, -1.8f}},
                                  out.mutable_data_ptr()};
  batch.type = type;
  batch.rows = rows.mutable_data_ptr<float>();
  std::optional<Photographs> photographs;
  if (what.photographs) photographs.emplace(device, what).add_to(batch);
  const auto finish = [&] {
#ifdef SATURATE_HAS_CUDA
    if (device.is_cuda()) return saturate::finish_batch_cuda(batch, /*stream=*/nullptr);
#endif
    saturate::finish_batch_cpu(batch);
  };
  const at::Tensor from = at::empty({(pixels.numel() + out.numel()) / 2}, bytes);
  const at::Tensor to = at::empty_like(from);
  const double copies = bench.add(what.name + ": a copy of as many bytes", "images/s",
                                  double(what.count), [&] { to.copy_(from); });
  const double rate = bench.add(what.name, "images/s", double(what.count), finish);
  bench.add_to_last("share_reached", rate / copies);
}

// Volumes of 80^3 voxels, cropped to 64^3 in one resampling, beside a copy of as many bytes.
void bench_volumes(Bench& bench, const at::Device& device, int64_t count,
                   const std::string& where) {
  saturate::AugmentOptions options;
  options.crop = saturate::CropKind::kRandom;
  options.size = 64;
  options.rotate = 30;
  options.zoom = options.brightness = 0.2;
  saturate::VolumeForm form{{80, 80, 80}, {}};
  saturate::set_volume_size(options, form.in, form.out);
  std::vector<saturate::VolumeEffects> drawn;
  for (int64_t i = 0; i < count; ++i)
    drawn.push_back(saturate::draw_volume(options, {1, 0, uint64_t(i)}, form, {0, 1, 0.5}));
  const auto floats = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor in = at::rand({count, form.values_in()}, floats);
  const at::Tensor out = at::empty({count, form.values_out()}, floats);
  const at::Tensor effects = bytes_on(device, drawn);
  const saturate::VolumeArguments batch{form, in.const_data_ptr(),
                                        values_of<saturate::VolumeEffects>(effects),
                                        out.mutable_data_ptr(), count};
  const at::Tensor from = at::empty({(in.numel() + out.numel()) / 2}, floats);
  const at::Tensor to = at::empty_like(from);
  const std::string name = "rotate, zoom and crop volumes " + where;
  const double copies = bench.add(name + ": a copy of as many bytes", "volumes/s", double(count),
                                  [&] { to.copy_(from); });
  const double rate = bench.add(name, "volumes/s", double(count), [&] {
#ifdef SATURATE_HAS_CUDA
    if (device.is_cuda()) return saturate::transform_volumes_cuda(batch, /*stream=*/nullptr);
#endif
    saturate::transform_volumes_cpu(batch);
  });
  bench.add_to_last("share_reached", rate / copies);
}

constexpr size_t kJpegs = 256;

// JPEGs in segments, each with a random-resized crop, and the decoder of one loader thread.
class Jpegs {
 public:
  // The first of a source.
  explicit Jpegs(const std::string& source) {
    saturate::AugmentOptions crop;
    crop.size = kSide;
    crop.crop = saturate::CropKind::kRandomResized;
    const auto data = saturate::open_dataset(saturate::Env::posix(), source);
    saturate::JpegSegmenter segmenter;
    saturate::Sample sample;
    for (size_t i = 0; i < data->size() && jpegs_.size() < kJpegs; ++i) {
      data->read(i, sample);
      Jpeg jpeg{sample.bytes, sample.width, sample.height, {}};
      if (sample.encoding != saturate::SampleEncoding::kSegmented &&
          !segmenter.cut(sample.bytes, /*mcus=*/4, jpeg.bytes, jpeg.width, jpeg.height))
        continue;
      saturate::RandomStream random(1, 0, i, saturate::RandomUse::kAugment);
      jpeg.crop = saturate::draw_transform(crop, random, jpeg.width, jpeg.height);
      jpegs_.push_back(std::move(jpeg));
    }
    std::erase_if(jpegs_, [this](const Jpeg& jpeg) {
      const size_t bytes = plan(jpeg);
      if (bytes == 0 || bytes > saturate::BatchRoom::kMostPixels * kPixels) return true;
      places_.push_back({uint32_t(packed_bytes_ / saturate::PackedPlace::kUnit), uint32_t(bytes)});
      packed_bytes_ += saturate::whole_units(bytes);
      return false;
    });
    if (jpegs_.empty())
      saturate::fail(saturate::ErrorKind::kData, "no JPEG can be packed", source,
                     "Give JPEGs of 100 pixels or more a side");
  }

  size_t count() const { return jpegs_.size(); }
  // Sum over all packed JPEGs, and where each is.
  size_t packed_bytes() const { return packed_bytes_; }
  const std::vector<saturate::PackedPlace>& places() const { return places_; }
  void pack(std::byte* out) {
    for (size_t i = 0; i < count(); ++i) {
      plan(jpegs_[i]);
      decoder_.pack(out + places_[i].at * saturate::PackedPlace::kUnit);
    }
  }
  // One after the other, to [count, kSide, kSide, 3] of `out`.
  void decode(std::byte* out) {
    for (const Jpeg& jpeg : jpegs_) {
      open(jpeg);
      decoder_.read("a JPEG", jpeg.crop, kSide, out);
      out += kPixels;
    }
  }

 private:
  static constexpr size_t kPixels = size_t{kSide} * kSide * 3;
  struct Jpeg {
    std::vector<std::byte> bytes;
    int width, height;
    saturate::SampleTransform crop;
  };
  void open(const Jpeg& jpeg) {
    segments_.open(jpeg.bytes, jpeg.width, jpeg.height, "a JPEG");
    decoder_.open(segments_, "a JPEG");
  }
  size_t plan(const Jpeg& jpeg) {
    open(jpeg);
    return decoder_.plan_pack(jpeg.crop, kSide);
  }

  std::vector<Jpeg> jpegs_;
  std::vector<saturate::PackedPlace> places_;
  size_t packed_bytes_ = 0;
  saturate::SegmentedJpeg segments_;
  saturate::FastDecoder decoder_;
};

// A loader thread's work with and without packing, and the device's. Returns whether both decoders
// have the same bits.
bool bench_decode(Bench& bench, const at::Device& device, const std::string& where,
                  const std::string& source) {
  Jpegs jpegs(source);
  const auto count = int64_t(jpegs.count());
  const at::Tensor memory = at::zeros({int64_t(jpegs.packed_bytes())}, at::kByte);
  const at::Tensor expected = at::empty({count, kSide, kSide, 3}, at::kByte);
  auto* const packed = static_cast<std::byte*>(memory.mutable_data_ptr());
  auto* const decoded = static_cast<std::byte*>(expected.mutable_data_ptr());
  const auto add = [&](const char* name, const Work& work) {
    bench.add_to_last("cpu_us_per_image", 1e6 / bench.add(name, "images/s", double(count), work));
  };
  add("decode JPEGs on one core", [&] { jpegs.decode(decoded); });
  add("pack JPEGs on one core", [&] { jpegs.pack(packed); });
  bench.add_to_last("bytes_per_image", double(jpegs.packed_bytes()) / double(count));

  const auto bytes = at::TensorOptions(at::kByte).device(device);
  const at::Tensor there = memory.to(device), out = at::empty_like(expected, bytes);
  const at::Tensor places =
      at::from_blob(const_cast<saturate::PackedPlace*>(jpegs.places().data()),
                    {count * int64_t(sizeof(saturate::PackedPlace))}, at::kByte)
          .to(device);
  const at::Tensor failed = at::empty({count}, bytes);
  const at::Tensor scratch = at::empty(
      {saturate::unpack_teams(count) * int64_t(saturate::unpack_scratch_bytes(kSide))}, bytes);
  const saturate::UnpackArguments batch{
      .memory = static_cast<const std::byte*>(there.const_data_ptr()),
      .places = static_cast<const saturate::PackedPlace*>(places.const_data_ptr()),
      .count = count,
      .size = kSide,
      .scratch = scratch.mutable_data_ptr<uint8_t>(),
      .out = out.mutable_data_ptr<uint8_t>(),
      .failed = failed.mutable_data_ptr<uint8_t>()};
  bench.add("decode packed JPEGs " + where, "images/s", double(count),
            [&] { saturate::unpack_jpegs(batch, device); });
  const at::Tensor pinned = device.is_cuda() ? memory.pin_memory() : memory;
  bench.add("copy and decode packed JPEGs " + where, "images/s", double(count), [&] {
    there.copy_(pinned, /*non_blocking=*/true);
    saturate::unpack_jpegs(batch, device);
  });
  const bool equal = at::equal(out.cpu(), expected) && !failed.cpu().any().item<bool>();
  bench.add_to_last("equals_cpu", equal ? 1 : 0);
  return equal;
}

// With a GPU: a batch that fills it, and one that fills it only if several blocks share an image.
std::vector<FinishCase> finish_cases(bool has_gpu, const std::string& where) {
  const int64_t count = has_gpu ? 256 : 4;
  saturate::AugmentOptions plain, half, heavy, colour, crop;
  plain.size = half.size = heavy.size = colour.size = crop.size = kSide;
  half.output = saturate::PixelType::kFloat16;
  heavy.rotate = colour.rotate = 45;
  heavy.blur = 1;
  colour.hue = colour.brightness = 0.2;
  crop.crop = saturate::CropKind::kRandomResized;
  std::vector<FinishCase> cases = {
      {"normalise " + where, count, plain},
      {"normalise to fp16 " + where, count, half},
      {"rotate, colour, normalise " + where, count, colour},
      {"rotate, blur, normalise " + where, count, heavy},
      {"random-resized crop of held photographs, normalise " + where, count, crop, true}};
  if (!has_gpu) return cases;
  for (FinishCase small : std::vector<FinishCase>(cases)) {
    small.count = 8;
    small.name += ", 8 images";
    cases.push_back(small);
  }
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.2;
#ifdef SATURATE_HAS_CUDA
  const bool has_gpu = saturate::gpu_count() > 0;
#else
  const bool has_gpu = false;
#endif
  const at::Device device = has_gpu ? at::kCUDA : at::kCPU;
  const std::string where = has_gpu ? "on the GPU" : "on the CPU, the CPU version of the kernel";
  Bench bench(device, seconds);
  bool equal = true;
  if (argc > 2) {
    equal = bench_decode(bench, device, where, argv[2]);
  } else {
    if (has_gpu) bench_copies(bench, device);
    for (const FinishCase& what : finish_cases(has_gpu, where)) bench_finish(bench, device, what);
    bench_volumes(bench, device, has_gpu ? 16 : 1, where);
  }
  const nlohmann::json result = {{"bench", "gpu"},
                                 {"host", nlohmann::json::parse(saturate::host_json())},
                                 {"commit", saturate::build_commit()},
                                 {"gpu", has_gpu},
                                 {"rows", bench.rows()}};
  std::printf("%s\n", result.dump(2).c_str());
  if (!equal)
    std::fprintf(stderr, "decoding %s has other bits than the CPU's decoder\n", where.c_str());
  return equal ? 0 : 1;
}
