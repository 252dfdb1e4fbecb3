#!/usr/bin/env bash
# Installs what a build needs, if it is missing: Debian packages, and LibTorch from the PyPI wheel.
#   tools/setup.sh [--dev] [--cpu|--full]
# --dev adds clang-format, clang-tidy, Chromium, iproute2, Python's headers, debootstrap, patchelf and the packages for
# fuzzing. --full fetches LibTorch with its GPU libraries (4.7 GB), --cpu without them (1.3 GB). The default is --full
# on a machine with an NVIDIA driver, else --cpu.
# LibTorch goes to ${SATURATE_DEPS:-${XDG_CACHE_HOME:-~/.cache}/saturate}, unless python3 already has it.
set -euo pipefail
cd "$(dirname "$0")/.."

version=2.11.0
packages=(g++ cmake ninja-build ccache mold pkg-config python3 python3-pip python3-venv
  libjpeg62-turbo-dev libhwy-dev libdeflate-dev liblmdb-dev libpng-dev zlib1g-dev libfmt-dev libcurl4-openssl-dev
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libjs-chart.js
  libisal-dev libprotozero-dev libcpp-httplib-dev libgloo-dev
  libgtest-dev)

say() { echo "setup: $*"; }
fail() { echo "setup: error: $*" >&2; exit 1; }

set=
for arg in "$@"; do
  case $arg in
    --dev) packages+=(clang-format clang-tidy-16 clang-16 libclang-rt-16-dev chromium iproute2 python3-dev
      debootstrap patchelf) ;;
    --cpu) set=cpu ;;
    --full) set=full ;;
    *) fail "unknown option $arg. Try tools/setup.sh [--dev] [--cpu|--full]" ;;
  esac
done

has_nvidia_driver() {
  [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1 ||
    PATH=$PATH:/sbin ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '
}
# A LibTorch given by SATURATE_TORCH_DIR is used as it is.
[ -z "${SATURATE_TORCH_DIR:-}" ] || set=cpu
[ -n "$set" ] || { if has_nvidia_driver; then set=full; else set=cpu; fi; }

missing_packages() {
  comm -23 <(printf '%s\n' "${packages[@]}" | sort) \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
      sed -n 's/^installed //p' | sort)
}

find_torch() { if [ $set = full ]; then tools/find_torch.sh --full; else tools/find_torch.sh; fi; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo DEBIAN_FRONTEND=noninteractive "$@"; fi
}

apt_install() {
  as_root apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=600 "$@"
}

install_packages() {
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    fail "installing Debian packages needs root or sudo. Install them yourself: $*"
  say "installing $# packages with apt: $*"
  # Package lists may be absent or out of date: after a failure, updates them once and tries again.
  { apt_install "$@" || { as_root apt-get update -q && apt_install "$@"; }; } >"$scratch/apt" 2>&1 || {
    tail -n 15 "$scratch/apt" >&2
    fail "apt could not install them (its last lines are above)"
  }
}

# The folder gets its name only when it is complete; find_torch.sh looks for .complete.
fetch_torch() {
  local dir=$cache/torch-$version-$set need_gb=3 wheels=("torch==$version")
  if [ $set = cpu ]; then
    wheels=(--no-deps "${wheels[@]}" nvidia-cuda-cupti==13.0.85 nvidia-cuda-runtime==13.0.96)
  else
    need_gb=11
  fi
  [ "$(df --output=avail -B1G "$cache" | tail -n 1)" -ge $need_gb ] ||
    fail "LibTorch needs $need_gb GB of free space in $cache. Free some, or set SATURATE_DEPS to another folder"
  local python=/usr/bin/python3 progress=(--quiet)
  [ -x $python ] || python=python3
  [ ! -t 1 ] || progress=()
  say "fetching LibTorch $version ($set set) from PyPI into $dir"
  rm -rf "$dir.tmp" "$dir"
  TMPDIR=$scratch $python -m pip install "${progress[@]}" --no-input --no-cache-dir \
    --disable-pip-version-check --root-user-action=ignore --target "$dir.tmp" "${wheels[@]}" ||
    fail "pip could not fetch LibTorch (its message is above). Run again, or set SATURATE_TORCH_DIR"
  touch "$dir.tmp/.complete"
  mv "$dir.tmp" "$dir"
}

command -v dpkg-query >/dev/null ||
  fail "this is not Debian. Install the contents of these packages yourself: ${packages[*]}"
if [ -z "$(missing_packages)" ] && torch=$(find_torch 2>/dev/null); then
  say "nothing to install (LibTorch in $torch)"
  exit 0
fi

# One set-up at a time: one that waited for the lock finds everything installed.
cache=${SATURATE_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/saturate}
mkdir -p "$cache" || fail "cannot write to $cache. Set SATURATE_DEPS to another folder"
exec 9>"$cache/.lock"
flock -n 9 || { say "waiting for another set-up"; flock 9; }
scratch=$cache/setup.tmp
rm -rf "$scratch"
mkdir "$scratch"
trap 'rm -rf "$scratch"' EXIT
export DEBIAN_FRONTEND=noninteractive

mapfile -t missing < <(missing_packages)
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
torch=$(find_torch) || {
  [ -z "${SATURATE_TORCH_DIR:-}" ] || fail "set SATURATE_TORCH_DIR to a LibTorch $version, or unset it"
  fetch_torch
  torch=$(find_torch) || fail "the fetched LibTorch does not load. Run ldd on its libraries to see what is missing"
}
say "ready (LibTorch in $torch)"
