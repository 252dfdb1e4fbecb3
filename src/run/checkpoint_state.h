// A checkpoint's state beside its tensors, as the JSON text in the file's metadata.
#pragma once

#include <string>

#include "run/checkpoint.h"

namespace saturate {

// The tensors of a checkpoint, and what their names begin with in its file.
struct TensorGroup {
  const char* prefix;
  std::vector<NamedTensor> Checkpoint::*member;
};
inline constexpr TensorGroup kTensorGroups[] = {
    {"model.", &Checkpoint::model},     {"optimizer.", &Checkpoint::optimizer},
    {"scaler.", &Checkpoint::scaler},   {"schedule.", &Checkpoint::schedule},
    {"average.", &Checkpoint::average}, {"lookahead.", &Checkpoint::lookahead},
    {"random.", &Checkpoint::random}};

std::string checkpoint_state_json(const Checkpoint& checkpoint);

// Fills everything but the tensors. Fails with kRun naming `path` on damage or a newer version.
void parse_checkpoint_state(const std::string& json, const std::string& path,
                            Checkpoint& checkpoint);

[[noreturn]] void fail_damaged(const std::string& problem, const std::string& path);

}  // namespace saturate
