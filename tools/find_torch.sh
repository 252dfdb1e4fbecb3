#!/usr/bin/env bash
# Prints the folder of a LibTorch from 2.11 to 2.15 (the torch package, with include/ and lib/), or exits with 1.
# Tries in order: $SATURATE_TORCH_DIR, a full set fetched by tools/setup.sh, python3's torch, a CPU set fetched by
# tools/setup.sh. With --full, accepts only one whose GPU libraries load. $SATURATE_TORCH_VERSION, such as 2.11.0 or
# 2.11, accepts only that version.
#   tools/find_torch.sh --version     prints the version that tools/setup.sh fetches
#   tools/find_torch.sh --of FOLDER   prints the version of the LibTorch in a folder
set -u
default=2.15.0
cache=${SATURATE_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/saturate}
wanted=${SATURATE_TORCH_VERSION:-}
library=libtorch_cpu.so

supported() { [[ $1 =~ ^2\.1[1-5](\.|$) ]]; }

version_of() { # FOLDER
  sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\)$/\2/p' \
    "$1/include/torch/headeronly/version.h" 2>/dev/null | paste -sd.
}

[ -z "$wanted" ] || supported "$wanted" || {
  echo "SATURATE_TORCH_VERSION=$wanted is not supported. Set it to a version from 2.11.0 to 2.15.0" >&2
  exit 1
}
case ${1:-} in
  --version) echo "${wanted:-$default}"; exit ;;
  --of) version_of "$2"; exit ;;
  --full) library=libtorch_cuda.so ;;
esac

# A wheel without the NVIDIA wheels that it needs has headers, but its libraries do not load.
loads() {
  local needs
  needs=$(ldd "$1/lib/$library" 2>/dev/null) && ! grep -v 'libcuda\.so\.1' <<<"$needs" | grep -q 'not found'
}

suits() {
  local version
  version=$(version_of "$1")
  supported "$version" && [[ $version. == "${wanted:+$wanted.}"* ]] && loads "$1"
}

from_python() { # without importing it, which would take seconds
  python3 - <<'PY' 2>/dev/null
import importlib.util, os
print(os.path.dirname(importlib.util.find_spec("torch").origin))
PY
}

fetched() {
  local dir
  for dir in "$cache/torch-${wanted:-$default}"*"-$1"; do
    [ ! -f "$dir/.complete" ] || echo "$dir/torch"
  done | sort -V | tail -n 1
}

if [ -n "${SATURATE_TORCH_DIR:-}" ]; then
  if suits "$SATURATE_TORCH_DIR"; then echo "$SATURATE_TORCH_DIR"; exit 0; fi
  version=$(version_of "$SATURATE_TORCH_DIR")
  if [ -z "$version" ]; then reason="has no include/torch/headeronly/version.h"
  elif loads "$SATURATE_TORCH_DIR"; then reason="is LibTorch $version, not ${wanted:-2.11 to 2.15}"
  else reason="has no $library that loads"; fi
  echo "SATURATE_TORCH_DIR=$SATURATE_TORCH_DIR $reason" >&2
  exit 1
fi
for place in 'fetched full' from_python 'fetched cpu'; do
  torch=$($place)
  if [ -n "$torch" ] && suits "$torch"; then echo "$torch"; exit 0; fi
done
exit 1
