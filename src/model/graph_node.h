// Nodes of autograd's graph, which LibTorch holds by another pointer since it has node.h.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

namespace saturate {

template <class Node, class... Arguments>
auto make_graph_node(Arguments&&... arguments) {
#if __has_include(<torch/csrc/autograd/node.h>)
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
#else
  return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...),
                               torch::autograd::deleteNode);
#endif
}

}  // namespace saturate
