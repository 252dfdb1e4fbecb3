"""Makes a folder with all that a check needs on a machine that has only a GPU and a Python with torch."""

import lzma
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

LIMIT = 56 << 20  # bytes, for the archive: 64 MiB can be copied to the machine, and files that git tracks take 6
FILES = ["recipes", "ladders", "tools/gpu-check", "tools/gpu_check", "tools/peers", "tools/model_twins.py",
         "tools/tensor_twins.py",
         "tools/compile_step.py", "tests/goldens/image/inputs", "bench/python_faults.py", "bench/planted_faults.py",
         "bench/loops", "python/tests/test_gpu.py", "python/tests/sample_sets.py"]
ARCHIVES = ["cifar10-train.tar", "cifar10-test.tar"]
# Libraries of a bare Ubuntu 24.04 or Debian 12.
SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|z))\.so\.")
# `torch` is a link to python3's package on that machine; the wheels that it needs are beside it.
RPATH = ":".join(["$ORIGIN/lib", "$ORIGIN/torch/lib", "$ORIGIN/torch/../nvidia/cu13/lib",
                  "$ORIGIN/torch/../nvidia/nccl/lib"])


def output_of(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def needed_by(path):
    return output_of("patchelf", "--print-needed", path).split()


def libraries_to_take(needs, places, torch_names):
    """{name: path} of the libraries that programs need, except the system's and torch's. `needs`: names by path;
    `places`: paths by name."""
    taken, waiting = {}, [(program, name) for program in list(needs) for name in needs[program]]
    while waiting:
        user, name = waiting.pop()
        if name in taken or name in torch_names or SYSTEM.match(name):
            continue
        if name not in places:
            sys.exit(f"gpu-check: {name}, which {user} needs, is not on this machine. Install it, and stage again")
        taken[name] = places[name]
        waiting += [(name, below) for below in needed_by(places[name])]
    return taken


def torch_libraries(folder):
    """Names of torch's libraries, and of the libraries that these need."""
    libraries = list((folder / "lib").glob("lib*.so*"))
    return {library.name for library in libraries} | {name for library in libraries for name in needed_by(library)}


def places_of(programs):
    """Paths of the libraries of `programs` on this machine, by name."""
    listed = "".join(output_of("ldd", program) for program in programs)
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE))


def set_rpath(program):
    # The old RPATH, which also applies to the libraries' own dependencies.
    subprocess.run(["patchelf", "--force-rpath", "--set-rpath", RPATH, program], check=True)


def use_instead(lib, programs):
    """Has `programs` and the libraries in `lib` use those of a wheel (libfmt-0a1b2c3d.so.9.1.0) and removes the others
    of the same name (libfmt.so.9)."""
    names = {path.name: re.sub(r"-[0-9a-f]{8}(?=\.so)", "", path.name) for path in lib.iterdir()}
    hashed = {plain: name for name, plain in names.items() if name != plain}
    instead = {name: other for name in names.keys() - set(hashed.values()) for plain, other in hashed.items()
               if plain == name or plain.startswith(name + ".")}
    for name in instead:
        (lib / name).unlink()
    for user in [*programs, *lib.iterdir()]:
        for name in instead.keys() & set(needed_by(user)):
            subprocess.run(["patchelf", "--replace-needed", name, instead[name], user], check=True)


def take_command(wheel, folder, programs):
    """Replaces the command by that of a wheel, and the libraries of the programs by those inside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if "saturate_train/bin/saturate-cuda" not in names:
            sys.exit(f"gpu-check: {wheel} is built without CUDA. Build it with make wheels, where nvcc is")
        (folder / "saturate").write_bytes(archive.read("saturate_train/bin/saturate-cuda"))
        for name in names:
            if name.startswith("saturate_train.libs/"):
                (folder / "lib" / pathlib.Path(name).name).write_bytes(archive.read(name))
    (folder / "saturate").chmod(0o755)
    set_rpath(folder / "saturate")
    use_instead(folder / "lib", [folder / name for name in programs])


def copy_programs(programs, folder, root):
    (folder / "lib").mkdir()
    version = programs["saturate"].with_name("torch_version")
    if not version.exists():
        sys.exit(f"gpu-check: {version.parent} has no torch_version, which CMake writes. Build it again")
    shutil.copy(version, folder)
    torch = pathlib.Path(output_of("env", f"SATURATE_TORCH_VERSION={version.read_text().strip()}",
                                   root / "tools/find_torch.sh").strip())
    needs = {path: needed_by(path) for path in programs.values()}
    if "libtorch_cuda.so" not in needs[programs["saturate"]]:
        sys.exit(f"gpu-check: {programs['saturate']} is built without CUDA. Build it with the preset gpu-machine")
    libraries = libraries_to_take(needs, places_of(programs.values()), torch_libraries(torch))
    for name, path in libraries.items():
        shutil.copy(pathlib.Path(path).resolve(), folder / "lib" / name)
    for name, path in programs.items():
        target = folder / name
        shutil.copy(path, target)
        subprocess.run(["strip", "--strip-unneeded", target], check=True)
        set_rpath(target)


def copy_files(folder, root):
    for name in FILES:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_dir():
            shutil.copytree(root / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, target)


def pack_cifar(cifar, folder):
    (folder / "cifar").mkdir()
    for name in ARCHIVES:
        with open(cifar / name, "rb") as source, lzma.open(folder / "cifar" / f"{name}.xz", "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def sizes(folder):
    """Bytes of each entry of the folder."""
    return {entry.name: sum(path.stat().st_size for path in ([entry] if entry.is_file() else entry.rglob("*"))
                            if path.is_file()) for entry in sorted(folder.iterdir())}


def pack(fresh, folder):
    """Writes the archive beside the folder."""
    archive = folder.with_name(folder.name + ".tar.xz")
    with tarfile.open(archive, "w:xz") as target:
        target.add(fresh, folder.name)
    size = archive.stat().st_size
    print(f"{size / 2**20:7.2f} MiB  {archive.name}")
    if size > LIMIT:
        sys.exit(f"gpu-check: {archive} is larger than {LIMIT >> 20} MiB. Try without --cifar")


def stage(folder, programs, root, cifar, wheel=None, package=None):
    """`programs`: {name: path}. `cifar`: the archives' folder, or None. `wheel`: whose command to take, or None.
    `package`: a wheel of the Python package, or None."""
    for tool in ("patchelf", "strip", "ldd"):
        if not shutil.which(tool):
            sys.exit(f"gpu-check: --stage needs {tool}: run tools/setup.sh --dev")
    is_staged = all((folder / name).is_file() for name in ("torch_version", "saturate", "tools/gpu-check"))
    if folder.exists() and any(folder.iterdir()) and (not is_staged or (folder / ".git").exists()):
        sys.exit(f"gpu-check: {folder} has other contents. Give another folder")
    fresh = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    copy_programs(programs, fresh, root)
    if wheel:
        take_command(wheel, fresh, programs)
    copy_files(fresh, root)
    if package:
        with zipfile.ZipFile(package) as archive:
            archive.extractall(fresh / "package")
    if cifar:
        pack_cifar(cifar, fresh)
    else:
        print("gpu-check: without --cifar, the part cifar will be skipped on the other machine")
    found = sizes(fresh)
    for name, size in found.items():
        print(f"{size / 2**20:7.2f} MiB  {name}")
    print(f"{sum(found.values()) / 2**20:7.2f} MiB  total")
    pack(fresh, folder)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    print(f"gpu-check: {folder} is complete. On the machine with the GPU, run "
          f"{folder.name}/tools/gpu-check --deadline 8.5 --resume --out FOLDER")
