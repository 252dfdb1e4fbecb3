#!/usr/bin/env bash
# Builds saturate, or installs its wheels, in bare systems that debootstrap makes. Prints a line for each.
#   tests/other_systems.sh source|wheel SYSTEM...     SYSTEM: debian-12, debian-13, ubuntu-22.04 or ubuntu-24.04
# source: set-up, build, installation, and training as another user, as in the Dockerfile, but with -O1.
# wheel: pip installs the wheels in dist/ and the torch that it chooses; SATURATE_PIP_ARGS are further arguments.
# Needs root and a network. Bare systems and ccache's objects stay in ${SATURATE_ROOTS:-/tmp/saturate-roots}. A LibTorch
# that tools/setup.sh has fetched on this machine is not fetched again. Exits with 77 and the reason if it cannot run.
set -euo pipefail

fail() { echo "other systems: error: $*" >&2; exit 1; }
skip() { echo "other systems: skipped: $*"; exit 77; }

# ---- in the system ---------------------------------------------------------------------------------------------------

quietly() { "$@" >/log 2>&1 || { grep 'error:' /log || tail -n 20 /log; fail "$system: $*"; } >&2; }
torch_version() { saturate env | sed -n 's/^libtorch */LibTorch /p'; }
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/nonexistent "$@"; }

in_source() {
  local start=$SECONDS ready built warnings
  export SATURATE_DEPS=/opt/deps CCACHE_DIR=/opt/ccache
  quietly /src/tools/setup.sh --cpu
  ready=$SECONDS
  quietly cmake -S /src -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
    -DCMAKE_UNITY_BUILD=ON -DSATURATE_TESTS=OFF
  grep '^saturate: ' /log || true  # what the build will lack
  quietly cmake --build /build -j "$(nproc)" --target saturate_command -- -k 0  # all errors, not the first
  built=$SECONDS warnings=$(grep -c 'warning:' /log || true)
  quietly cmake --install /build --prefix /usr/local
  ! ldd /usr/local/bin/saturate | grep -E 'not found|/opt|/build' || fail "$system: it needs libraries of the build"
  quietly as_nobody saturate train demo --quiet --set train.epochs=0.1 --set schedule.warmup_epochs=0 --out /runs/run
  echo "source, $system: g++ $(c++ -dumpfullversion), CMake $(cmake --version | sed -n '1s/.* //p')," \
    "$warnings warnings, set-up $((ready - start)) s, build $((built - ready)) s, trained on $(torch_version)"
}

in_wheel() {
  local wheel start installed demo
  export DEBIAN_FRONTEND=noninteractive PATH=/venv/bin:$PATH
  quietly apt-get update -q
  quietly apt-get install -y -q --no-install-recommends python3 python3-pip python3-venv
  python3 -m venv /venv
  start=$SECONDS
  for wheel in $(printf '%s\n' /src/dist/saturate_train-*.whl | sort -Vr) ''; do  # the newest that suits this Python
    [ -n "$wheel" ] || { echo "wheel, $system: skipped, $(python3 -V): $(tail -n 1 /log)"; return; }
    # shellcheck disable=SC2086
    pip install -q --no-cache-dir ${SATURATE_PIP_ARGS:-} "$wheel" >/log 2>&1 && break
    grep -qE 'requires a different Python|No matching distribution' /log || fail "$system: pip: $(cat /log)"
  done
  quietly pip install -q --no-index --find-links /src/dist saturate
  installed=$SECONDS
  cd /runs
  quietly saturate train demo --out run
  demo=$SECONDS
  quietly saturate export run --format torchscript --out demo.pt
  quietly python3 - <<'PY'
import saturate, torch
batches = list(saturate.Loader("synth:size=32,count=50", batch=10, size=32, train=False, to="torch"))
assert len(batches) == 5 and tuple(batches[0][0].shape) == (10, 3, 32, 32), batches[0][0].shape
logits = torch.jit.load("demo.pt")(batches[0][0].float())
assert logits.shape[0] == 10 and logits.isfinite().all(), logits
PY
  echo "wheel, $system: $(python3 -V), $(getconf GNU_LIBC_VERSION), pip $((installed - start)) s," \
    "demo $((demo - installed)) s, environment $(du -sm /venv | cut -f1) MiB, trained on $(torch_version)"
}

# ---- in namespaces of its own, with which its mounts end -------------------------------------------------------------

bind() { mkdir -p "$2"; mount --bind "$1" "$2"; mount -o "remount,bind,$3" "$2"; } # FROM TO ro|rw

within() { # MODE SYSTEM ROOT
  local variables=() torch
  bind "$PWD" "$3/src" ro
  bind "$kept/ccache" "$3/opt/ccache" rw
  for torch in "${SATURATE_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/saturate}"/torch-*-cpu; do
    [ ! -f "$torch/.complete" ] || bind "$torch" "$3/opt/deps/${torch##*/}" ro
  done
  mount -t proc proc "$3/proc"
  mount --bind /dev "$3/dev"
  mount -t tmpfs tmpfs "$3/dev/shm"
  mkdir -m 777 "$3/runs"
  cp /etc/resolv.conf "$3/etc"
  mapfile -t variables < <(env | grep -E '^(https?_proxy|no_proxy|PIP_(INDEX_URL|EXTRA_INDEX_URL)|SATURATE_PIP_ARGS)=')
  [ -z "${PIP_CERT:-}" ] || { cp "$PIP_CERT" "$3/etc/pip.crt"; variables+=({PIP_CERT,SSL_CERT_FILE}"=/etc/pip.crt"); }
  chroot "$3" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" \
    /src/tests/other_systems.sh --inside "$1" "$2"
}

# ---- before and after ------------------------------------------------------------------------------------------------

# COMMAND...: in namespaces of its own, which a signal ends at once, with all processes and mounts in them.
apart() { unshare --mount --pid --fork --kill-child "$@" & child=$!; wait "$child"; }

make_archive() { # SYSTEM: its bare root, by way of $root
  local mirror=http://deb.debian.org/debian parts=main script=() suite
  case $1 in
    debian-12) suite=bookworm ;;
    debian-13) suite=trixie ;;
    ubuntu-22.04) suite=jammy ;;
    ubuntu-24.04) suite=noble ;;
    *) fail "no system $1" ;;
  esac
  # Debian 12's debootstrap does not know noble's name, but the script of all Ubuntus.
  [[ $1 = debian* ]] ||
    mirror=http://archive.ubuntu.com/ubuntu parts=main,universe script=(/usr/share/debootstrap/scripts/gutsy)
  apart debootstrap --variant=minbase --components="$parts" --include=ca-certificates "$suite" "$root" \
    "$mirror" "${script[@]}" >"$kept/$1.log" 2>&1 || skip "debootstrap of $1 failed: $(tail -n 1 "$kept/$1.log")"
  echo "deb $mirror $suite-updates ${parts//,/ }" >>"$root/etc/apt/sources.list"
  tar -C "$root" --one-file-system -cf "$kept/$1.tar.tmp" .
  mv "$kept/$1.tar.tmp" "$kept/$1.tar"
  remove_root
}

# Should there be a mount all the same, nothing is removed through it.
remove_root() { ! grep -q " $root/" /proc/self/mounts || fail "$root has mounts"; rm -rf --one-file-system "$root"; }

kept=$(realpath -m "${SATURATE_ROOTS:-/tmp/saturate-roots}")
case ${1:-} in
  --inside) system=$3; "in_$2"; exit ;;
  --within) within "${@:2}"; exit ;;
  source | wheel) [ $# -gt 1 ] || fail "name a system, such as debian-13" ;;
  *) fail "tests/other_systems.sh source|wheel SYSTEM..." ;;
esac
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || skip "needs root"
command -v debootstrap >/dev/null || skip "no debootstrap: tools/setup.sh --dev installs it"
apart true 2>/dev/null || skip "no namespaces here"
export SATURATE_ROOTS=$kept
mkdir -p "$kept/ccache"
root=$(mktemp -d "$kept/root.XXXXXX")
trap remove_root EXIT
trap 'kill -KILL "$child"; exit 130' INT TERM HUP
for system in "${@:2}"; do
  [ -f "$kept/$system.tar" ] || make_archive "$system"
  mkdir -p "$root"
  tar -C "$root" -xf "$kept/$system.tar"
  chmod 755 "$root"  # mktemp's folder is its owner's alone
  apart tests/other_systems.sh --within "$1" "$system" "$root"
  remove_root
done
