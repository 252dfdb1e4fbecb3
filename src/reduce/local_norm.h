// SyncBatchNorm's work on one process's own values, between the sums over all processes. On a GPU
// these are the operators of torch.nn.SyncBatchNorm, for which the host does not wait; on a CPU,
// where torch has none of them, the same with sums in double precision.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

struct RunningStatistics {
  at::Tensor mean, var;  // [C], updated in place
  double momentum;
};

// Stateless. Calls go in the order below, without gradients but for prepared(). `x` is what
// prepared() gave, [N, C, H, W]; N may be 0.
class LocalNorm {
 public:
  // Over all processes.
  struct Joint {
    at::Tensor mean, inverse;  // [C]; inverse: 1 / sqrt(var + eps), the variance biased
    at::Tensor counts;         // [world]: values a channel of each process
  };
  struct Sums {
    at::Tensor row;                 // [2 C], to be summed over the processes for to_input()
    at::Tensor to_weight, to_bias;  // gradients of this process's own values, [C]
  };

  virtual ~LocalNorm() = default;

  // The input in the type and layout that the others take.
  virtual at::Tensor prepared(const at::Tensor& input) const = 0;
  // This process's statistics: [2 C + 1], the last one its values a channel.
  virtual at::Tensor statistics(const at::Tensor& x, double eps) const = 0;
  // From the statistics of all processes, [world, 2 C + 1]. Where no process has an image the
  // running statistics stay as they are.
  virtual Joint join(const at::Tensor& x, const at::Tensor& rows, const RunningStatistics& running,
                     double eps) const = 0;
  // The output, in x's type; `kept`: what backward is given back.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const Joint& joint, at::Tensor& kept) const = 0;

  // The output's gradient in the type and layout that the next two take.
  virtual at::Tensor prepared_gradient(const at::Tensor& gradient,
                                       const at::Tensor& kept) const = 0;
  virtual Sums sums(const at::Tensor& gradient, const at::Tensor& kept, const at::Tensor& weight,
                    const Joint& joint) const = 0;
  // The gradient of x; `row`: Sums::row over all processes.
  virtual at::Tensor to_input(const at::Tensor& gradient, const at::Tensor& kept,
                              const at::Tensor& weight, const Joint& joint,
                              const at::Tensor& row) const = 0;
};

const LocalNorm& local_norm(const at::Device& device);

}  // namespace saturate
