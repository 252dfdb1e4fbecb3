// The local part of SyncBatchNorm, between the all-reduces. On a GPU it uses the operators of
// torch.nn.SyncBatchNorm, which do not block the host; on a CPU, where torch has none of them, the
// same formulas with sums in double precision.
#pragma once

#include <ATen/core/Tensor.h>

namespace saturate {

struct RunningStatistics {
  at::Tensor mean, var;  // [C], updated in place
  double momentum;
};

// Stateless. Calls go in the order below, without autograd except prepared(). `x` is what
// prepared() returned, [N, C, H, W]; N may be 0.
class LocalNorm {
 public:
  // Statistics over all processes.
  struct Joint {
    at::Tensor mean, inverse;  // [C]; inverse: 1 / sqrt(var + eps), the variance biased
    at::Tensor counts;         // [world]: values per channel of each process
  };
  struct Sums {
    at::Tensor row;                 // [2 C], to be summed over the processes for to_input()
    at::Tensor to_weight, to_bias;  // gradients from this process's own values, [C]
  };

  virtual ~LocalNorm() = default;

  // The input in the type and layout that the other methods expect.
  virtual at::Tensor prepared(const at::Tensor& input) const = 0;
  // This process's statistics: [2 C + 1], the last being its values per channel.
  virtual at::Tensor statistics(const at::Tensor& x, double eps) const = 0;
  // From the statistics of all processes, [world, 2 C + 1]. If no process has an image the running
  // statistics do not change.
  virtual Joint join(const at::Tensor& x, const at::Tensor& rows, const RunningStatistics& running,
                     double eps) const = 0;
  // The output, in x's type; `kept` is saved for backward.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const Joint& joint, at::Tensor& kept) const = 0;

  // The output's gradient in the type and layout that the next two expect.
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
