#!/usr/bin/env bash
# Has clang check that members that are GUARDED_BY a mutex (src/base/mutex.h) are used with that mutex held, in each
# source that locks one or includes a header that does.
#
#     tools/check_locks.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."
torch=$(tools/find_torch.sh)/include
headers=$(grep -rl MutexLock src --include='*.h' | cut -d/ -f2- | paste -sd'|')
grep -rlE "MutexLock|\"($headers)\"" src --include='*.cpp' | sort |
  xargs -n 1 -P "${1:-1}" clang++-16 -std=c++20 -fsyntax-only -Wthread-safety -Werror=thread-safety \
    -DSATURATE_HAS_CURL=1 -DSATURATE_VERSION='"0"' -Iinclude -Isrc -isystem "$torch" \
    -isystem "$torch/torch/csrc/api/include"
