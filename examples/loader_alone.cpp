// The loader alone: reads, decodes and augments an epoch of images on all cores.
//   loader_alone [SOURCE]
#include <chrono>
#include <cstdio>
#include <thread>

#include "saturate/data/error.h"
#include "saturate/data/loader.h"

int run(const std::string& source) {
  const auto dataset = saturate::open_dataset(saturate::Env::posix(), source);

  saturate::AugmentOptions augment;
  augment.size = 32;
  augment.crop = saturate::CropKind::kRandomResized;
  saturate::LoaderOptions options;
  options.batch = 64;
  options.threads = int(std::thread::hardware_concurrency());
  saturate::Loader loader(*dataset, options, augment);

  const auto begin = std::chrono::steady_clock::now();
  size_t images = 0;
  double sum = 0;
  loader.start_epoch(0);
  // pixels: [count, 32, 32, 3] floats, normalised
  for (saturate::Batch batch; loader.next(batch); images += batch.count()) {
    const auto* pixels = reinterpret_cast<const float*>(batch.pixels.get());
    for (size_t i = 0; i < batch.count() * 32 * 32 * 3; ++i) sum += pixels[i];
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%zu images, mean %.3f, %.0f images/s\n", images, sum / double(images * 32 * 32 * 3),
              double(images) / seconds.count());
  return 0;
}

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "synth:size=48,count=2000");
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
