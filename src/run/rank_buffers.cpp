#include "run/rank_buffers.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace saturate {
namespace {

// By torch's names: a module with all three of them is a BatchNorm.
bool is_statistic(const std::string& name, const std::vector<NamedTensor>& buffers) {
  static constexpr std::array<std::string_view, 3> kNames = {"running_mean", "running_var",
                                                             "num_batches_tracked"};
  const size_t own = name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1;
  const std::string path = name.substr(0, own);
  return std::ranges::find(kNames, name.substr(own)) != kNames.end() &&
         std::ranges::all_of(kNames, [&](std::string_view one) {
           return std::ranges::find(buffers, path + std::string(one), &NamedTensor::name) !=
                  buffers.end();
         });
}

}  // namespace

RankBuffers::RankBuffers(Group& group, Model& model) : group_(group) {
  const auto buffers = model.buffers();
  for (const auto& [name, tensor] : buffers) {
    all_.push_back(tensor);
    if (!is_statistic(name, buffers)) read_.push_back(tensor);
  }
}

void RankBuffers::before_step() {
  if (written_) group_.broadcast(read_);
  versions_.clear();
  for (const auto& tensor : read_) versions_.push_back(tensor._version());
}

// The first step's answers are all-reduced at once, so that the second step has the buffers; later
// ones are part of the next step's vote.
void RankBuffers::after_step() {
  for (size_t i = 0; i < read_.size(); ++i)
    written_ = written_ || read_[i]._version() != versions_[i];
  if (!read_.empty() && !asked_) written_ = group_.any(written_);
  asked_ = true;
}

void RankBuffers::take_all() {
  if (!all_.empty()) group_.broadcast(all_);
}

uint64_t seed_of_rank(uint64_t seed, int rank, int64_t step) {
  return seed + uint64_t(rank) * 0x9E3779B97F4A7C15u + uint64_t(step);
}

std::vector<NamedTensor> random_states(Group* group, const at::Device& device) {
  std::vector<NamedTensor> states;
  const auto add = [&](const std::string& name, const at::Device& of) {
    const at::Tensor own = at::globalContext().defaultGenerator(of).get_state();
    const at::Tensor all = group ? group->gather(own) : own.unsqueeze(0);
    for (int64_t rank = 0; rank < all.size(0); ++rank)
      states.push_back({rank == 0 ? name : fmt::format("{}.{}", name, rank), all[rank].clone()});
  };
  add("cpu", at::kCPU);
  if (device.is_cuda()) add("cuda", device);
  return states;
}

void load_random_states(const std::vector<NamedTensor>& states, Group* group,
                        const at::Device& device, uint64_t seed, int64_t step) {
  const int rank = group ? group->rank() : 0;
  if (rank > 0) at::manual_seed(seed_of_rank(seed, rank, step));
  const std::string suffix = rank == 0 ? "" : fmt::format(".{}", rank);
  for (const at::Device& from : {at::Device(at::kCPU), device})
    for (const auto& [name, state] : states)
      if (name == (from.is_cuda() ? "cuda" : "cpu") + suffix) {
        at::Generator generator = at::globalContext().defaultGenerator(from);
        generator.set_state(state);
      }
}

}  // namespace saturate
