#!/usr/bin/env bash
# One wheel for Python 3.12 and later: builds it with the first such Python that is installed, checks its
# name, and tests it under each of them. nanobind's stable ABI begins with 3.12, so an older Python needs
# a separate wheel, which `make python-test` builds if that Python is the default.
#   python/stable_abi_test.sh [PYTHON...]
set -euo pipefail
cd "$(dirname "$0")/.."
# Also pyenv's versions: its shims only run the selected one.
[ $# -gt 0 ] || set -- python3.12 python3.13 python3.14 \
  "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python
pythons=()
seen=" "
for python in "$@"; do
  version=$("$python" -c 'import sys, venv; print("%d.%d" % sys.version_info[:2] if sys.version_info >= (3, 12) else "")' \
    2>/dev/null) || continue
  case $seen$version in *" $version "* | *" ") continue ;; esac  # one of each
  seen+="$version "
  pythons+=("$python")
done
if [ ${#pythons[@]} -eq 0 ]; then
  echo "stable ABI: skipped, there is no Python 3.12 or later"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${pythons[0]}" -m pip wheel -q --disable-pip-version-check --no-deps -w "$folder" ./python
wheel=$(echo "$folder"/saturate-*.whl)
case $wheel in
  *-cp312-abi3-*) ;;
  *) echo "stable ABI: $(basename "$wheel") works with one Python only" >&2; exit 1 ;;
esac
for python in "${pythons[@]}"; do
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install -q --disable-pip-version-check numpy pytest "$wheel"
  echo "stable ABI: $(basename "$wheel") under $("$folder/venv/bin/python" --version)"
  "$folder/venv/bin/python" -m pytest -q -p no:cacheprovider python/tests
  rm -rf "$folder/venv"
done
