// synth-table:KEY=VALUE,...: rows of numbers drawn by the program, with a target that is a function
// of them: Friedman's (Multivariate Adaptive Regression Splines, 1991), 10 sin(pi u0 u1) +
// 20 (u2 - 0.5)^2 + 10 u3 + 5 u4 of uniform u. Sample i depends only on (seed, split, i) and the
// number of inputs.
#include <cmath>
#include <cstring>
#include <numbers>

#include "data/synth_tensors.h"

namespace saturate {
namespace {

constexpr size_t kLeastInputs = 5;
// The function's mean and standard deviation, and those of a uniform u.
constexpr double kTargetMean = 14.4, kTargetDeviation = 4.9;
const double kUniformDeviation = std::sqrt(1.0 / 12);

struct SynthTable {
  SynthStream stream{"synth-table", 2000};
  size_t inputs = 10, outputs = 1;
  double noise = 0.1;
};

std::vector<TensorField> fields_of(const SynthTable& table) {
  std::vector<int64_t> target;
  if (table.outputs > 1) target.push_back(int64_t(table.outputs));
  return {{"x", ElementType::kFloat32, {int64_t(table.inputs)}},
          {"y", ElementType::kFloat32, target, /*is_target=*/true}};
}

class SynthTableSource : public SynthTensors {
 public:
  explicit SynthTableSource(const SynthTable& table)
      : SynthTensors(table.stream, fields_of(table)), table_(table) {}

 private:
  void draw(RandomStream& random, std::byte* out) const override {
    std::vector<double> u(table_.inputs);
    std::vector<float> values;
    for (double& each : u) {
      each = random.next_double();
      values.push_back(float((each - 0.5) / kUniformDeviation));
    }
    for (size_t i = 0; i < table_.outputs; ++i)
      values.push_back(float(target_of_row(u, i) + table_.noise * random.normal()));
    std::memcpy(out, values.data(), values.size() * sizeof(float));
  }

  // Output `first` is of the inputs from `first` on.
  static double target_of_row(const std::vector<double>& u, size_t first) {
    const auto at = [&](size_t i) { return u[(first + i) % u.size()]; };
    const double value = 10 * std::sin(std::numbers::pi * at(0) * at(1)) +
                         20 * (at(2) - 0.5) * (at(2) - 0.5) + 10 * at(3) + 5 * at(4);
    return (value - kTargetMean) / kTargetDeviation;
  }

  const SynthTable table_;
};

}  // namespace

std::unique_ptr<Dataset> open_synth_table(Env&, const std::string& rest) {
  SynthTable table;
  SynthArguments arguments("synth-table", rest);
  arguments.take<size_t>("count", 1, 100'000'000, table.stream.count);
  arguments.take<size_t>("inputs", kLeastInputs, 1 << 20, table.inputs);
  arguments.take<size_t>("outputs", 1, 1 << 20, table.outputs);
  arguments.take<double>("noise", 0, 1000, table.noise);
  arguments.take<uint64_t>("seed", 0, UINT64_MAX, table.stream.seed);
  arguments.take("split", "train", "test", table.stream.split);
  arguments.finish();
  return std::make_unique<SynthTableSource>(table);
}

}  // namespace saturate
