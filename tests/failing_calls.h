// System calls that fail as the test says, for what no folder of this machine does.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace saturate::testing {

// Whether a process may filter its calls here: then this filter is refused for its address only.
inline bool can_fail_calls() {
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr) != 0 && errno == EFAULT;
}

// From now on these calls (SYS_...) of this process fail with `error`. It cannot be undone: for the
// child process of an EXPECT_EXIT.
inline void fail_calls(const std::vector<long>& calls, int error) {
  std::vector<sock_filter> steps;
  steps.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (const long call : calls) {
    steps.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(call), 0, 1));
    steps.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | uint32_t(error)));
  }
  steps.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{};
  filter.len = static_cast<unsigned short>(steps.size());
  filter.filter = steps.data();
  if (prctl(PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    std::_Exit(99);
}

}  // namespace saturate::testing
