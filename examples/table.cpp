// A table instead of images: prices of houses, in a CSV file, predicted from numbers and a category
// by a linear model, with the loader's columns of normalised values. Needs no LibTorch.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "saturate/data/error.h"
#include "saturate/data/loader.h"

namespace {

void write_table(const std::string& path) {
  std::mt19937 random(1);
  std::normal_distribution<double> area(120, 30), noise(0, 5);
  const char* const towns[] = {"Ames", "Boston", "Carmel"};
  std::ofstream file(path);
  file << "area,town,year,price\n";
  for (int i = 0; i < 2000; ++i) {
    const double size = area(random);
    const auto town = size_t(random() % 3);
    const int year = 1950 + int(random() % 70);
    file << size << "," << towns[town] << "," << year << ","
         << 2 * size + 40 * double(town) + 0.5 * (year - 1985) + noise(random) << "\n";
  }
}

// weights * x + the last weight.
class LinearModel {
 public:
  explicit LinearModel(size_t values) : weights_(values + 1) {}
  float predict(const float* x) const {
    float sum = weights_.back();
    for (size_t i = 0; i + 1 < weights_.size(); ++i) sum += weights_[i] * x[i];
    return sum;
  }
  // A step of gradient descent on the squared error.
  void learn(const float* x, float y, float rate) {
    const float step = rate * (y - predict(x));
    for (size_t i = 0; i + 1 < weights_.size(); ++i) weights_[i] += step * x[i];
    weights_.back() += step;
  }

 private:
  std::vector<float> weights_;
};

const float* column(const saturate::Batch& batch, size_t field) {
  return reinterpret_cast<const float*>(batch.pixels.get() + (*batch.columns)[field].offset);
}

}  // namespace

int main() {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("saturate-table-" + std::to_string(getpid()) + ".csv");
  write_table(path);
  try {
    saturate::Env& env = saturate::Env::posix();
    // Every fifth row is held out; both parts are normalised by the other rows.
    const auto train = saturate::open_dataset(env, "split:train,1/5,csv:" + path);
    const auto held = saturate::open_dataset(env, "split:held,1/5,csv:" + path);
    std::filesystem::remove(path);
    const auto width = size_t(train->tensors()[0].shape[0]);  // two numbers, three towns

    saturate::LoaderOptions options;
    options.output = saturate::BatchOutput::kTensors;
    saturate::Loader loader(*train, options, {}), test(*held, options, {});
    LinearModel model(width);
    saturate::Batch batch;
    for (uint32_t epoch = 0; epoch < 20; ++epoch) {
      loader.start_epoch(epoch);
      while (loader.next(batch))
        for (size_t i = 0; i < batch.count(); ++i)
          model.learn(column(batch, 0) + i * width, column(batch, 1)[i], 0.01f);
    }

    double sum = 0, squares = 0, errors = 0, count = 0;
    test.start_epoch(0);
    for (; test.next(batch); count += double(batch.count()))
      for (size_t i = 0; i < batch.count(); ++i) {
        const double y = column(batch, 1)[i];
        const double error = y - model.predict(column(batch, 0) + i * width);
        sum += y;
        squares += y * y;
        errors += error * error;
      }
    const double r2 = 1 - errors / (squares - sum * sum / count);
    std::printf("%zu values a row; R2 on %.0f held-out rows: %.4f\n", width, count, r2);
    return r2 > 0.98 ? 0 : 1;
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
