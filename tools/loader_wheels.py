#!/usr/bin/env python3
"""Builds wheels of the loader (python/), and tests them.

  tools/loader_wheels.py FOLDER           for each Python of this machine, at most one of a version
  tools/loader_wheels.py FOLDER --test    for python3, and those from 3.12 on; then runs python/tests with each of these
  tools/loader_wheels.py FOLDER --torch   for python3; then runs python/tests with PyTorch, Lightning, Accelerate,
                                          TensorBoard, JAX and TensorFlow (7 GB)

A wheel of Python 3.12 or later is for all later ones too: nanobind's stable ABI begins there. An earlier Python needs
its own. Each Python gets an environment, build/python-env-VERSION, which keeps what it built, and ccache compiles the
torch-free library once for all.
"""

import ast
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST, STABLE = (3, 10), (3, 12)  # nanobind's first Python; the first with a stable ABI for it
PROBE = """import os, sys, sysconfig, venv, ensurepip
print(*sys.version_info[:2], os.path.exists(sysconfig.get_path('include') + '/Python.h'))"""
PIP = ["-m", "pip", "--disable-pip-version-check", "-q"]
FRAMEWORKS = ["torch==2.15.0", "torchvision==0.29.2", "lightning==2.6.6", "accelerate==1.15.0", "tensorboard==2.21.0",
              "jax==0.10.2", "tensorflow-cpu==2.21.0"]


def run(*command):
    subprocess.run([str(part) for part in command], check=True)


def version_of(python):
    """(3, 11), or None for one that cannot build: older, or without headers, venv or pip."""
    try:
        said = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return None
    version = int(said[0]), int(said[1])
    return version if version >= FIRST and said[2] == "True" else None


def pythons():
    """{version: python}, python3 first. pyenv's own commands run the selected versions only."""
    names = ["python3", *(f"python3.{minor}" for minor in range(FIRST[1], 20))]
    names += sorted(map(str, (pathlib.Path.home() / ".pyenv/versions").glob("3.*/bin/python")))
    found = {}
    for name in names:
        if (shutil.which(name) and (version := version_of(name))):
            found.setdefault(version, name)
    return found


def environment(python, version, frameworks=()):
    """Its Python. It has what builds and tests need, so that a second build compiles nothing again."""
    folder = ROOT / f"build/python-env-{version[0]}.{version[1]}{'-torch' if frameworks else ''}"
    program = folder / "bin/python"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        requires = re.search(r"^requires = (\[.*\])$", (ROOT / "python/pyproject.toml").read_text(), re.MULTILINE)
        run(python, "-m", "venv", folder)
        run(program, *PIP, "install", *ast.literal_eval(requires[1]), "numpy", "pytest", "mypy", *frameworks)
        (folder / ".complete").touch()
    return program


def build(folder, tested_only=False, frameworks=()):
    """Builds the wheels, and returns {environment's python: wheel}."""
    found = pythons()
    if not found:
        sys.exit("loader wheels: no Python 3.10 or later has headers and venv. Run tools/setup.sh --dev")
    default = next(iter(found))
    if tested_only:
        found = {version: python for version, python in found.items()
                 if version == default or (version >= STABLE and not frameworks)}
    folder = pathlib.Path(folder)
    wheels, stable = {}, None
    for version, python in sorted(found.items()):
        program = environment(python, version, frameworks)
        if version < STABLE or stable is None:
            scratch = folder / f"{version[0]}.{version[1]}"
            shutil.rmtree(scratch, ignore_errors=True)
            run(program, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", scratch, ROOT / "python")
            wheel, = scratch.glob("*.whl")
            if version >= STABLE:
                stable = wheel
        wheels[program] = wheel
    if stable and "-cp312-abi3-" not in stable.name:
        sys.exit(f"loader wheels: {stable.name} works with one Python only")
    return wheels


def test(program, wheel):
    print(f"{wheel.name} with {program.parent.parent.name}", flush=True)
    run(program, *PIP, "install", "--force-reinstall", "--no-deps", wheel)
    run(program, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "python/tests")


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-") or sys.argv[2:] not in ([], ["--test"], ["--torch"]):
        sys.exit(__doc__)
    wheels = build(sys.argv[1], len(sys.argv) == 3, FRAMEWORKS if sys.argv[2:] == ["--torch"] else ())
    for program, wheel in wheels.items() if len(sys.argv) == 3 else []:
        test(program, wheel)


if __name__ == "__main__":
    main()
