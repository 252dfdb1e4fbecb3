// A StepGraph for the CPU: keeps `body`, and runs it. Host code is repeated here, so captured code
// must not use changing host numbers.
#pragma once

#include <functional>
#include <memory>

#include "step/step_graph.h"

namespace saturate {

class ClosureGraph : public StepGraph {
 public:
  void warm_up(const std::function<void()>& body) override { body(); }
  void capture(const std::function<void()>& body) override { body_ = body; }
  void replay() override { body_(); }

 private:
  std::function<void()> body_;
};

inline std::unique_ptr<StepGraph> make_closure_graph() {
  return std::make_unique<ClosureGraph>();
}

}  // namespace saturate
