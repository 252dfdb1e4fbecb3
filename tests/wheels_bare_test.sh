#!/usr/bin/env bash
# Installs the wheels as a user does, torch included, on systems with Python, pip and nothing else, made by debootstrap;
# trains the demo, and uses the model and the loader in Python. Prints seconds and megabytes as JSON, for results/.
#   tests/wheels_bare_test.sh [SUITE...] >FILE.json    bookworm (Debian 12), jammy and noble (Ubuntu 22.04 and 24.04)
# Needs `make wheels`, root, debootstrap, a network and 12 GB for each below build/bare-roots. Exits with 77 if it cannot
# run.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "bare wheels test: $*" >&2; }
fail() { say "error: $*"; exit 1; }
skip() { say "skipped: $*"; exit 77; }
roots=${SATURATE_BARE_ROOTS:-$PWD/build/bare-roots}

here() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/opt/venv/bin:/usr/bin:/bin "$@"; }
pip() { here python3 -m pip --disable-pip-version-check -q "$@"; }
megabytes() { du -smc "$@" | tail -n 1 | cut -f 1; }
timed() { # VARIABLE COMMAND...: sets it to "SECONDS CPU_SECONDS"
  local TIMEFORMAT='%0R %0U %0S' taken
  { taken=$({ time "${@:2}" >&3 2>&3; } 2>&1); } 3>&2
  set -- "$1" $taken
  printf -v "$1" '%d %d' "$2" $(($3 + $4))
}

make_root() {
  [ -x "$root/usr/bin/python3" ] && return
  local options=(--variant=minbase --include=python3,python3-venv,ca-certificates) mirror=http://deb.debian.org/debian
  if [ "$suite" != bookworm ]; then
    mirror=http://archive.ubuntu.com/ubuntu
    options+=(--components=main,universe)
    [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || options+=(--no-check-gpg)
  fi
  rm -rf "$root.tmp"
  mkdir -p "$root.tmp"
  debootstrap "${options[@]}" "$suite" "$root.tmp" $mirror >"$root.tmp/log" 2>&1 ||
    { tail -n 3 "$root.tmp/log" >&2; skip "debootstrap failed"; }
  mv "$root.tmp" "$root"
}

within() { # in separate namespaces
  mount -t proc proc "$root/proc"
  mount --bind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mkdir -p "$root/opt/shared" "$roots/downloads" "$root/opt/wheels"
  mount --bind "$roots/downloads" "$root/opt/shared"  # a second root does not download the same again
  cp --remove-destination -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"  # may have more than Debian's
  rm -rf "$root"/opt/{venv,run,downloads,model.pt,wheels/*}
  cp dist/*.whl "$root/opt/wheels"
  for tool in cc cmake nvcc; do
    ! here sh -c "command -v $tool" >/dev/null || fail "$root has $tool, and is not bare"
  done
  local download downloaded empty install train found
  here python3 -m venv /opt/venv
  local packages=("saturate-train==$version+torch$minor" "saturate==$version" numpy)
  timed download pip download -d /opt/downloads --find-links /opt/wheels --find-links /opt/shared "${packages[@]}"
  downloaded=$(megabytes "$root/opt/downloads")
  cp -n "$root"/opt/downloads/*.whl "$root/opt/shared"
  empty=$(megabytes "$root/opt/venv")
  timed install pip install --no-index --find-links /opt/downloads "${packages[@]}"
  timed train here saturate train demo --out /opt/run >&2
  here saturate export /opt/run --format torchscript --out /opt/model.pt >&2
  found=$(here python3 - <<'PY'
import platform, saturate, torch
model = torch.jit.load("/opt/model.pt").eval()
loader = saturate.Loader("synth:size=32,count=500,difficulty=0.3,split=test", batch=100, size=32, train=False,
                         mean=[0.5] * 3, std=[0.25] * 3, to="torch")
right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
assert right >= 490, right
print(f"Python {platform.python_version()}, torch {torch.__version__}")
PY
  )
  local title="$suite, $found"
  cat <<ROWS
$title: download|s|${download% *}
$title: packages|MB|$downloaded
$title: pip install of these|s|${install% *}
$title: the same, time of the CPU|s|${install#* }
$title: installed|MB|$(($(megabytes "$root/opt/venv") - empty))
$title: saturate's part of it|MB|$(megabytes "$root"/opt/venv/lib/python3*/site-packages/saturate*)
$title: saturate train demo|s|${train% *}
$title: the same, time of the CPU|s|${train#* }
ROWS
}

as_json() {
  python3 -c '
import json, os, re, subprocess, sys
cpu = re.search("model name\\s*: (.*)", open("/proc/cpuinfo").read())
rows = [line.rstrip("\n").split("|") for line in sys.stdin]
print(json.dumps({"bench": "install", "note": sys.argv[2],
  "host": {"cpu": cpu[1] if cpu else "unknown", "cores": os.cpu_count(), "system": os.uname().release},
  "commit": sys.argv[1],
  "rows": [{"name": name, "unit": unit, "median": int(value), "min": int(value), "max": int(value), "n": 1}
           for name, unit, value in rows]}, indent=1))' "$(git describe --always --dirty --abbrev=12 --exclude='*')" \
    "pip install of both wheels with their torch on bare systems, and the demo there."
}

version=$(sed -n 's/^project(saturate VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)
wheel=$(find dist -name "saturate_train-$version+torch*.whl" | sort -V | tail -n 1)
minor=${wheel#*+torch}
minor=${SATURATE_WHEEL_TORCH:-${minor%%-*}}
if [ "${1:-}" = --within ]; then
  suite=$2 root=$roots/$2
  within
  exit
fi
[ "$(id -u)" = 0 ] || skip "needs root"
[ -n "$wheel" ] || skip "dist/ has no wheel of the command: run make wheels"
command -v debootstrap >/dev/null || skip "no debootstrap: tools/setup.sh --dev installs it"
[ $# -gt 0 ] || set -- bookworm jammy noble
rows=$(for suite in "$@"; do
  root=$roots/$suite
  make_root
  unshare --mount --pid --fork "$0" --within "$suite"
done)
as_json <<<"$rows"
