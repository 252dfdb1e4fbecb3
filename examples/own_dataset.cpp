// A custom dataset: here, discs of two sizes, drawn on demand. A dataset can also return the bytes
// of JPEG or PNG files from any storage.
#include <cstdio>

#include "saturate/data/error.h"
#include "saturate/data/loader.h"

class Discs : public saturate::Dataset {
 public:
  size_t size() const override { return 1000; }
  const std::vector<std::string>& classes() const override { return classes_; }

  // Called from many threads at once.
  void read(size_t index, saturate::Sample& out) const override {
    const int side = 32, label = int(index % 2), radius = label == 0 ? 6 : 12;
    const int x = 8 + int(index * 7 % 16), y = 8 + int(index * 11 % 16);
    out.encoding = saturate::SampleEncoding::kRaw;
    out.width = out.height = side;
    out.channels = 1;
    out.label = label;
    out.name = "disc " + std::to_string(index);
    out.bytes.assign(size_t(side) * side, std::byte{0});
    for (int row = 0; row < side; ++row)
      for (int column = 0; column < side; ++column)
        if ((row - y) * (row - y) + (column - x) * (column - x) <= radius * radius)
          out.bytes[size_t(row) * side + size_t(column)] = std::byte{255};
  }

 private:
  const std::vector<std::string> classes_ = {"large", "small"};
};

int main() {
  try {
    const Discs discs;
    saturate::AugmentOptions augment;
    augment.size = 32;
    saturate::LoaderOptions options;
    options.type = saturate::PixelType::kUint8;
    saturate::Loader loader(discs, options, augment);

    size_t images = 0, bright = 0;
    loader.start_epoch(0);
    for (saturate::Batch batch; loader.next(batch); images += batch.count())
      for (size_t i = 0; i < batch.count() * 32 * 32 * 3; ++i)
        bright += batch.pixels.get()[i] == std::byte{255};
    std::printf("%zu images, %.1f bright pixels each\n", images,
                double(bright) / double(images) / 3);
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
