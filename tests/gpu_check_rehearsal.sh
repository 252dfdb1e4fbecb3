#!/usr/bin/env bash
# tools/gpu-check as on a bare machine with a GPU, from --stage to its JSON, on a machine without a GPU: in a root with
# Python and little else, without a network, on the fake CUDA runtime. The measurements are meaningless.
#   tests/gpu_check_rehearsal.sh [FOLDER with cifar10-train.tar and cifar10-test.tar]
# Takes about fifteen minutes once all is built. SATURATE_BARE_ROOT names the root to use, such as Ubuntu 24.04's;
# without it debootstrap makes one of Debian 13, once. Exits with 77 and the reason if it cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SATURATE_REHEARSAL_MINUTES:-32}  # of each part; four times the default, so that jobs get four times theirs
build=$PWD/build-gpu-machine

say() { echo "gpu-check-rehearsal: $*"; }
fail() { say "error: $*" >&2; exit 1; }
skip() { say "skipped: $*"; exit 77; }

# ---- in separate namespaces: the machine -----------------------------------------------------------------------------

here() { # COMMAND...: in the root, with a driver in its usual place, and nothing else of this machine
  chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/driver \
    SATURATE_FAKE_CUDA_MEMORY=$((16 << 30)) "$@"
}

expect() { # CODES COMMAND...: as `here`
  local codes=$1 code=0
  shift
  here "$@" || code=$?
  [[ " $codes " == *" $code "* ]] || fail "exit code $code, not one of $codes: $*"
}

bind() { # FROM TO: read-only
  mkdir -p "$2"
  mount --bind "$1" "$2"
  mount -o remount,bind,ro "$2"
}

set_up_machine() { # python3 gets a full torch: the toolkit's libraries, and empty ones for missing ones
  local site torch
  site=$root$(chroot "$root" python3 -c 'import site; print(site.getsitepackages()[0])')
  torch=$(SATURATE_TORCH_VERSION=$(cat "$build/torch_version") tools/find_torch.sh)
  mkdir -p "$site"
  for place in "$site" "$root/usr/local/bin" "$root/opt" "$root/tmp"; do mount -t tmpfs tmpfs "$place"; done
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  bind "$torch" "$site/torch"
  for info in "$torch"-*.dist-info; do bind "$info" "$site/${info##*/}"; done
  bind "$(readlink -f "$cuda/lib64")" "$site/nvidia/cu13/lib"
  mkdir -p "$site/nvidia/nvshmem/lib" "$root/opt/driver" "$root/opt/fake"
  cp "$build"/tests/fake_cuda/stubs/*.so.* "$site/nvidia/nvshmem/lib"
  mv "$site/nvidia/nvshmem/lib/libcuda.so.1" "$root/opt/driver"
  cp "$build"/tests/fake_cuda/libfake_cuda{,_switches}.so "$root/opt/fake"
  patchelf --set-rpath "${site#"$root"}/torch/lib" "$root/opt/fake/libfake_cuda_switches.so"
  printf '#!/bin/sh\nLD_PRELOAD=/opt/fake/libfake_cuda.so:/opt/fake/libfake_cuda_switches.so exec "$@"\n' \
    >"$root/opt/fake/run"
  chmod +x "$root/opt/fake/run"
  tar xJf build-gpu-stage.tar.xz -C "$root/opt"
  mv "$root/opt/build-gpu-stage" "$root/opt/stage"
}

rehearse() {
  local check=(/opt/stage/tools/gpu-check --out /opt/out --minutes "$minutes")
  say "no GPU"
  expect 3 "${check[@]}"
  say "no nvidia-smi, and a GPU that the program sees"
  expect 0 /opt/stage/tools/gpu-check --out /opt/other --minutes 0.01 --only bench --under /opt/fake/run
  [ -e "$root/opt/other/gpu-check-gpu-of-unknown-name.json" ] || fail "nothing was written"
  printf '#!/bin/sh\necho "Fake GPU of a rehearsal, 0.0, 16384 MiB"\n' >"$root/usr/local/bin/nvidia-smi"
  chmod +x "$root/usr/local/bin/nvidia-smi"
  say "a GPU that the program does not see"
  expect 4 "${check[@]}"
  for program in saturate saturate_tests saturate_gpu_bench; do
    here ldd "/opt/stage/$program" | awk -v p=$program '/not found/ { print p ": " $0; n = 1 } END { exit n }' >&2 ||
      fail "the stage lacks libraries"
  done
  # Comparisons with a CPU fail on the fake, whose kernels do nothing: 1.
  check+=(--under /opt/fake/run)
  for parts in tests,bench steps,graphs,peers sweeps,cifar python; do
    say "--only $parts"
    expect "0 1" "${check[@]}" --only "$parts"
    cp "$root"/opt/out/* "$out"
  done
}

within() {
  ip link set lo up  # the one network that every machine has
  for tool in git cc nvcc; do
    ! chroot "$root" sh -c "command -v $tool" >/dev/null || fail "$root has $tool, and is not bare"
  done
  set_up_machine
  rehearse
}

# ---- before and after ------------------------------------------------------------------------------------------------

check_results() { # every job accounted for, and rows of each part
  python3 - "$@" <<'PY'
import json, pathlib, sys
sys.path.insert(0, "tools")
from gpu_check import jobs
page, = pathlib.Path(sys.argv[1]).glob("*.md")
found = json.loads(page.with_suffix(".json").read_text())
known = [*found["done"], *found["failures"], *found["skipped"]]
rows = [row["name"] for row in found["rows"]]
lost = [job.name for job in jobs.Jobs(None, pathlib.Path("."), "", None, 0, False).all()
        if not (job.part == "peers" and "peers" in known) and not any(name == job.name or name.startswith(job.name + ":") for name in known)]
sweeps = [title for title, *_ in jobs.SWEEPS] + jobs.LADDERS
parts = {"bench": ["copy to the GPU"], "steps": [f"224 {mode}" for mode in jobs.PRECISIONS], "graphs": ["one graph"],
         "sweeps": [f"{title}: " for title in sweeps], "cifar": ["CIFAR-10"] if len(sys.argv) > 2 else [""]}
bare = [part for part, texts in parts.items() if not any(text in row for text in texts for row in rows)]
print(f"gpu-check-rehearsal: {len(found['tests'])} tests, {len(found['rows'])} rows, {len(found['failures'])} "
      f"failures, {len(found['skipped'])} skipped, in {page.name} and .json")
if lost or bare or len(found["tests"]) < 10:
    sys.exit(f"gpu-check-rehearsal: error: not accounted for: {lost}; parts without a row: {bare}")
PY
}

make_root() { # complete, or not under its name
  root=${SATURATE_BARE_ROOT:-$PWD/build/bare-root}
  [ -x "$root/usr/bin/python3" ] && return
  command -v debootstrap >/dev/null || skip "no debootstrap: tools/setup.sh --dev installs it"
  say "debootstrap of Debian 13 into $root"
  rm -rf "$root" "$root.tmp"
  mkdir -p "$root.tmp"
  debootstrap --variant=minbase --include=python3 trixie "$root.tmp" http://deb.debian.org/debian \
    >"$root.tmp/log" 2>&1 || { tail -n 3 "$root.tmp/log"; skip "debootstrap failed"; }
  mv "$root.tmp" "$root"
}

cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")
if [ "${1:-}" = --within ]; then
  root=$2 out=$3
  within
  exit
fi
[ "$(id -u)" = 0 ] || skip "needs root"
[ -x "$cuda/bin/nvcc" ] || skip "no nvcc"
unshare --mount --net --pid --fork true 2>/dev/null || skip "no namespaces here"
cifar=${1:-../shared/data}
[ -e "$cifar/cifar10-train.tar" ] || cifar=
make_root
tools/gpu-check --stage ${cifar:+--cifar "$cifar"}
cmake --build "$build" --target fake_cuda fake_cuda_switches stub_cufile stub_cusparseLt stub_nvshmem_host stub_cuda \
  -- --quiet
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
unshare --mount --net --pid --fork "$0" --within "$root" "$out"
check_results "$out" $cifar
say "passed"
