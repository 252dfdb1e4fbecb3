// What an option of the data path must be.
#pragma once

#include "saturate/error.h"

namespace saturate {

// Fails as a usage error unless `ok`. `where`: the option, as a recipe or the command line names
// it.
inline void require(bool ok, const char* what, const char* where, const char* remedy) {
  if (!ok) fail(ErrorKind::kUsage, what, where, remedy);
}

}  // namespace saturate
