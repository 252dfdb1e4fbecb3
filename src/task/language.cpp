#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numbers>

#include "saturate/data/error.h"
#include "saturate/task.h"
#include "task/token_loss.h"

namespace saturate {
namespace {

constexpr int64_t kByteVocabulary = 256;  // a vocabulary of bytes

class Language : public Task {
 public:
  Language(int64_t vocabulary, bool varies)
      : bits_(vocabulary == kByteVocabulary ? "bpb" : "bits_per_token"), varies_(varies) {}

  at::Tensor mean_loss(const at::Tensor& outputs, const at::Tensor& labels,
                       double /*smoothing*/) const override {
    if (outputs.dim() != labels.dim() + 1 ||
        outputs.sizes().slice(0, labels.dim()) != labels.sizes())
      fail(ErrorKind::kUsage,
           fmt::format("the model returns [{}] for tokens [{}], and train.task is language",
                       fmt::join(outputs.sizes(), ", "), fmt::join(labels.sizes(), ", ")),
           "model.name", "Use a model that returns logits [N, T, vocabulary]");
    return token_loss(outputs, labels);
  }
  bool takes_half() const override { return true; }
  // Without padding the samples say it, and processes need no all-reduce.
  at::Tensor counted(const at::Tensor& labels) const override {
    return varies_ ? labels.ge(0).sum() : at::Tensor();
  }

  std::vector<MetricName> metric_names() const override {
    return {{.name = "perplexity", .higher_is_better = false},
            {.name = bits_, .higher_is_better = false},
            {.name = "accuracy"}};
  }
  int64_t totals() const override { return 3; }

  // [3] double: loss * tokens, tokens predicted correctly, tokens.
  std::vector<at::Tensor> sums(const at::Tensor& loss, const at::Tensor& outputs,
                               const at::Tensor& labels) const override {
    const at::Tensor tokens = labels.ge(0).sum().to(at::kDouble);
    return {at::stack({loss.to(at::kDouble) * tokens,
                       count_token_hits(outputs, labels).to(at::kDouble), tokens})};
  }

  Metrics metrics(const std::vector<at::Tensor>& sums, int64_t /*samples*/) const override {
    const at::Tensor host = sums.at(0).cpu();  // waits for the device
    const double* const sum = host.const_data_ptr<double>();
    Metrics metrics;
    metrics.totals.assign(sum, sum + host.numel());
    derive(metrics);
    return metrics;
  }

  void derive(Metrics& metrics) const override {
    if (metrics.totals.empty()) return;
    const double tokens = metrics.totals[2];
    const auto mean = [&](double sum) { return tokens > 0 ? sum / tokens : std::nan(""); };
    metrics.loss = mean(metrics.totals[0]);
    metrics.set("perplexity", std::exp(metrics.loss));
    metrics.set(bits_, metrics.loss / std::numbers::ln2);
    metrics.set("accuracy", mean(metrics.totals[1]));
  }

 private:
  const char* const bits_;
  const bool varies_;
};

}  // namespace

std::unique_ptr<const Task> language(int64_t vocabulary, bool varies) {
  return std::make_unique<Language>(vocabulary, varies);
}

}  // namespace saturate
