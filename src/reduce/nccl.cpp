#include "reduce/backends.h"

#ifdef SATURATE_HAS_NCCL
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#include "saturate/data/error.h"
#endif

namespace saturate {
namespace {

constexpr const char* kNcclInterface = "NCCL_SOCKET_IFNAME";

}  // namespace

const char* nccl_interface(const World& world, const Lookup& lookup) {
  return world.local_size != world.size || lookup(kNcclInterface) ? nullptr : "lo";
}

#ifdef SATURATE_HAS_NCCL

bool has_nccl() {
  return true;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const World& world, std::chrono::milliseconds timeout,
                                            const at::Device& device) {
  if (const char* name = nccl_interface(world, [](const char* of) { return std::getenv(of); }))
    setenv(kNcclInterface, name, 1);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>("nccl", store), world.rank, world.size, options);
  backend->setBoundDeviceId(device);
  return backend;
}

#else

bool has_nccl() {
  return false;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&, const World&,
                                            std::chrono::milliseconds, const at::Device&) {
  fail(ErrorKind::kUsage, "this build has no NCCL", "distributed.backend",
       "Set it to gloo, or build with nvcc and a full LibTorch");
}

#endif

}  // namespace saturate
