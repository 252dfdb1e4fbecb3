#!/usr/bin/env bash
# Prints the folder of a LibTorch 2.11 (the torch package, with include/ and lib/), or exits with 1.
# Tries in order: $SATURATE_TORCH_DIR, a full set fetched by tools/setup.sh, python3's torch 2.11, a CPU
# set fetched by tools/setup.sh. With --full, accepts only one whose GPU libraries load.
set -u
version=2.11.0
cache=${SATURATE_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/saturate}
library=libtorch_cpu.so
[ "${1:-}" != --full ] || library=libtorch_cuda.so

# A wheel without the NVIDIA wheels that it needs has headers, but its libraries do not load.
suits() {
  local needs
  [ -d "$1/include" ] && needs=$(ldd "$1/lib/$library" 2>/dev/null) &&
    ! grep -v 'libcuda\.so\.1' <<<"$needs" | grep -q 'not found'
}

from_python() { # without importing it, which would take seconds
  python3 - <<'PY' 2>/dev/null
import importlib.metadata, importlib.util, os
if importlib.metadata.version("torch").startswith("2.11."):
    print(os.path.dirname(importlib.util.find_spec("torch").origin))
PY
}

fetched() {
  local dir=$cache/torch-$version-$1
  [ ! -f "$dir/.complete" ] || echo "$dir/torch"
}

if [ -n "${SATURATE_TORCH_DIR:-}" ]; then
  suits "$SATURATE_TORCH_DIR" || {
    echo "SATURATE_TORCH_DIR=$SATURATE_TORCH_DIR has no include/, or no $library that loads" >&2; exit 1; }
  echo "$SATURATE_TORCH_DIR"
  exit 0
fi
for place in 'fetched full' from_python 'fetched cpu'; do
  torch=$($place)
  if [ -n "$torch" ] && suits "$torch"; then echo "$torch"; exit 0; fi
done
exit 1
