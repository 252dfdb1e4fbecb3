// A separate source, since each commit compiles it again.
#include "trace/host.h"

namespace saturate {

std::string build_commit() {
  return SATURATE_COMMIT;
}

}  // namespace saturate
