// Checks of the data path's options.
#pragma once

#include "saturate/data/error.h"

namespace saturate {

// Fails with a usage error unless `ok`. `where`: the option's name in a recipe or on the command
// line.
inline void require(bool ok, const char* what, const char* where, const char* remedy) {
  if (!ok) fail(ErrorKind::kUsage, what, where, remedy);
}

}  // namespace saturate
