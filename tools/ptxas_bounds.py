#!/usr/bin/env python3
"""Compares the registers, stack and spills of each CUDA kernel of src/, as ptxas reports them, with its bounds.

  tools/ptxas_bounds.py

Compiles every src/*/*.cu with `-Xptxas -v` for sm_80 to sm_90, as far as cmake/Cuda.cmake has them, and prints what
each kernel uses. tools/ptxas_bounds.json has the bounds by kernel name: registers per thread, and bytes of stack, of
spill stores and of spill loads per thread. Fails if a kernel exceeds a bound or has none, or if a bound names no
kernel. Needs nvcc 13, but no GPU; without nvcc it says so and succeeds.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUNDS = ROOT / "tools/ptxas_bounds.json"
PATTERN = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<arch>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<spill_stores>\d+) bytes spill stores, "
    r"(?P<spill_loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers", re.DOTALL)
RESOURCES = ["registers", "stack", "spill_stores", "spill_loads"]


def find_nvcc():
    default = pathlib.Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(default) if default.exists() else None)


def function_name(mangled):
    """The innermost name of _ZN 8saturate 13finish_images E ..., or the name of _Z4nameN...."""
    rest, name = re.sub(r"^_ZN?", "", mangled), mangled
    while found := re.match(r"\d+", rest):
        begin, end = found.end(), found.end() + int(found.group())
        name, rest = rest[begin:end], rest[end:]
        if not mangled.startswith("_ZN"):
            break
    return name


def architectures():
    """80 and 90: the kernels run on Turing (75) and Blackwell (100, 120) too, but are not tuned for them."""
    line = re.search(r"CMAKE_CUDA_ARCHITECTURES ([^)]*)\)", (ROOT / "cmake/Cuda.cmake").read_text()).group(1)
    return [arch for arch in re.findall(r"\b(\d+)\b", line) if 80 <= int(arch) <= 90]


def compile_verbosely(nvcc, source, folder):
    command = [nvcc, "-std=c++20", "-O3", "-DNDEBUG", "-fmad=false", f"-I{ROOT}/include", f"-I{ROOT}/src", "-c",
               source, "-o", f"{folder}/kernel.o", "-Xptxas", "-v"]
    for arch in architectures():
        command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        sys.exit(f"ptxas_bounds: nvcc cannot compile {source}:\n{found.stderr}")
    return [match.groupdict() for match in PATTERN.finditer(found.stderr)]


def main():
    nvcc = find_nvcc()
    if not nvcc:
        print("ptxas_bounds: skipped: no nvcc")
        return 0
    bounds, seen, failures = json.loads(BOUNDS.read_text()), set(), []
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(ROOT.glob("src/*/*.cu")):
            for kernel in compile_verbosely(nvcc, source, folder):
                name = function_name(kernel["kernel"])
                seen.add(name)
                print(f"{name} on {kernel['arch']}: " + ", ".join(f"{key} {kernel[key]}" for key in RESOURCES))
                if name not in bounds:
                    failures.append(f"{name} has no bound. Add it to {BOUNDS.relative_to(ROOT)}")
                    continue
                failures += [f"{name} on {kernel['arch']}: {key} {kernel[key]}, bound {bounds[name][key]}"
                             for key in RESOURCES if int(kernel[key]) > bounds[name][key]]
    failures += [f"{name} is not a kernel. Remove it from {BOUNDS.relative_to(ROOT)}" for name in bounds.keys() - seen]
    for failure in failures:
        print(f"ptxas_bounds: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
