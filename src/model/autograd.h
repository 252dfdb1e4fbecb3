// Parts of functions that add their own node to autograd's graph.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <memory>
#include <type_traits>
#include <utility>

namespace saturate {

// A node of autograd's graph, which later releases of LibTorch hold by another pointer than 2.11
// does.
template <class Node, class... Arguments>
auto make_graph_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>)
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  else  // deleteNode() is torch's, and frees long chains of nodes without recursion
    return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...),
                                 [](auto* node) { deleteNode(node); });
}

// A thread's autocast state for the CPU and one other device type: the calling thread's.
class AutocastState {
 public:
  explicit AutocastState(at::DeviceType other)
      : settings_{Setting(at::kCPU), Setting(other)},
        cache_(at::autocast::is_autocast_cache_enabled()) {}
  void apply() const {
    for (const Setting& setting : settings_) {
      at::autocast::set_autocast_dtype(setting.device, setting.type);
      at::autocast::set_autocast_enabled(setting.device, setting.enabled);
    }
    at::autocast::set_autocast_cache_enabled(cache_);
  }

 private:
  struct Setting {
    explicit Setting(at::DeviceType of)
        : device(of),
          enabled(at::autocast::is_autocast_enabled(of)),
          type(at::autocast::get_autocast_dtype(of)) {}
    at::DeviceType device;
    bool enabled;
    at::ScalarType type;
  };
  std::array<Setting, 2> settings_;
  bool cache_;
};

// Restores the calling thread's autocast state at the end of a scope.
class AutocastStateScope : AutocastState {
 public:
  using AutocastState::AutocastState;
  ~AutocastStateScope() { apply(); }
  AutocastStateScope(const AutocastStateScope&) = delete;
  AutocastStateScope& operator=(const AutocastStateScope&) = delete;
};

}  // namespace saturate
