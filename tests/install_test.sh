#!/usr/bin/env bash
# Installs the build, moves the prefix, and uses it as another user, without the builder's folders; then removes it.
#   tests/install_test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
fail() { echo "install test: $*" >&2; exit 1; }

touch "$scratch/before"
umask 077  # the files' modes must not depend on the builder's
make --no-print-directory install PREFIX="$scratch/first" >/dev/null
umask 022
chmod 755 "$scratch/first"
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved
written=$(find build -newer "$scratch/before" -type f)
[ -z "$written" ] || fail "with sudo these files would belong to root: $written"

# Every library is in the system's folders or in the prefix.
foreign=$(ldd "$prefix/bin/saturate" | sed -n 's/.*=> \(.*\) (0x.*/\1/p' | xargs realpath -m |
  grep -vE "^($prefix|/lib|/usr/lib)/" || true)
[ -z "$foreign" ] || fail "the command needs libraries of the builder: $foreign"
! ldd "$prefix/bin/saturate" | grep -q 'not found' || fail "a library is missing"

licences=$prefix/share/doc/saturate/licenses/torch
grep -qr 'Facebook, Inc' "$licences" && [ "$(find "$licences" -type f | wc -l)" -gt 1 ] ||
  fail "LibTorch's licences are not in $licences"

as_other() { # runs in a folder that user owns
  if [ "$(id -u)" = 0 ]; then
    setpriv --reuid=65534 --regid=65534 --clear-groups env -i HOME=/nonexistent PATH="$prefix/bin:/usr/bin:/bin" "$@"
  else
    env -i HOME=/nonexistent PATH="$prefix/bin:/usr/bin:/bin" "$@"
  fi
}
mkdir "$scratch/work"
chmod 777 "$scratch/work"
cd "$scratch/work"
as_other saturate train demo --quiet --set train.epochs=0.1 --set schedule.warmup_epochs=0 --out run >out || fail "the demo failed: $(cat out)"
grep -q '^run folder  run$' out || fail "the demo printed: $(cat out)"
as_other saturate eval run --data synth:size=32,count=50 >/dev/null
as_other saturate list recipes | grep -q '^  demo ' || fail "the recipes are not listed"
[ "$(as_other saturate train no-such 2>&1 | grep -c 'saturate list recipes')" = 1 ] || fail "no remedy"

completed() { # WORDS..., the last of which is completed
  bash -c 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; _saturate; echo "${COMPREPLY[*]}"' \
    "$prefix/share/bash-completion/completions/saturate" "$@"
}
[ "$(completed saturate tr)" = train ] || fail "bash completes tr as $(completed saturate tr)"
[ "$(completed saturate data insp)" = inspect ] || fail "bash does not complete data insp"
[ "$(completed saturate export run --format saf)" = safetensors ] || fail "bash does not complete a choice"
[ "$(completed saturate train demo --set train.epo)" = train.epochs= ] || fail "bash does not complete a key"
[[ " $(completed saturate eval run --) " == *" --best "* ]] || fail "bash does not complete an option"
grep -q '^\.SS saturate train' "$prefix/share/man/man1/saturate.1" || fail "the man page lacks train"
! command -v man >/dev/null || ! man --warnings -l "$prefix/share/man/man1/saturate.1" 2>&1 >/dev/null | grep . ||
  fail "the man page has errors"

# A file of an earlier installation in the prefix, which the next one lacks, is removed as well.
earlier=share/saturate/recipes/earlier.toml
touch "$prefix/$earlier"
echo $earlier >>"$prefix/share/saturate/installed_files"
make --no-print-directory -C "$root" install PREFIX="$prefix" >/dev/null
make --no-print-directory -C "$root" uninstall PREFIX="$prefix" >/dev/null
[ -z "$(find "$prefix" -mindepth 1 2>/dev/null)" ] || fail "uninstall left: $(find "$prefix" -mindepth 1 | head)"
mkdir -p "$prefix/bin" "$prefix/lib"
make --no-print-directory -C "$root" install PREFIX="$prefix" >/dev/null
make --no-print-directory -C "$root" install PREFIX="$prefix" >/dev/null
make --no-print-directory -C "$root" uninstall PREFIX="$prefix" >/dev/null
ln -s "$prefix" "$scratch/link"
make --no-print-directory -C "$root" install PREFIX="$scratch/link" >/dev/null
make --no-print-directory -C "$root" uninstall PREFIX="$scratch/link" >/dev/null
[ "$(find "$prefix" -mindepth 1 | sort | xargs)" = "$prefix/bin $prefix/lib" ] ||
  fail "uninstall did not leave the folders that were there: $(find "$prefix" -mindepth 1 | head)"

# A failed installation can be removed; DESTDIR comes before PREFIX.
mkdir "$scratch/small"
if [ "$(id -u)" != 0 ] || ! mount -t tmpfs -o size=60m tmpfs "$scratch/small" 2>/dev/null; then
  echo "install test: a full disk is not tried, which needs the right to mount one"
else
  trap 'umount "$scratch/small"; rm -rf "$scratch"' EXIT
  ! make --no-print-directory -C "$root" install PREFIX="$scratch/small/p" >"$scratch/out" 2>&1 || fail "60 MB were enough"
  grep -q 'make: installing failed; make uninstall' "$scratch/out" || fail "a full disk: $(cat "$scratch/out")"
  make --no-print-directory -C "$root" uninstall PREFIX="$scratch/small/p" >/dev/null
  [ -z "$(find "$scratch/small" -type f)" ] || fail "uninstall left: $(find "$scratch/small" -type f | head)"
fi
make --no-print-directory -C "$root" install PREFIX=/usr DESTDIR="$scratch/package" >/dev/null
[ -x "$scratch/package/usr/bin/saturate" ] || fail "DESTDIR is not honoured"
make --no-print-directory -C "$root" uninstall PREFIX=/usr DESTDIR="$scratch/package" >/dev/null
[ -z "$(find "$scratch/package" -type f)" ] || fail "uninstall with DESTDIR left files"
echo "install test: passed"
