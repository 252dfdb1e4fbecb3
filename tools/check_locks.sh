#!/usr/bin/env bash
# Has clang check that members that are GUARDED_BY a mutex (src/base/mutex.h) are used with that mutex held, in each
# source that locks one or includes a header that does. The Python module needs nanobind, which `make python-test`
# installs. A member that is a plain std::mutex is refused, because clang checks none.
#
#     tools/check_locks.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."
if grep -nE 'std::[a-z_]*mutex [a-z_]+_\>' -r src python --include='*.cpp' --include='*.h' | grep -v '^src/base/mutex.h'; then
  echo "use Mutex of src/base/mutex.h instead of a plain std::mutex" >&2
  exit 1
fi
torch=$(tools/find_torch.sh)/include
python=$(ls -d build/python-env-*/bin/python 2>/dev/null | head -1 || true)
modules=()
if [ -n "$python" ] && nanobind=$("$python" -m nanobind --include_dir 2>/dev/null); then
  modules=(python/*.cpp)
  nanobind+=" -isystem $("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
else
  echo "python/*.cpp: skipped, without build/python-env-* (make python-test)"
fi
headers=$(grep -rl MutexLock src --include='*.h' | cut -d/ -f2- | paste -sd'|')
grep -rlE "MutexLock|\"($headers)\"" src "${modules[@]}" --include='*.cpp' | sort |
  xargs -n 1 -P "${1:-1}" clang++-16 -std=c++20 -fsyntax-only -Wthread-safety -Werror=thread-safety \
    -DSATURATE_HAS_CURL=1 -DSATURATE_VERSION='"0"' -Iinclude -Isrc -isystem "$torch" \
    -isystem "$torch/torch/csrc/api/include" ${nanobind:+-isystem $nanobind}
