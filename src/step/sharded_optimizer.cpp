#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>

#include "reduce/heartbeat.h"
#include "saturate/data/error.h"
#include "saturate/group.h"
#include "saturate/optimizer.h"

namespace saturate {
namespace {

constexpr size_t kPieceBytes = size_t{32} << 20;

// One line per tensor: name, type, dimensions, sizes.
std::string describe(const std::vector<NamedTensor>& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text += fmt::format("{} {} {}", name, int(tensor.scalar_type()), tensor.dim());
    for (int64_t size : tensor.sizes()) text += fmt::format(" {}", size);
    text += '\n';
  }
  return text;
}

// Tensors with names, types and sizes but no memory.
std::vector<NamedTensor> placeholders(const std::string& description) {
  std::vector<NamedTensor> tensors;
  std::istringstream lines(description);
  std::string name;
  for (int type = 0, dim = 0; lines >> name >> type >> dim;) {
    std::vector<int64_t> sizes(static_cast<size_t>(dim));
    for (int64_t& size : sizes) lines >> size;
    tensors.push_back({name, at::empty(sizes, at::device(at::kMeta).dtype(at::ScalarType(type)))});
  }
  return tensors;
}

class ShardedOptimizer : public Optimizer {
 public:
  ShardedOptimizer(Group& group, std::vector<ParameterGroup> groups, const OwnOptimizer& make)
      : group_(group) {
    const std::vector<int> owners = owners_of(groups, group.world());
    std::vector<ParameterGroup> own;
    size_t next = 0;
    for (const ParameterGroup& one : groups) {
      ParameterGroup part = one;
      part.parameters.clear();
      for (const auto& named : one.parameters) {
        all_.push_back({named, owners[next++]});
        if (all_.back().owner == group.rank()) part.parameters.push_back(named);
      }
      if (!part.parameters.empty()) own.push_back(std::move(part));
    }
    optimizer_ = make(std::move(own));
  }

  void take_gradients() override { optimizer_->take_gradients(); }

  // All parameters are sent: which of them have a gradient may differ between ranks, as with
  // find_unused, where the owner has a zero gradient and the others have none.
  void step(double lr, const at::Tensor& found_inf) override {
    optimizer_->step(lr, found_inf);
    const at::NoGradGuard no_grad;
    std::vector<std::vector<at::Tensor>> parts(size_t(group_.world()));
    for (const auto& one : all_) parts[size_t(one.owner)].push_back(one.parameter.tensor.detach());
    for (int from = 0; from < group_.world(); ++from) send_part(parts[size_t(from)], from);
  }

  std::vector<at::Tensor> gradients() const override {
    std::vector<at::Tensor> found;
    for (const auto& one : all_)
      if (one.parameter.tensor.grad().defined()) found.push_back(one.parameter.tensor.grad());
    return found;
  }

  at::Tensor gradient_of(const at::Tensor& parameter) const override {
    return optimizer_->gradient_of(parameter);
  }

  void zero_grad() override {
    optimizer_->zero_grad();
    for (const auto& one : all_) {
      at::Tensor& gradient = one.parameter.tensor.mutable_grad();
      if (gradient.defined() && one.owner != group_.rank()) gradient.reset();
    }
  }

  void set_momentum(double momentum) override { optimizer_->set_momentum(momentum); }

  // On the CPU, as the whole state may not fit on any device.
  std::vector<NamedTensor> state() override {
    const auto own = optimizer_->state();
    const auto descriptions = group_.texts(describe(own));
    std::vector<NamedTensor> whole;
    for (int from = 0; from < group_.world(); ++from) {
      const bool ours = from == group_.rank();
      const auto part = ours ? own : placeholders(descriptions[size_t(from)]);
      for (const auto& [name, tensor] : part) {
        const at::Tensor sent =
            ours ? tensor.contiguous() : at::empty(tensor.sizes(), on_device(tensor));
        group_.broadcast(sent.view({-1}), from);
        whole.push_back({name, sent.to(at::kCPU)});
      }
    }
    return in_order(std::move(whole));
  }

  void load_state(const std::vector<NamedTensor>& state) override {
    std::vector<NamedTensor> own;
    for (const auto& named : optimizer_->state()) {
      const auto found = std::ranges::find(state, named.name, &NamedTensor::name);
      if (found != state.end()) own.push_back(*found);
    }
    optimizer_->load_state(own);
  }

 private:
  struct Parameter {
    NamedTensor parameter;
    int owner;
  };

  at::TensorOptions on_device(const at::Tensor& like) const {
    return like.options().device(all_.front().parameter.tensor.device());
  }

  // One rank's parameters, flattened and sent in pieces of a fixed size in bytes.
  void send_part(const std::vector<at::Tensor>& tensors, int from) {
    if (tensors.empty()) return;
    group_.guard("sending updated parameters", [&] {
      const WaitingForOthers waiting;
      c10d::broadcast_coalesced(
          c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&group_.handle()), tensors,
          kPieceBytes, from);
    });
  }

  // In parameter order, as in a single process.
  std::vector<NamedTensor> in_order(std::vector<NamedTensor> tensors) const {
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < all_.size(); ++i) places[all_[i].parameter.name] = i;
    const auto place = [&](const NamedTensor& named) {
      const auto found = places.find(named.name.substr(0, named.name.rfind('.')));
      return found == places.end() ? all_.size() : found->second;
    };
    std::stable_sort(tensors.begin(), tensors.end(),
                     [&](const auto& a, const auto& b) { return place(a) < place(b); });
    return tensors;
  }

  Group& group_;
  std::vector<Parameter> all_;
  std::unique_ptr<Optimizer> optimizer_;  // of this rank's parameters
};

}  // namespace

std::vector<int> owners_of(const std::vector<ParameterGroup>& groups, int world) {
  std::vector<int64_t> sizes;
  for (const auto& group : groups)
    for (const auto& named : group.parameters) sizes.push_back(named.tensor.numel());
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int64_t> held(size_t(world), 0);
  std::vector<int> owners(sizes.size());
  for (size_t index : order) {
    const auto least = std::min_element(held.begin(), held.end());
    owners[index] = int(least - held.begin());
    *least += sizes[index];
  }
  return owners;
}

std::unique_ptr<Optimizer> make_sharded_optimizer(Group& group, std::vector<ParameterGroup> groups,
                                                  const OwnOptimizer& make) {
  return std::make_unique<ShardedOptimizer>(group, std::move(groups), make);
}

}  // namespace saturate
