// A GPU's state from NVML, the library of NVIDIA's driver, loaded at run time: the same program
// runs without it.
//
// Declarations follow the "NVML API Reference Guide" (docs.nvidia.com/deploy/nvml-api), also for
// its GPM functions.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "saturate/data/step_options.h"
#include "saturate/observer.h"

namespace saturate {

// Not for concurrent use.
class Nvml {
 public:
  // Null if the library or the GPU is missing, or if the GPU is in MIG mode and `visible`
  // does not name an instance (MIG-...). `gpu` is CUDA's index, which `visible` (the
  // value of CUDA_VISIBLE_DEVICES) maps to NVML's.
  static std::unique_ptr<Nvml> open(int gpu, const std::string& visible,
                                    const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();

  // "NVIDIA H100 80GB HBM3"; empty if unknown.
  std::string name() const;
  // Sets the members that begin with gpu_, and throttle_reasons; gpu_sm_active from the second call
  // on. Values that this GPU does not report stay empty.
  void read(Telemetry& reading);

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

// A GPU's peak FLOP/s in dense matrix products at a precision, by NVIDIA's data sheet; empty for a
// GPU that is not in the table. `name` is Nvml's. REQUIRES: `mode` is resolved.
std::optional<double> peak_flop_per_s(const std::string& name, PrecisionMode mode);

}  // namespace saturate
