// A custom augmentation after saturate's loader: on the CPU, and as a CUDA kernel if there are nvcc
// and a GPU. Needs no LibTorch.
#include "own_augmentation.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "saturate/data/error.h"
#include "saturate/data/loader.h"

void vignette_cpu(const VignetteBatch& batch) {
  for (int64_t i = 0; i < batch.values(); ++i) batch.out[i] = vignette_value(batch, i);
}

// Depends on seed, epoch and image only, not on threads, order or device. saturate itself uses no
// RandomUse from 1000 on.
Vignette draw_vignette(uint32_t epoch, uint64_t index, int size) {
  saturate::RandomStream random(/*seed=*/1, epoch, index, saturate::RandomUse(1000));
  return {float(random.uniform(0, size)), float(random.uniform(0, size)),
          float(random.uniform(0.2, 0.9))};
}

int run() {
  const auto dataset = saturate::open_dataset(saturate::Env::posix(), "synth:size=48,count=512");
  saturate::AugmentOptions augment;
  augment.size = 32;
  augment.crop = saturate::CropKind::kRandomResized;
  saturate::LoaderOptions options;
  options.batch = 64;
  options.type = saturate::PixelType::kUint8;  // the vignette's input
  saturate::Loader loader(*dataset, options, augment);

  double before = 0, after = 0, largest = 0;  // sums of levels; difference between the devices
  int64_t values = 0;
  bool had_gpu = false;
  loader.start_epoch(0);
  for (saturate::Batch batch; loader.next(batch);) {
    std::vector<Vignette> vignettes;
    for (const saturate::BatchSample& sample : batch.samples)
      vignettes.push_back(draw_vignette(/*epoch=*/0, sample.index, augment.size.width));
    VignetteBatch work{reinterpret_cast<const uint8_t*>(batch.pixels.get()),
                       vignettes.data(),
                       int64_t(batch.count()),
                       augment.size.width,
                       {{1 / 255.f, 1 / 255.f, 1 / 255.f}, {0, 0, 0}},
                       nullptr};
    std::vector<float> finished(size_t(work.values())), by_gpu(size_t(work.values()));
    work.out = finished.data();
    vignette_cpu(work);
#ifdef HAVE_KERNEL
    work.out = by_gpu.data();
    had_gpu = vignette_cuda(work);
#endif
    for (size_t i = 0; i < finished.size(); ++i) {
      before += work.images[i];
      after += 255.0 * finished[i];
      if (had_gpu) largest = std::fmax(largest, std::fabs(finished[i] - by_gpu[i]));
    }
    values += work.values();
  }
  std::printf("mean level %.1f, behind the vignette %.1f\n", before / double(values),
              after / double(values));
  if (had_gpu)
    std::printf("GPU and CPU differ by %.2g at most\n", largest);
  else
    std::printf("no GPU: the CPU's twin alone\n");
  return had_gpu && largest > 1.01 / 255 ? 1 : 0;  // roundings may differ
}

int main() {
  try {
    return run();
  } catch (const saturate::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
