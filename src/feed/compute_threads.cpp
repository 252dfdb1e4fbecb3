#include "feed/compute_threads.h"

#include <ATen/Parallel.h>

#include "base/thread_pool.h"

namespace saturate {
namespace {

void require_compute_threads(int threads) {
  if (threads > 1) const ThreadPool trial(threads, "train.threads");
}

}  // namespace

void set_compute_threads(int threads) {
  require_compute_threads(2 * (threads - 1));  // LibTorch's pool and OpenMP
  at::set_num_threads(threads);
  start_compute_threads();
}

void start_compute_threads() {
  const int threads = at::get_num_threads();
  require_compute_threads(threads);
  at::parallel_for(0, threads, 1, [](int64_t, int64_t) {});
}

}  // namespace saturate
