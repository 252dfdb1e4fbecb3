#include "reduce/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "model/autograd.h"
#include "saturate/data/error.h"
#include "saturate/data/stream.h"
#include "saturate/model.h"

namespace saturate {
namespace {

using torch::autograd::variable_list;

// One thread for each replica but the first, reused across steps to keep thread-local state such as
// the algorithms that cuDNN's benchmark chose. Serves one caller at a time.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(size_t replicas) {
    for (size_t i = 1; i < replicas; ++i)
      threads_.push_back(make_thread_stream(fmt::format("replica {}", i)));
  }

  // Calls body(i) for each i on its thread, but body(0) on the caller's: in backward that is the
  // first device's autograd thread, for which another thread would wait forever.
  void on_all(size_t count, const std::function<void(size_t)>& body) {
    std::vector<std::exception_ptr> failures(count);
    const auto guarded = [&](size_t i) {
      try {
        body(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    };
    for (size_t i = 1; i < count; ++i) threads_[i - 1]->submit([&guarded, i] { guarded(i); });
    guarded(0);
    for (size_t i = 1; i < count; ++i) threads_[i - 1]->host_waits(threads_[i - 1]->record());
    for (const auto& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }

 private:
  std::vector<std::unique_ptr<Stream>> threads_;
};

variable_list trained(Model& model) {
  variable_list found;
  for (const auto& [name, tensor] : model.parameters())
    if (tensor.requires_grad()) found.push_back(tensor);
  return found;
}

// One autograd node for all replicas' work: parameters of the first model in, logits out.
class ReplicasNode : public torch::autograd::Node {
 public:
  struct Pass {
    at::Device device;
    at::Tensor logits;         // [chunk, classes], with its graph
    variable_list parameters;  // those that are trained
  };

  ReplicasNode(torch::autograd::edge_list edges, std::vector<Pass> passes,
               std::shared_ptr<ReplicaThreads> threads)
      : Node(std::move(edges)), passes_(std::move(passes)), threads_(std::move(threads)) {}

  std::string name() const override { return "DataParallel"; }
  void release_variables() override { passes_.clear(); }

 protected:
  variable_list apply(variable_list&& gradients) override {
    std::vector<int64_t> sizes;
    for (const Pass& pass : passes_) sizes.push_back(pass.logits.size(0));
    const auto chunks = gradients.at(0).split_with_sizes(sizes);
    std::vector<variable_list> found(passes_.size());
    threads_->on_all(passes_.size(), [&](size_t i) {
      const Pass& pass = passes_[i];
      const c10::DeviceGuard guard(pass.device);
      found[i] = torch::autograd::grad({pass.logits}, pass.parameters,
                                       {chunks[i].to(pass.device, pass.logits.scalar_type())},
                                       /*retain_graph=*/false, /*create_graph=*/false,
                                       /*allow_unused=*/true);
    });
    const at::NoGradGuard no_grad;
    for (size_t i = 1; i < found.size(); ++i)
      for (size_t j = 0; j < found[0].size(); ++j) add(found[0][j], found[i][j]);
    return std::move(found[0]);
  }

 private:
  void add(at::Tensor& sum, const at::Tensor& other) const {
    if (!other.defined()) return;
    const at::Tensor here = other.to(passes_[0].device);
    sum = sum.defined() ? sum + here : here;
  }

  std::vector<Pass> passes_;
  const std::shared_ptr<ReplicaThreads> threads_;
};

class DataParallel : public Model {
 public:
  DataParallel(Replica first, std::vector<Replica> others) {
    replicas_.push_back(std::move(first));
    for (Replica& other : others) replicas_.push_back(std::move(other));
    threads_ = std::make_shared<ReplicaThreads>(replicas_.size());
  }

  at::Tensor forward(const at::Tensor& images) override {
    const variable_list parameters = trained(first());
    if (!at::GradMode::is_enabled() || parameters.empty()) return first().forward(images);
    replicate();
    const auto chunks = images.chunk(int64_t(replicas_.size()));
    std::vector<ReplicasNode::Pass> passes;
    for (size_t i = 0; i < chunks.size(); ++i)
      passes.push_back({replicas_[i].device, {}, trained(*replicas_[i].model)});
    run(chunks, passes);
    std::vector<at::Tensor> logits;
    for (const auto& pass : passes) logits.push_back(pass.logits.detach().to(passes[0].device));
    at::Tensor all;
    {
      const at::NoGradGuard no_grad;
      all = at::cat(logits);
    }
    const auto node = make_graph_node<ReplicasNode>(torch::autograd::collect_next_edges(parameters),
                                                    std::move(passes), threads_);
    torch::autograd::set_history(all, node);
    return all;
  }

  void set_training(bool training) override {
    for (Replica& replica : replicas_) replica.model->set_training(training);
  }
  std::vector<NamedTensor> parameters() override { return first().parameters(); }
  std::vector<NamedTensor> buffers() override { return first().buffers(); }
  void to(const at::Device& device, bool channels_last) override {
    replicas_[0].device = device;
    for (Replica& replica : replicas_) replica.model->to(replica.device, channels_last);
  }
  ModelFacets facets() override {
    const ModelFacets own = first().facets();
    ModelFacets facets;
    facets.wanted_images = own.wanted_images;
    facets.prepare = own.prepare;
    return facets;
  }

 private:
  Model& first() { return *replicas_[0].model; }

  // Copies the first model's tensors and requires_grad flags to every replica.
  void replicate() {
    const at::NoGradGuard no_grad;
    const auto copy = [](const std::vector<NamedTensor>& from, const std::vector<NamedTensor>& to) {
      for (size_t j = 0; j < to.size(); ++j) {
        to[j].tensor.copy_(from[j].tensor);
        to[j].tensor.set_requires_grad(from[j].tensor.requires_grad());
      }
    };
    const auto parameters = first().parameters(), buffers = first().buffers();
    for (size_t i = 1; i < replicas_.size(); ++i) {
      copy(parameters, replicas_[i].model->parameters());
      copy(buffers, replicas_[i].model->buffers());
    }
  }

  void run(const std::vector<at::Tensor>& chunks, std::vector<ReplicasNode::Pass>& passes) {
    const at::DeviceType type = replicas_[0].device.type();
    const AutocastState autocast(type);
    threads_->on_all(passes.size(), [&](size_t i) {
      const c10::DeviceGuard guard(passes[i].device);
      const AutocastStateScope own(type);
      autocast.apply();
      passes[i].logits = replicas_[i].model->forward(chunks[i].to(passes[i].device));
    });
  }

  std::vector<Replica> replicas_;            // the first replica's tensors are this model's
  std::shared_ptr<ReplicaThreads> threads_;  // shared with graphs that outlive this model
};

}  // namespace

std::unique_ptr<Model> make_data_parallel(Replica first, std::vector<Replica> replicas) {
  // Behind the replicas the step would not see the loss and would silently use cross entropy.
  if (first.model->facets().loss)
    fail(ErrorKind::kUsage, "distributed.mode=dp does not support a model with its own loss",
         "distributed.mode", "Set distributed.mode=ddp");
  return std::make_unique<DataParallel>(std::move(first), std::move(replicas));
}

}  // namespace saturate
