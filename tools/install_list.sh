#!/usr/bin/env bash
# Installs a build, and removes it again without the build: which files were installed is remembered in the prefix
# itself, also if installing failed.
#   tools/install_list.sh install BUILD PREFIX
#   tools/install_list.sh remove PREFIX
set -euo pipefail
list=share/saturate/installed_files
fail() { echo "make: $*" >&2; exit 2; }

# The folders in which relative paths are, sorted.
folders_of() {
  awk -F/ '{ at = ""; for (i = 1; i < NF; ++i) print at = at (i > 1 ? "/" : "") $i }' | LC_ALL=C sort -u
}

# Adds the files in the output of cmake --install to the list, and their folders, each with a slash at its end, but for
# those that were there before.
record() { # PREFIX FOLDERS_BEFORE
  local file folders
  sed -n 's/^-- \(Installing\|Up-to-date\): //p' | while IFS= read -r file; do
    [ ! -f "$file" ] && [ ! -L "$file" ] ||
      realpath -s --relative-base="$1" "$(realpath "$(dirname "$file")")/${file##*/}"
  done >"$1/$list.tmp"
  echo $list >>"$1/$list.tmp"
  folders=$(folders_of <"$1/$list.tmp" | LC_ALL=C comm -23 - "$2")
  [ -z "$folders" ] || sed 's|$|/|' <<<"$folders" >>"$1/$list.tmp"
  # Files of earlier installations that this one lacks stay in the prefix, and uninstall removes them.
  [ ! -f "$1/$list" ] || cat "$1/$list" >>"$1/$list.tmp"
  sort -u -o "$1/$list.tmp" "$1/$list.tmp"
  mv "$1/$list.tmp" "$1/$list"
}

case ${1:-} in
  install)
    build=$2
    [ -x "$build/saturate" ] || fail "nothing is built yet. Run make command first, without sudo"
    made_in=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
    [ "$made_in" -ef . ] || fail "$build was built in $made_in. Remove it here, and run make command"
    # CMake writes a file there.
    [ -w "$build" ] || fail "$build is another user's. Have that user install, or root, or build in a checkout of your own"
    umask 022
    said=$(mktemp) before=$(mktemp)
    trap 'rm -f "$said" "$before"' EXIT
    # The standard folders, and those that packages share in them, are no deeper.
    { find "$3/" -mindepth 1 -maxdepth 3 -type d -printf '%P\n' 2>/dev/null || true; } | LC_ALL=C sort >"$before"
    mkdir -p "$3/${list%/*}" 2>/dev/null && [ -w "$3" ] || fail "cannot write to $3. Use sudo make install, or PREFIX=DIR"
    prefix=$(realpath "$3")
    reserve=$prefix/$list.reserve
    # The manifest would belong to root after `sudo make install`, and the user who built could not write the next one.
    trap 'rm -f "$said" "$before" "$reserve" "$build/install_manifest.txt"' EXIT
    head -c 100000 /dev/zero >"$reserve" || fail "no space in $3"  # for the list, on a disk that becomes full
    done=0
    env -u DESTDIR cmake --install "$build" --prefix "$prefix" >"$said" || done=$?
    rm -f "$reserve"
    record "$prefix" "$before" <"$said"
    [ $done = 0 ] || fail "installing failed; make uninstall with the same PREFIX removes what was copied"
    echo "installed to $3"
    ;;
  remove)
    cd "$2" 2>/dev/null && [ -f $list ] || {
      fail "no saturate is installed in $2 ($list is missing). Give the PREFIX of make install"; }
    mapfile -t files < <(grep -v '/$' $list)
    mapfile -t folders < <(grep '/$' $list | sort -r)
    rm -f -- "${files[@]}"
    rmdir --ignore-fail-on-non-empty -- "${folders[@]}" 2>/dev/null || true
    echo "removed ${#files[@]} files from $2"
    ;;
  *) sed -n 2,6p "$0" >&2; exit 2 ;;
esac
