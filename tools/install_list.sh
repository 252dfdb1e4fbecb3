#!/usr/bin/env bash
# Remembers which files were installed, in the prefix itself, so that they can be removed without the build.
#   tools/install_list.sh record MANIFEST PREFIX    after `cmake --install`, which wrote MANIFEST
#   tools/install_list.sh remove PREFIX
set -euo pipefail
list=share/saturate/installed_files

case ${1:-} in
  record)
    prefix=$(realpath "$3")
    # The manifest has no line break at its end.
    { cat "$2"; echo; } | while IFS= read -r file; do
      [ -z "$file" ] || realpath -s --relative-base="$prefix" "$(realpath "$(dirname "$file")")/${file##*/}"
    done >"$prefix/$list.tmp"
    echo $list >>"$prefix/$list.tmp"
    # Files of earlier installations that this one lacks stay in the prefix, and uninstall removes them.
    [ ! -f "$prefix/$list" ] || cat "$prefix/$list" >>"$prefix/$list.tmp"
    sort -u -o "$prefix/$list.tmp" "$prefix/$list.tmp"
    mv "$prefix/$list.tmp" "$prefix/$list"
    ;;
  remove)
    cd "$2" 2>/dev/null && [ -f $list ] || {
      echo "make: no saturate is installed in $2 ($list is missing). Give the PREFIX of make install" >&2; exit 2; }
    mapfile -t files <$list
    rm -f -- "${files[@]}"
    printf '%s\n' "${files[@]}" | xargs -d '\n' dirname | sort -u |
      xargs -d '\n' rmdir -p --ignore-fail-on-non-empty 2>/dev/null || true
    echo "removed ${#files[@]} files from $2"
    ;;
  *) sed -n 2,5p "$0" >&2; exit 2 ;;
esac
