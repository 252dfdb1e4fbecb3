// The parent's side of measuring: one process a rung, talked to over two pipes.
#pragma once

#include <signal.h>

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "advise/ladder.h"
#include "saturate/data/world.h"

namespace saturate {

class RungProcess;

// Ignores SIGPIPE while it lives: a process that is gone is found out by its end of the other pipe.
class ProcessMeasurer : public RungMeasurer {
 public:
  ProcessMeasurer(Env& env, ProcessMeasurerOptions options);
  ~ProcessMeasurer() override;

  bool start(size_t rung, const Recipe& recipe) override;
  std::optional<RungTiming> measure(size_t rung, double seconds) override;

  // A rung's folder, not yet made.
  std::string folder_of(size_t rung) const;
  // Starts a rung's process as one of `world`, all of which train as one into `folder`.
  // `listening`: a socket at the world's port, for rank 0; it stays the caller's. False where
  // should_stop gave up.
  bool start_as(size_t rung, const Recipe& recipe, const World& world, int listening,
                const std::string& folder);
  // Ends a rung's process, if there is one: its memory is given back.
  void drop(size_t rung);

 private:
  std::optional<nlohmann::json> answer_of(size_t rung);

  Env& env_;
  const ProcessMeasurerOptions options_;
  struct sigaction sigpipe_before_ {};
  std::map<size_t, std::unique_ptr<RungProcess>> processes_;
};

}  // namespace saturate
