// synth-volume:KEY=VALUE,...: volumes with balls and boxes in noise, drawn by the program, and the
// label of each voxel. Sample i depends only on (seed, split, i), the size and the noise.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/sources.h"
#include "data/synth_numbers.h"
#include "saturate/data/random.h"

namespace saturate {
namespace {

enum VoxelClass : uint8_t { kBackground, kBall, kBox };

struct SynthVolume {
  int64_t count = 200, size = 32;
  double noise = 0.3;
  uint64_t seed = 0;
  uint32_t split = 0;  // 0 train, 1 test: disjoint streams
};

// A ball of that radius, or a box of that many voxels each way.
struct Solid {
  VoxelClass shape;
  double centre[3], reach[3];
  float value;

  bool contains(const int* voxel) const {
    double distance = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const double away = std::abs(voxel[axis] - centre[axis]) / reach[axis];
      distance = shape == kBall ? distance + away * away : std::max(distance, away);
    }
    return distance <= 1;
  }
};

class SynthVolumeSource : public IndexedSource {
 public:
  explicit SynthVolumeSource(const SynthVolume& volume) : volume_(volume) {
    const std::vector<int64_t> shape(3, volume.size);
    fields_ = {{"x", ElementType::kFloat32, shape},
               {"y", ElementType::kUint8, shape, /*is_target=*/true, /*values=*/3}};
    fields_[0].is_volume = true;
  }

  size_t size() const override { return size_t(volume_.count); }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  uint64_t bytes(size_t) const override { return bytes_of(std::span(fields_)); }
  int64_t label(size_t) const override { return 0; }

  void read(size_t index, Sample& out) const override {
    RandomStream random(volume_.seed, volume_.split, index, RandomUse::kSynthetic);
    const size_t voxels = fields_[1].bytes();
    std::vector<float> values(voxels);
    std::vector<uint8_t> labels(voxels);
    for (float& value : values) value = float(volume_.noise * random.normal());
    for (uint64_t left = 2 + random.below(3); left > 0; --left) draw(solid(random), values, labels);
    out.name =
        (volume_.split == 0 ? "synth-volume:train:" : "synth-volume:test:") + std::to_string(index);
    out.encoding = SampleEncoding::kTensors;
    out.label = 0;
    out.bytes.resize(voxels * 5);
    std::memcpy(out.bytes.data(), values.data(), voxels * 4);
    std::memcpy(out.bytes.data() + voxels * 4, labels.data(), voxels);
  }

 private:
  Solid solid(RandomStream& random) const {
    const auto side = double(volume_.size);
    Solid made{random.bernoulli(0.5) ? kBall : kBox, {}, {}, float(random.uniform(0.7, 1.3))};
    const double radius = side * random.uniform(0.1, 0.22);
    for (int axis = 0; axis < 3; ++axis) {
      made.reach[axis] = made.shape == kBall ? radius : side * random.uniform(0.08, 0.2);
      made.centre[axis] = random.uniform(made.reach[axis], side - 1 - made.reach[axis]);
    }
    return made;
  }

  // Later solids cover earlier ones.
  void draw(const Solid& solid, std::vector<float>& values, std::vector<uint8_t>& labels) const {
    const int side = int(volume_.size);
    size_t at = 0;
    for (int z = 0; z < side; ++z)
      for (int y = 0; y < side; ++y)
        for (int x = 0; x < side; ++x, ++at) {
          const int voxel[] = {z, y, x};
          if (!solid.contains(voxel)) continue;
          if (labels[at] == kBackground) values[at] += solid.value;
          labels[at] = solid.shape;
        }
  }

  const SynthVolume volume_;
  std::vector<TensorField> fields_;
  const std::vector<std::string> classes_{"background", "ball", "box"};
};

}  // namespace

std::unique_ptr<Dataset> open_synth_volume(Env&, const std::string& rest) {
  SynthVolume volume;
  std::string left = "," + rest;  // options follow a comma
  const SynthNumbers numbers{"synth-volume", left};
  numbers.take<int64_t>("count", 1, 100'000'000, volume.count);
  numbers.take<int64_t>("size", 8, 512, volume.size);
  numbers.take<double>("noise", 0, 1000, volume.noise);
  numbers.take<uint64_t>("seed", 0, UINT64_MAX, volume.seed);
  volume.split = take_word(left, "split", "train", "test") == "test";
  numbers.require_none("count, size, noise, seed and split");
  return std::make_unique<SynthVolumeSource>(volume);
}

}  // namespace saturate
