// Tensors of the files that torch.save() writes.
#pragma once

#include <string>
#include <vector>

#include "saturate/env.h"
#include "saturate/model.h"

namespace saturate {

// An archive, as torch 1.6 and later write it. Tensors may share memory. Fails with kRun,
// or as Env does. `prefix`: as read_tensor_pickle() takes it.
std::vector<NamedTensor> read_pt_archive(Env& env, const std::string& path,
                                         const std::string& prefix);

// The older form: see tensor_pickle.h.
std::vector<NamedTensor> read_legacy_pt(Env& env, const std::string& path,
                                        const std::string& prefix);

}  // namespace saturate
