// synth-volume:KEY=VALUE,...: volumes with balls and boxes in noise, drawn by the program, and the
// label of each voxel. Sample i depends only on (seed, split, i), the size and the noise.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/synth_tensors.h"

namespace saturate {
namespace {

enum VoxelClass : uint8_t { kBackground, kBall, kBox };

struct SynthVolume {
  SynthStream stream{"synth-volume", 200};
  int64_t size = 32;
  double noise = 0.3;
};

std::vector<TensorField> fields_of(const SynthVolume& volume) {
  const std::vector<int64_t> shape(3, volume.size);
  std::vector<TensorField> fields = {
      {"x", ElementType::kFloat32, shape},
      {"y", ElementType::kUint8, shape, /*is_target=*/true, /*values=*/3}};
  fields[0].is_volume = true;
  return fields;
}

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

class SynthVolumeSource : public SynthTensors {
 public:
  explicit SynthVolumeSource(const SynthVolume& volume)
      : SynthTensors(volume.stream, fields_of(volume), {"background", "ball", "box"}),
        volume_(volume) {}

 private:
  void draw(RandomStream& random, std::byte* out) const override {
    const size_t voxels = tensors()[1].bytes();
    std::vector<float> values(voxels);
    std::vector<uint8_t> labels(voxels);
    for (float& value : values) value = float(volume_.noise * random.normal());
    for (uint64_t left = 2 + random.below(3); left > 0; --left) fill(solid(random), values, labels);
    std::memcpy(out, values.data(), voxels * sizeof(float));
    std::memcpy(out + voxels * sizeof(float), labels.data(), voxels);
  }

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
  void fill(const Solid& solid, std::vector<float>& values, std::vector<uint8_t>& labels) const {
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
};

}  // namespace

std::unique_ptr<Dataset> open_synth_volume(Env&, const std::string& rest) {
  SynthVolume volume;
  SynthArguments arguments("synth-volume", rest);
  arguments.take<size_t>("count", 1, 100'000'000, volume.stream.count);
  arguments.take<int64_t>("size", 8, 512, volume.size);
  arguments.take<double>("noise", 0, 1000, volume.noise);
  arguments.take<uint64_t>("seed", 0, UINT64_MAX, volume.stream.seed);
  arguments.take("split", "train", "test", volume.stream.split);
  arguments.finish();
  return std::make_unique<SynthVolumeSource>(volume);
}

}  // namespace saturate
