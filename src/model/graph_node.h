// Nodes of autograd's graph, which later releases of LibTorch hold by another pointer than 2.11
// does.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace saturate {

template <class Node, class... Arguments>
auto make_graph_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>)
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  else  // deleteNode() is torch's, and frees long chains of nodes without recursion
    return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...),
                                 [](auto* node) { deleteNode(node); });
}

}  // namespace saturate
