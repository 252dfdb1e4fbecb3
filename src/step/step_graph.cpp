#include "step/step_graph.h"

namespace saturate {
namespace {

class ClosureGraph : public StepGraph {
 public:
  void warm_up(const std::function<void()>& body) override { body(); }
  void capture(const std::function<void()>& body) override { body_ = body; }
  void replay() override { body_(); }

 private:
  std::function<void()> body_;
};

}  // namespace

std::unique_ptr<StepGraph> make_closure_graph() {
  return std::make_unique<ClosureGraph>();
}

}  // namespace saturate
