// Tensors of files written by torch.save().
#pragma once

#include <string>
#include <vector>

#include "saturate/data/env.h"
#include "saturate/model.h"

namespace saturate {

// An archive, as written by torch 1.6 and later. Tensors may share memory. Fails with kRun, or as
// Env does. `prefix`: as in read_tensor_pickle().
std::vector<NamedTensor> read_pt_archive(Env& env, const std::string& path,
                                         const std::string& prefix);

// The legacy format: see tensor_pickle.h.
std::vector<NamedTensor> read_legacy_pt(Env& env, const std::string& path,
                                        const std::string& prefix);

}  // namespace saturate
