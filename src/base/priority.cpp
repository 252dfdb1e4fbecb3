#include "base/priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace saturate {

void run_in_spare_time() {
  // Of a thread on Linux, in spite of the name.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
}

}  // namespace saturate
