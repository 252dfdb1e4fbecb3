// Gradients sent as products of two low-rank matrices: PowerSGD, algorithm 2 of Vogels et al. 2019
// (https://arxiv.org/abs/1905.13727), with error feedback and warm start.
//
// The gradient M [n, m] of one parameter, rank r, over W processes, whose gradients are summed:
//   M_own += error                        what earlier steps left out
//   P = sum over processes (M_own Q)      Q [m, r] of the step before, orthonormal
//   P = orthonormal(P)                    [n, r]
//   Q = sum over processes (M_own^T P)
//   gradient = P Q^T,  error = M_own - gradient / W
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

namespace saturate {

// Starts the first all-reduces as backward fills the buckets, and the second ones, which need the
// first ones' results, after backward: all processes make the same calls in the same order, which
// Gloo requires. 1-dimensional parameters, and those that a low-rank product would not at least
// halve, are all-reduced as they are. Belongs to the thread that runs backward.
class PowerSgdHook : public c10d::CommHookInterface {
 public:
  // `parameters`: all that the buckets hold, in the same order on all processes. `sent` is called
  // when the last bucket's first all-reduces have been started.
  PowerSgdHook(c10d::ProcessGroup& group, int rank, const std::vector<at::Tensor>& parameters,
               std::function<void()> sent);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  struct Matrix {
    at::Tensor error;     // [n, m] float; M_own during a step
    at::Tensor p, q;      // [n, r], [m, r] float
    at::Tensor gradient;  // [n, m], in its bucket
  };
  struct Pending {  // a bucket in flight
    at::Tensor buffer;
    std::vector<Matrix*> matrices;
    std::vector<at::Tensor> whole;  // gradients that are not compressed, in the bucket
    at::Tensor sum;                 // flat buffer being all-reduced
    c10::intrusive_ptr<c10d::Work> work;
  };

  Matrix* matrix_of(const at::Tensor& parameter, const at::Tensor& gradient);
  void send(Pending& bucket, const std::vector<at::Tensor>& parts);
  void send_second(Pending& bucket);
  void finish(Pending& bucket);

  c10d::ProcessGroup& group_;
  const int64_t rank_;
  const std::function<void()> sent_;
  std::unordered_map<const void*, uint64_t> places_;  // index of each parameter
  std::unordered_map<const void*, Matrix> matrices_;
  std::deque<Pending> pending_;
};

}  // namespace saturate
