#!/usr/bin/env bash
# Installs what a build needs, if it is missing: the system's packages, and LibTorch from the PyPI wheel.
#   tools/setup.sh [--dev] [--nccl] [--cpu|--full]
# --dev adds clang-format, clang-tidy, Chromium, iproute2, Python's headers, debootstrap, patchelf and the packages for
# fuzzing; on systems other than Debian 12, which CI runs on, only those that the system has. --full fetches LibTorch
# with its GPU libraries (4.7 GB), --cpu without them (1.3 GB). The default is --full on a machine with an NVIDIA
# driver, else --cpu. --nccl adds NCCL's headers (1 MB, of a wheel of 216 MB) to a set without them, for make wheels.
# If python3 has torch, from version 2.11 to 2.15, the build uses its LibTorch. Otherwise LibTorch is installed in
# ${SATURATE_DEPS:-${XDG_CACHE_HOME:-~/.cache}/saturate}: version 2.15.0, or the one in SATURATE_TORCH_VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(tools/find_torch.sh --version)
cache=${SATURATE_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/saturate}
# Debian's names, which are also printed on systems that set-up does not support.
packages=(g++ cmake ninja-build ccache mold pkg-config python3 python3-pip python3-venv
  libjpeg-dev libhwy-dev libdeflate-dev liblmdb-dev libpng-dev libwebp-dev libavif-dev zlib1g-dev libfmt-dev libcurl4-openssl-dev
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libjs-chart.js
  libisal-dev libprotozero-dev libcpp-httplib-dev libgloo-dev
  libgtest-dev)
dev_packages=(clang-format clang-tidy-16 clang-16 libclang-rt-16-dev chromium iproute2 python3-dev debootstrap patchelf
  libnghttp2-dev libssl-dev)

say() { echo "setup: $*"; }
fail() { echo "setup: error: $*" >&2; exit 1; }

# ID and VERSION_ID are those of /etc/os-release, such as "debian" and "12".
# shellcheck disable=SC1091
[ ! -r /etc/os-release ] || . /etc/os-release
system="${ID:-unknown} ${VERSION_ID:-}"
case " ${ID:-} ${ID_LIKE:-} " in
  *" fedora "*)
    packages=(gcc-c++ cmake ninja-build ccache mold pkgconf-pkg-config python3 python3-pip
      libjpeg-turbo-devel highway-devel libdeflate-devel lmdb-devel libpng-devel libwebp-devel libavif-devel
      zlib-devel fmt-devel libcurl-devel
      cli11-devel tomlplusplus-devel json-devel isa-l-devel protozero-devel cpp-httplib-devel gloo-devel
      gtest-devel)
    dev_packages=(clang-tools-extra chromium iproute python3-devel debootstrap patchelf
      libnghttp2-devel openssl-devel) ;;
esac
# It has no toml++, and Highway 0.16: fetch_toml and fetch_highway get their sources.
[ "$system" != "ubuntu 22.04" ] || {
  packages=("${packages[@]//libtomlplusplus-dev/}")
  packages=("${packages[@]//libhwy-dev/}")
}
[ "$system" = "debian 12" ] || dev_packages=("${dev_packages[@]//*-16*/}")  # of a release that only Debian 12 has
[ "${ID:-}" != ubuntu ] || dev_packages=("${dev_packages[@]//chromium/}")

set='' nccl=''
for arg in "$@"; do
  case $arg in
    --dev) packages+=("${dev_packages[@]}") ;;
    --nccl) nccl=1 ;;
    --cpu) set=cpu ;;
    --full) set=full ;;
    *) fail "unknown option $arg. Try tools/setup.sh [--dev] [--nccl] [--cpu|--full]" ;;
  esac
done

has_nvidia_driver() {
  [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1 ||
    PATH=$PATH:/sbin ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '
}
# A LibTorch given by SATURATE_TORCH_DIR is used as it is.
[ -z "${SATURATE_TORCH_DIR:-}" ] || set=cpu
[ -n "$set" ] || { if has_nvidia_driver; then set=full; else set=cpu; fi; }

mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep .)  # without those that were taken out above

missing_packages() {
  if command -v dpkg-query >/dev/null; then
    comm -23 <(printf '%s\n' "${packages[@]}" | sort) \
      <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
        sed -n 's/^installed //p' | sort)
  else
    for name in "${packages[@]}"; do rpm -q --quiet --whatprovides "$name" || echo "$name"; done
  fi
}

find_torch() { if [ $set = full ]; then tools/find_torch.sh --full; else tools/find_torch.sh; fi; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo DEBIAN_FRONTEND=noninteractive "$@"; fi
}

install() {
  if command -v apt-get >/dev/null; then
    as_root apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=600 "$@"
  else
    as_root dnf install -y -q --setopt=install_weak_deps=False "$@"
  fi
}

install_packages() {
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    fail "installing packages needs root or sudo. Install them yourself: $*"
  say "installing $# packages: $*"
  # apt's package lists may be absent or out of date: after a failure, updates them once and tries again.
  { install "$@" || { command -v apt-get >/dev/null && as_root apt-get update -q && install "$@"; }; } \
    >"$scratch/packages" 2>&1 || {
    tail -n 15 "$scratch/packages" >&2
    fail "the packages could not be installed (the last lines are above)"
  }
}

# The folder gets its name only when it is complete; find_torch.sh looks for .complete.
fetch_torch() {
  local dir=$cache/torch-$version-$set need_gb=3 cuda
  [ $set = cpu ] || need_gb=11
  [[ $version == *.*.* ]] ||
    fail "SATURATE_TORCH_VERSION=$version: no such LibTorch is here. Set the full version, such as 2.12.0, to fetch it"
  [ "$(df --output=avail -B1G "$cache" | tail -n 1)" -ge $need_gb ] ||
    fail "LibTorch needs $need_gb GB of free space in $cache. Free some, or set SATURATE_DEPS to another folder"
  say "fetching LibTorch $version ($set set) from PyPI into $dir"
  rm -rf "$dir.tmp" "$dir"
  if [ $set = full ]; then
    pip_install "torch==$version"
  else
    pip_install --no-deps "torch==$version"
    # The two of its CUDA libraries that libtorch_cpu.so needs.
    cuda=$(sed -n 's/^Requires-Dist: cuda-toolkit\[.*\]==\([0-9.]*\).*/\1/p' \
      "$dir.tmp/torch-$version.dist-info/METADATA")
    [ -z "$cuda" ] || pip_install "cuda-toolkit[cudart,cupti]==$cuda"
  fi
  touch "$dir.tmp/.complete"
  mv "$dir.tmp" "$dir"
}

pip_install() { # ARGUMENTS...: into $cache/torch-VERSION-SET.tmp
  local python=/usr/bin/python3 options=(--quiet)
  [ -x $python ] || python=python3
  [ ! -t 1 ] || options=()
  # The wheel of another Python has the same C++ parts; torch 2.15 has none for Python 3.10.
  $python -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    options+=(--python-version 3.12 --only-binary=:all:)
  # By the environment, as pip 22.0 does not have the option.
  TMPDIR=$scratch PIP_ROOT_USER_ACTION=ignore $python -m pip install "${options[@]}" --no-input --no-cache-dir \
    --disable-pip-version-check --target "$cache/torch-$version-$set.tmp" "$@" ||
    fail "pip could not fetch LibTorch (its message is above). Run again, or set SATURATE_TORCH_DIR"
}

lacks_toml() { [ "$system" = "ubuntu 22.04" ] && [ ! -f "$cache/tomlplusplus/include/toml++/toml.h" ]; }

fetch_toml() {
  say "fetching toml++ 3.4.0 from PyPI, where it is part of pytomlpp's source"
  echo "pytomlpp==1.1.0 --hash=sha256:61a0f73e7ba2fe8bba4e99ce6d2701491885850b53aad8f3e46d03c4b31e594d" >"$scratch/toml"
  python3 -m pip download --quiet --no-input --disable-pip-version-check --no-deps --no-binary=:all: \
    -r "$scratch/toml" -d "$scratch" || fail "pip could not fetch toml++ (its message is above). Run again"
  tar -xzf "$scratch/pytomlpp-1.1.0.tar.gz" -C "$scratch"
  rm -rf "$cache/tomlplusplus"
  mv "$scratch/pytomlpp-1.1.0/third_party/tomlplusplus" "$cache"
}

lacks_highway() { [ "$system" = "ubuntu 22.04" ] && [ ! -f "$cache/highway/hwy/highway.h" ]; }

fetch_highway() {
  say "fetching Highway 1.2.0 from PyPI, where it is part of NumPy's source"
  # Without pip, which would first compile a part of NumPy.
  python3 - "$scratch/numpy" <<'PY' || fail "Highway could not be fetched (the message is above). Run again"
import hashlib, sys, urllib.request
url = ("https://files.pythonhosted.org/packages/76/21/7d2a95e4bba9dc13d043ee156a356c0a8f0c6309dff6b21b4d71a073b8a8/"
       "numpy-2.2.6.tar.gz")
with urllib.request.urlopen(url, timeout=60) as response:
    data = response.read()
if hashlib.sha256(data).hexdigest() != "e29554e2bef54a90aa5cc07da6ce955accb83f21ab5de01a62c8478897b264fd":
    sys.exit("its contents are not those expected")
open(sys.argv[1], "wb").write(data)
PY
  tar -xzf "$scratch/numpy" -C "$scratch" numpy-2.2.6/numpy/_core/src/highway
  rm -rf "$cache/highway"
  mv "$scratch/numpy-2.2.6/numpy/_core/src/highway" "$cache"
}

# Only a set in $cache: python3's torch has its own.
lacks_nccl() { [ -n "$nccl" ] && [[ $1 == "$cache"/* ]] && [ ! -f "${1%/*}/nvidia/nccl/include/nccl.h" ]; }

fetch_nccl() { # FOLDER: of the torch package
  local wanted
  wanted=$(sed -n 's/^Requires-Dist: \(nvidia-nccl-[a-z0-9]*==[0-9.]*\).*/\1/p' "${1%/*}"/torch-*.dist-info/METADATA)
  say "fetching the headers of $wanted from PyPI"
  python3 -m pip download --quiet --no-input --disable-pip-version-check --no-cache-dir --no-deps -d "$scratch" \
    "$wanted" || fail "pip could not fetch $wanted (its message is above). Run again"
  python3 - "$scratch"/nvidia_nccl*.whl "${1%/*}" <<'PY'
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith("nvidia/nccl/include/")])
PY
}

tell_unknown() {
  cat >&2 <<TEXT
setup: error: this system ($system) is not one that packages can be installed on (Debian, Ubuntu, Fedora). Install what
these packages of Debian contain:
  ${packages[*]}
Then build, with LibTorch $version from PyPI or another from 2.11 to 2.15:
  pip install --target torch-$version torch==$version
  cmake --preset release -DSATURATE_TORCH_DIR=\$PWD/torch-$version/torch && cmake --build --preset release
TEXT
  exit 1
}

{ command -v dpkg-query && command -v apt-get || { command -v rpm && command -v dnf; }; } >/dev/null || tell_unknown
if [ -z "$(missing_packages)" ] && ! lacks_toml && ! lacks_highway && torch=$(find_torch 2>/dev/null) &&
  ! lacks_nccl "$torch"; then
  say "nothing to install (LibTorch in $torch)"
  exit 0
fi

# One set-up at a time: one that waited for the lock finds everything installed.
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
! lacks_toml || fetch_toml
! lacks_highway || fetch_highway
torch=$(find_torch) || {
  [ -z "${SATURATE_TORCH_DIR:-}" ] || fail "set SATURATE_TORCH_DIR to a LibTorch from 2.11 to 2.15, or unset it"
  fetch_torch
  torch=$(find_torch) || fail "the fetched LibTorch does not load. Run ldd on its libraries to see what is missing"
}
! lacks_nccl "$torch" || fetch_nccl "$torch"
say "ready (LibTorch in $torch)"
