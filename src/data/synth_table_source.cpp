// synth-table:KEY=VALUE,...: rows of numbers drawn by the program, with a target that is a function
// of them: Friedman's (Multivariate Adaptive Regression Splines, 1991), 10 sin(pi u0 u1) +
// 20 (u2 - 0.5)^2 + 10 u3 + 5 u4 of uniform u. Sample i depends only on (seed, split, i) and the
// number of inputs.
#include <cmath>
#include <cstring>
#include <numbers>

#include "data/sources.h"
#include "data/synth_numbers.h"
#include "saturate/data/random.h"

namespace saturate {
namespace {

constexpr int64_t kLeastInputs = 5;
// The function's mean and standard deviation, and those of a uniform u.
constexpr double kTargetMean = 14.4, kTargetDeviation = 4.9;
const double kUniformDeviation = std::sqrt(1.0 / 12);

struct SynthTable {
  int64_t count = 2000, inputs = 10, outputs = 1;
  double noise = 0.1;
  uint64_t seed = 0;
  uint32_t split = 0;  // 0 train, 1 test: disjoint streams
};

class SynthTableSource : public IndexedSource {
 public:
  explicit SynthTableSource(const SynthTable& table) : table_(table) {
    std::vector<int64_t> target;
    if (table.outputs > 1) target.push_back(table.outputs);
    fields_ = {{"x", ElementType::kFloat32, {table.inputs}},
               {"y", ElementType::kFloat32, target, /*is_target=*/true}};
  }

  size_t size() const override { return size_t(table_.count); }
  const std::vector<std::string>& classes() const override { return none_; }
  const std::vector<TensorField>& tensors() const override { return fields_; }
  uint64_t bytes(size_t) const override { return bytes_of(std::span(fields_)); }
  int64_t label(size_t) const override { return 0; }

  void read(size_t index, Sample& out) const override {
    RandomStream random(table_.seed, table_.split, index, RandomUse::kSynthetic);
    std::vector<double> u(size_t(table_.inputs));
    std::vector<float> values;
    for (double& each : u) {
      each = random.next_double();
      values.push_back(float((each - 0.5) / kUniformDeviation));
    }
    for (int64_t i = 0; i < table_.outputs; ++i)
      values.push_back(float(target_of_row(u, size_t(i)) + table_.noise * random.normal()));
    out.name =
        (table_.split == 0 ? "synth-table:train:" : "synth-table:test:") + std::to_string(index);
    out.encoding = SampleEncoding::kTensors;
    out.label = 0;
    out.bytes.resize(values.size() * sizeof(float));
    std::memcpy(out.bytes.data(), values.data(), out.bytes.size());
  }

 private:
  // Output `first` is of the inputs from `first` on.
  static double target_of_row(const std::vector<double>& u, size_t first) {
    const auto at = [&](size_t i) { return u[(first + i) % u.size()]; };
    const double value = 10 * std::sin(std::numbers::pi * at(0) * at(1)) +
                         20 * (at(2) - 0.5) * (at(2) - 0.5) + 10 * at(3) + 5 * at(4);
    return (value - kTargetMean) / kTargetDeviation;
  }

  const SynthTable table_;
  std::vector<TensorField> fields_;
  const std::vector<std::string> none_;
};

}  // namespace

std::unique_ptr<Dataset> open_synth_table(Env&, const std::string& rest) {
  SynthTable table;
  std::string left = "," + rest;  // options follow a comma
  const SynthNumbers numbers{"synth-table", left};
  numbers.take<int64_t>("count", 1, 100'000'000, table.count);
  numbers.take<int64_t>("inputs", kLeastInputs, 1 << 20, table.inputs);
  numbers.take<int64_t>("outputs", 1, 1 << 20, table.outputs);
  numbers.take<double>("noise", 0, 1000, table.noise);
  numbers.take<uint64_t>("seed", 0, UINT64_MAX, table.seed);
  table.split = take_word(left, "split", "train", "test") == "test";
  numbers.require_none("count, inputs, outputs, noise, seed and split");
  return std::make_unique<SynthTableSource>(table);
}

}  // namespace saturate
