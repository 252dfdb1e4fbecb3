#!/usr/bin/env bash
# Installs dist/*.whl into new environments and uses them. torch is not downloaded: the environment gets links to the
# LibTorch of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "wheels test: $*" >&2; exit 1; }
pip_install() { "$1" -m pip -q --disable-pip-version-check "${@:2}"; }
expect() { # TEXT COMMAND...: it fails and prints TEXT
  local said
  ! said=$("${@:2}" 2>&1) || fail "$* did not fail"
  grep -qF -- "$1" <<<"$said" || fail "instead of '$1': $said"
}

torch=$("$root/tools/find_torch.sh")
minor=$(sed -n "s/^__version__ = '\([0-9]*\.[0-9]*\).*/\1/p" "$torch/version.py")
command_wheel=$(echo "$root"/dist/saturate_train-*+torch"$minor"-*.whl)
# The libraries inside are known by their licences, and the files that METADATA names exist.
for wheel in "$root"/dist/saturate-*.whl "$command_wheel"; do
  [[ $wheel == *manylinux_2_35_x86_64* ]] || fail "$wheel is not for manylinux_2_35"
  python3 - "$wheel" <<'PY' || fail "the licences in $wheel"
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = wheel.namelist()
info = next(name for name in names if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")
named = re.findall("^License-File: (.*)", wheel.read(info + "METADATA").decode(), re.MULTILINE)
texts = {name.removeprefix(info + "licenses/") for name in names if name.startswith(info + "licenses/")}
assert set(named) == texts and len(named) == len(texts), (named, texts)
works = ["LICENSE", "NOTICES.md", "libtomlplusplus-dev.txt", "nlohmann-json3-dev.txt", "libjs-chart.js.txt"]
works += ["curl.txt"]
works += ["libcli11-dev.txt"] if "saturate_train" in info else ["nanobind.txt", "robin_map.txt"]
assert texts.issuperset(works), texts
copied = [name.split("/")[-1] for name in names if ".libs/" in name and not name.endswith("/")]
assert len(copied) >= 5, copied
assert not any(re.match("lib(aom|rav1e|SvtAv1)", library) for library in copied), copied
copied = [library for library in copied if not library.startswith("libsaturate_")]
others = {"libcrypto": "libssl", "libbrotlicommon": "libbrotli", "libbrotlidec": "libbrotli", "libbrotlienc": "libbrotli"}
for library in copied:  # libfmt-0a1b2c3d.so.9: libfmt9.txt
    stem = re.match(r"lib[a-z0-9-]*?[a-z](?=[0-9]*-[0-9a-f]{8}\.)", library)[0]
    assert any(text.startswith(others.get(stem, stem)) for text in texts), (library, texts)
assert all(len(wheel.read(f"{info}licenses/{text}")) > 500 for text in texts)
PY
done

cd "$scratch"
# A server of https, and the same without the system's libcurl.
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out certificate.pem -days 2 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost 2>/dev/null
python3 - 2>/dev/null <<'PY' &
import http.server, pathlib, ssl
server = http.server.HTTPServer(("localhost", 0), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("certificate.pem", "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
pathlib.Path("port.tmp").write_text(str(server.server_address[1]))
pathlib.Path("port.tmp").rename("port")
server.serve_forever()
PY
server=$!
trap 'kill "$server"; rm -rf "$scratch"' EXIT
cat >without_libcurl <<'SH'
set -e
files=$(/sbin/ldconfig -p | awk '/libcurl\.so\.4 /{ print $NF }' | xargs -r realpath)
for file in $files; do mount --bind /dev/null "$file"; done
! python3 -c 'import ctypes; ctypes.CDLL("libcurl.so.4")' 2>/dev/null || { echo "the system's libcurl is still there"; exit 1; }
exec "$@"
SH
has_spaces=$(unshare --user --map-root-user --mount true 2>/dev/null && echo yes || true)
[ -n "$has_spaces" ] || echo "wheels test: skipped the wheels' own libcurl: no namespaces here"
while [ ! -e port ]; do sleep 0.1; done
url=tar:https://localhost:$(cat port)/certificate.pem
expect_curl() { # COMMAND... reads the URL: it gets the reply
  export AWS_CA_BUNDLE=$scratch/certificate.pem
  expect "ignores ranges" "$@"
  [ -z "$has_spaces" ] || expect "ignores ranges" unshare --user --map-root-user --mount bash "$scratch/without_libcurl" "$@"
  unset AWS_CA_BUNDLE
}

# The loader, without torch, with each Python that has a wheel.
mkdir -p avif/class
cp "$root"/tests/goldens/image/modern/{lossy,alpha}.avif avif/class
for program in "$root"/build/python-env-*/bin/python; do
  pip_install "$program" install --no-index --find-links "$root/dist" --no-deps --target "$scratch/loader" saturate
  PYTHONPATH=$scratch/loader "$program" - <<'PY'
import numpy, saturate
loader = saturate.Loader("synth:size=32,count=50", batch=10, size=32, train=False)
batches = list(loader)
assert len(batches) == 5 and batches[0][0].shape == (10, 3, 32, 32), batches[0][0].shape
maps = open("/proc/self/maps").read()
for name in ("libjpeg", "libfmt", "liblmdb", "libdeflate", "libavif", "libdav1d"):
    paths = {line.split()[-1] for line in maps.splitlines() if name in line}
    assert paths and all("/loader/" in path for path in paths), (name, paths)
images = [numpy.asarray(x) for x, _ in saturate.Loader("folder:avif", batch=1, size=32, crop="none", train=False)]
assert len(images) == 2 and all(image.std() > 0.1 for image in images), images
with saturate.watch(loader, out="loader/run") as watch:
    assert len(list(watch)) == 5
page = open(saturate.report("loader/run")).read()
assert "Chart.js v3" in page and '"rss_bytes"' in page, len(page)
PY
  PYTHONPATH=$scratch/loader expect_curl "$program" -c "import saturate; saturate.Loader('$url', batch=1, size=32)"
  rm -rf "$scratch/loader"
done

python3 -m venv --without-pip "$scratch/command"
saturate=$scratch/command/bin/saturate
pip_install python3 --python "$scratch/command/bin/python" install --no-deps "$command_wheel"
[ -s "$scratch/command/share/man/man1/saturate.1" ] || fail "the man page is not installed"
expect "torch is not installed" "$saturate" --version
packages=$("$scratch/command/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$packages/torch" "$packages/torch-2.10.1.dist-info"
touch "$packages/torch/__init__.py"
printf 'Metadata-Version: 2.1\nName: torch\nVersion: 2.10.1\n' >"$packages/torch-2.10.1.dist-info/METADATA"
expect "torch is 2.10.1, and this saturate_train is built for $minor" "$saturate" --version
rm -r "$packages/torch" "$packages/torch-2.10.1.dist-info"

for entry in torch nvidia; do ln -s "$(dirname "$torch")/$entry" "$packages/$entry"; done
cp -r "$(dirname "$torch")"/torch-"$minor".*.dist-info "$packages"
[ "$("$saturate" --version)" = "saturate 0.1.0" ] || fail "--version prints $("$saturate" --version)"
"$saturate" train demo --quiet --set train.epochs=0.1 --set schedule.warmup_epochs=0 --out run >out || fail "the demo failed: $(cat out)"
"$scratch/command/bin/python" -m saturate_train eval run --data synth:size=32,count=50 >/dev/null
expect_curl "$saturate" train demo --set "data.source=$url"
help=$("$scratch/command/bin/python" "$packages/saturate_train/share/saturate/tools/compile_step.py" --help)
[[ ${help//[[:space:]]/} == *"default$saturate)"* ]] || fail "compile_step.py finds no command: $help"
for program in "$packages"/saturate_train/bin/saturate*; do
  foreign=$(ldd "$program" | sed -n 's/.*=> \(.*\) (0x.*/\1/p' | xargs realpath -m |
    grep -E '/lib(jpeg|fmt|lmdb|deflate|hwy|png|isal|cpp-httplib|ssl|crypto)' | grep -v "^$packages/" || true)
  [ -z "$foreign" ] || fail "${program##*/} uses the system's $foreign"
  missing=$(ldd "$program" | sed -n 's/^\s*\(\S*\) => not found/\1/p' | grep -vE '^lib(torch|c10|cu|nccl|nv)' || true)
  [ -z "$missing" ] || fail "${program##*/} lacks $missing"
done
echo "wheels test: passed"
