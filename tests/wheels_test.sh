#!/usr/bin/env bash
# Installs dist/*.whl into new environments and uses them. torch is not downloaded: the environment gets links to the
# LibTorch of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "wheels test: $*" >&2; exit 1; }
install() { "$1/bin/python" -m pip install -q --disable-pip-version-check "${@:2}"; }
expect() { # TEXT COMMAND...: it fails and prints TEXT
  local said
  ! said=$("${@:2}" 2>&1) || fail "$* did not fail"
  grep -qF -- "$1" <<<"$said" || fail "instead of '$1': $said"
}

for wheel in dist/saturate-*.whl dist/saturate_train-*.whl; do
  [[ $wheel == *manylinux_2_35_x86_64* ]] || fail "$wheel is not for manylinux_2_35"
done

python3 -m venv "$scratch/loader"
install "$scratch/loader" numpy "$root"/dist/saturate-*.whl
cd "$scratch"
"$scratch/loader/bin/python" - <<'PY'
import numpy, saturate
loader = saturate.Loader("synth:size=32,count=50", batch=10, size=32, train=False)
batches = list(loader)
assert len(batches) == 5 and batches[0][0].shape == (10, 3, 32, 32), batches[0][0].shape
maps = open("/proc/self/maps").read()
for name in ("libjpeg", "libfmt", "liblmdb", "libdeflate"):
    paths = {line.split()[-1] for line in maps.splitlines() if name in line}
    assert paths and all("/site-packages/" in path for path in paths), (name, paths)
PY

python3 -m venv "$scratch/command"
saturate=$scratch/command/bin/saturate
install "$scratch/command" --no-deps "$root"/dist/saturate_train-*.whl
expect "torch is not installed" "$saturate" --version
torch=$("$root/tools/find_torch.sh")
packages=$("$scratch/command/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$packages/torch" "$packages/torch-2.10.1.dist-info"
touch "$packages/torch/__init__.py"
printf 'Metadata-Version: 2.1\nName: torch\nVersion: 2.10.1\n' >"$packages/torch-2.10.1.dist-info/METADATA"
expect "torch is 2.10.1, and this saturate_train is built for 2.11" "$saturate" --version
rm -r "$packages/torch" "$packages/torch-2.10.1.dist-info"

for entry in torch nvidia; do ln -s "$(dirname "$torch")/$entry" "$packages/$entry"; done
cp -r "$(dirname "$torch")"/torch-2.11.*.dist-info "$packages"
[ "$("$saturate" --version)" = "saturate 0.1.0" ] || fail "--version prints $("$saturate" --version)"
"$saturate" train demo --quiet --set train.epochs=0.1 --set schedule.warmup_epochs=0 --out run >out || fail "the demo failed: $(cat out)"
"$scratch/command/bin/python" -m saturate_train eval run --data synth:size=32,count=50 >/dev/null
foreign=$(ldd "$packages/saturate_train/bin/saturate" | sed -n 's/.*=> \(.*\) (0x.*/\1/p' | xargs realpath -m |
  grep -E '/lib(jpeg|fmt|lmdb|deflate|hwy|png|isal|cpp-httplib)' | grep -v "^$packages/" || true)
[ -z "$foreign" ] || fail "the command uses the system's $foreign"
echo "wheels test: passed"
