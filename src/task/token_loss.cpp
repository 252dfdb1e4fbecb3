#include "task/token_loss.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "model/autograd.h"
#include "saturate/data/error.h"
#include "task/token_kernels.h"

namespace saturate {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Probabilities are computed for this many elements at once: on a CPU few enough for its cache, on
// a GPU enough to fill it and to make launches cheap.
int64_t rows_at_once(const at::Tensor& rows) {
  const int64_t at_once = rows.is_cuda() ? 1 << 24 : 1 << 22;
  return std::max<int64_t>(1, at_once / std::max<int64_t>(1, rows.size(1)));
}

// Logits [..., V] as [N, V].
at::Tensor rows_of(const at::Tensor& logits) {
  return logits.reshape({-1, logits.size(-1)});
}

// Calls part(begin, count) for all rows.
template <class Part>
void in_parts(const at::Tensor& rows, const Part& part) {
  const int64_t step = rows_at_once(rows);
  for (int64_t begin = 0; begin < rows.size(0); begin += step)
    part(begin, std::min(step, rows.size(0) - begin));
}

// In which probabilities are computed.
at::ScalarType arithmetic_type(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// One for each row, also for those that do not count. known: the labels, but 0 for those rows.
at::Tensor row_losses(const at::Tensor& rows, const at::Tensor& known) {
  const at::ScalarType type = arithmetic_type(rows);
  at::Tensor losses = at::empty({rows.size(0)}, rows.options().dtype(type));
  in_parts(rows, [&](int64_t begin, int64_t count) {
    losses.narrow(0, begin, count)
        .copy_(at::log_softmax(rows.narrow(0, begin, count).to(type), 1)
                   .gather(1, known.narrow(0, begin, count).unsqueeze(1))
                   .squeeze(1));
  });
  return losses.neg_();
}

// The gradient of a sum of row_losses() times factors [rows, 1].
at::Tensor rows_gradient(const at::Tensor& rows, const at::Tensor& known,
                         const at::Tensor& factors) {
  at::Tensor result = at::empty_like(rows, at::MemoryFormat::Contiguous);
  in_parts(rows, [&](int64_t begin, int64_t count) {
    const at::Tensor part = at::softmax(rows.narrow(0, begin, count).to(factors.scalar_type()), 1);
    part.scatter_add_(1, known.narrow(0, begin, count).unsqueeze(1),
                      at::full({1, 1}, -1, part.options()).expand({count, 1}));
    at::Tensor gradient = result.narrow(0, begin, count);
    if (gradient.scalar_type() == part.scalar_type())
      at::mul_out(gradient, part, factors.narrow(0, begin, count));
    else
      gradient.copy_(part.mul_(factors.narrow(0, begin, count)));
  });
  return result;
}

// The gradient of the mean: (softmax - one for the label) / labels that count.
class TokenLossNode : public Node {
 public:
  TokenLossNode(const at::Tensor& logits, at::Tensor labels, at::Tensor weights, RowSums sums)
      : Node(torch::autograd::collect_next_edges(logits)),
        logits_(logits, /*is_output=*/false),
        labels_(std::move(labels)),
        weights_(std::move(weights)),
        sums_(std::move(sums)) {}

  std::string name() const override { return "TokenLoss"; }
  void release_variables() override { logits_.reset_data(); }

 protected:
  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled())
      fail(ErrorKind::kRun, "the loss of a language model has no second derivative", "backward",
           "Call backward without create_graph");
    if (!gradients.at(0).defined()) return {at::Tensor()};
    // Views made under autograd keep their base. Then padded_linear() would find two tensors in the
    // gradient's memory, and copy it.
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor logits = logits_.unpack(), rows = rows_of(logits);
    const at::Tensor factors = weights_ * gradients[0];
    const at::Tensor result = sums_.peaks.defined()
                                  ? token_rows_gradient(rows, labels_, sums_, factors)
                                  : rows_gradient(rows, labels_, factors.unsqueeze(1));
    return {result.view(logits.sizes())};
  }

 private:
  torch::autograd::SavedVariable logits_;
  at::Tensor labels_, weights_;  // [rows]: without sums_, 0 instead of negative ones; in the mean
  RowSums sums_;                 // the kernels'; or undefined
};

template <class Value>
int64_t hits_here(const Value* logits, const int64_t* labels, int64_t count, int64_t classes) {
  std::atomic<int64_t> hits = 0;
  at::parallel_for(0, count, std::max<int64_t>(1, (1 << 15) / classes),
                   [&](int64_t i, int64_t end) {
                     int64_t found = 0;
                     for (; i < end; ++i) {
                       const int64_t label = labels[i];
                       if (label < 0 || label >= classes) continue;
                       const Value* const row = logits + i * classes;
                       const float own = float(row[label]);
                       int64_t larger = 0;
                       for (int64_t c = 0; c < label; ++c) larger += !(float(row[c]) < own);
                       for (int64_t c = label + 1; c < classes; ++c)
                         larger += !(float(row[c]) <= own);
                       found += larger == 0 && own == own;
                     }
                     hits += found;
                   });
  return hits;
}

}  // namespace

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  at::Tensor loss, known, weights;
  RowSums sums;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor rows = rows_of(logits.detach()), flat = labels.reshape({-1});
    const at::Tensor counts = flat.ge(0);
    weights = counts.to(arithmetic_type(logits)) / counts.sum().clamp_min(1);
    at::Tensor losses;
    if (has_token_kernels(rows)) {
      known = flat;
      sums = sum_token_rows(rows, known);
      losses = std::exchange(sums.losses, {});
    } else {
      known = flat.clamp_min(0);
      losses = row_losses(rows, known).masked_fill_(counts.logical_not(), 0);
    }
    loss = losses.mul(weights).sum();
  }
  if (!at::GradMode::is_enabled() || !logits.requires_grad()) return loss;
  const auto node = make_graph_node<TokenLossNode>(logits, known, weights, std::move(sums));
  torch::autograd::set_history(loss, node);
  return loss;
}

at::Tensor count_token_hits(const at::Tensor& logits, const at::Tensor& labels) {
  const at::NoGradGuard no_grad;
  if (has_token_kernels(logits)) return token_row_hits(rows_of(logits), labels.reshape({-1})).sum();
  if (!logits.is_cpu())
    return logits.argmax(-1).eq(labels).logical_and(logits.amax(-1).isnan().logical_not()).sum();
  const at::Tensor values = logits.contiguous(), wanted = labels.contiguous();
  int64_t hits = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, values.scalar_type(), "count_token_hits", [&] {
        hits = hits_here(values.const_data_ptr<scalar_t>(), wanted.const_data_ptr<int64_t>(),
                         wanted.numel(), values.size(-1));
      });
  return at::scalar_tensor(hits, at::kLong);
}

}  // namespace saturate
