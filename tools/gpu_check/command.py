"""Builds everything for CUDA, runs every GPU test and bench, and writes results/gpu-check-GPU.json and .md.

  tools/gpu-check [--only PART,...] [--jobs REGEX] [--resume] [--build build-cuda] [--python PYTHON] [--cifar FOLDER]
                  [--out results]
  tools/gpu-check --stage [build-gpu-stage] [--build build-gpu-machine] [--built] [--cifar FOLDER]
  tools/gpu-check --merge FILE... [--out results]

Parts:
  tests    the tests that need a GPU, in several processes
  bench    a custom augmentation; copies to the GPU, pinned and pageable; the augmentation kernels of images and volumes
           beside a plain copy of as many bytes
  steps    training steps of three networks in each precision, and of GPT-2 in bf16
  graphs   the same, each step as one CUDA graph; and GPT-2 with a compiled step
  sweeps   settings side by side, and the ladders
  peers    Python on the same GPU (torchvision's augmentation and networks, GPT-2, also with torch.compile, the ladder of
           free gains), each directly after its counterpart, which this part measures too
  python   the tests of the Python package, and faults of a loop that its diagnose has to find
  cifar    CIFAR-10 in two epochs, and with the recipe for speed
Jobs run in order of importance; --deadline 12 should be enough for the important ones. A job is cut off after twice the
time that it should take on an H200. --minutes limits each part, and changes the jobs' limits in proportion. The results
list what was cut off or not run.

Both files are rewritten after every row. Rows already in --out, of the same GPU and commit, stay until they are
measured again; --resume skips what is done. --merge joins the files of several calls.

--stage collects what a machine with a GPU needs in one folder, and in FOLDER.tar.xz of at most 56 MiB: programs built
with nvcc on this machine, which need not have a GPU; the libraries that a bare Ubuntu 24.04 lacks; recipes, peers, and
CIFAR-10 as xz. The command and the Python package are those of wheels, as users install them, which it builds (make
wheels); with --built, the command is the built one.
There, `build-gpu-stage/tools/gpu-check` needs a python3 with the torch that the stage is built with (2.11), but neither
git, nor a network, nor a compiler.

Without a GPU, it compiles what it can (the kernels if there is nvcc), runs the kernels' CPU versions, and writes
nothing.

Exit codes: 0, nothing failed on a GPU (skipped items are listed); 1, something failed; 2, options that cannot be used;
3, no GPU, by nvidia-smi and by `saturate env`; 4, nvidia-smi sees a GPU, but the program does not; 5, no
GPU, and a CPU version failed.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

from gpu_check.check import MINUTES, Check
from gpu_check.jobs import PARTS, Jobs, chosen
from gpu_check.results import Mismatch, Results
from gpu_check.stage import stage

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGED = (ROOT / "saturate").is_file()
PROGRAMS = {"saturate": "saturate", "saturate_tests": "tests/saturate_tests",
            "saturate_gpu_bench": "tests/saturate_gpu_bench", "own_augmentation": "examples/own_augmentation"}
TARGETS = "saturate_command saturate_tests saturate_gpu_bench"
OPTIONAL = ["own_augmentation"]
# The CPU implementations that the GPU tests compare with.
TWINS = ("Feed*:*Mix*:MasterWeights*:GradScaler*:Resident*:Pipeline*:DataParallel*:*Graph*:StreamClock*:"
         "DevicePhases*:Gpu*")
DATA_TWINS = "*Effect*:*Augment*:Finish*:Float16*"


START = time.monotonic()


def gpu_of():
    """By nvidia-smi. `is_sure`: it names one GPU, which is then the program's, and not a part of it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,mig.mode.current", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
        name, driver, memory, *mig = (field.strip() for field in lines[0].split(","))
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None
    return {"name": name, "driver": driver, "memory": memory, "is_sure": len(lines) == 1 and "Enabled" not in mig}


def gpu_by_program(arguments, build):
    """As gpu_of(), of the GPU that the program sees: without nvidia-smi, or if that lists several. The name is torch's,
    if Python has it."""
    python = arguments.python or sys.executable
    if STAGED and not link_torch(python):
        return None
    try:
        facts = env_of([*shlex.split(arguments.under), str(programs_in(build)["saturate"]), "env"])
    except (OSError, subprocess.CalledProcessError):
        return None
    if not sees_gpu(facts):
        return None
    code = "import torch; p = torch.cuda.get_device_properties(0); print(p.name, p.total_memory >> 20, sep='\\n')"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.splitlines()
    name, memory = said if len(said) == 2 else ("GPU of unknown name", 0)
    return {"name": name, "driver": "unknown", "memory": f"{memory} MiB"}


def chosen_gpu(arguments, build):
    listed = gpu_of()
    if listed and listed.pop("is_sure"):
        return listed
    seen = gpu_by_program(arguments, build)
    return {**seen, "driver": listed["driver"]} if seen and listed else seen or listed


def python_with_torch(given):
    """The Python to measure, or None; ends the check if the Python given cannot be measured."""
    python = given or sys.executable
    try:
        subprocess.run([python, "-c", "import torch, torchvision"], capture_output=True, check=True)
        return python
    except (OSError, subprocess.CalledProcessError) as error:
        if given:
            refuse(f"--python {given} cannot import torch and torchvision ({error})")
        return None


def refuse(text):
    print(f"gpu-check: {text}", file=sys.stderr)
    sys.exit(2)


def programs_in(build):
    """{name: path} of the programs that exist."""
    paths = {name: build / (name if STAGED else path) for name, path in PROGRAMS.items()}
    for name, path in paths.items():
        if name not in OPTIONAL and not path.exists():
            refuse(f"no {path}: build it, or give another folder with --build")
    return {name: path for name, path in paths.items() if path.exists()}


def link_torch(python):
    """Links the torch of `python` beside the stage's programs, which load it from there; False if it has none."""
    code = ("import importlib.metadata as m, importlib.util as u, os, sys\n"
            "sys.path = [place for place in sys.path if place]\n"  # not the link, if this folder is the stage
            "print(m.version('torch'), os.path.dirname(u.find_spec('torch').origin))")
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    version, _, folder = found.stdout.strip().partition(" ")
    minor = (ROOT / "torch_version").read_text().rpartition(".")[0]
    if found.returncode != 0 or not version.startswith(f"{minor}."):
        print(f"gpu-check: {python} has torch {version or '(none)'}, but saturate needs {minor}: give another Python "
              "with --python", file=sys.stderr)
        return False
    fresh = ROOT / f"torch.{os.getpid()}"
    fresh.symlink_to(folder)
    fresh.replace(ROOT / "torch")
    return True


def env_of(command):
    """The output of `saturate env`, by name."""
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^(\S.{0,12}?)\s{2,}(.*)$", said, re.MULTILINE))


def sees_gpu(facts):
    return re.match(r"[1-9]\d*$", facts.get("gpus", "")) is not None


def facts_of(command):
    """env_of(); ends the check if the program does not start."""
    try:
        return env_of(command)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        print(f"gpu-check: {command[0]} does not start: {said.strip()[-600:]}", file=sys.stderr)
        sys.exit(4)


def run_twins(build):
    """Without a GPU: whether the CPU versions of the GPU's code pass."""
    print("gpu-check: no NVIDIA GPU here. The following runs on the CPU, and does not test a GPU.", flush=True)
    commands = [[build / "tests/saturate_data_tests", f"--gtest_filter={DATA_TWINS}", "--gtest_brief=1"],
                [build / "tests/saturate_tests", f"--gtest_filter={TWINS}", "--gtest_brief=1"],
                [build / "tests/saturate_gpu_bench", "0.05"]]
    if (build / "examples/own_augmentation").exists():
        commands.append([build / "examples/own_augmentation"])
    return all([subprocess.run([str(part) for part in command], check=False).returncode == 0
                for command in commands])


def build_all(preset, targets=""):
    """Builds the preset, or some targets of it, and the example of an augmentation; returns their folder."""
    build = ROOT / ("build" if preset == "release" else f"build-{preset}")
    subprocess.run(["make", "-C", ROOT, "build", f"PRESET={preset}", f"TARGETS={targets}"], check=True)
    configure = ["cmake", "-S", ROOT / "examples", "-B", build / "examples", "-G", "Ninja", "--log-level=NOTICE",
                 f"-DCMAKE_PREFIX_PATH={build / 'installed'}", "-DSATURATE_COMPONENTS=data"]
    for command in (["cmake", "--install", build, "--prefix", build / "installed"], configure,
                    ["cmake", "--build", build / "examples", "--target", "own_augmentation"]):
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return build


def build_wheels(torch):
    """Returns the wheels of the command for that torch, such as 2.11.0, and of the Python package."""
    subprocess.run(["make", "-C", ROOT, "wheels", f"SATURATE_TORCH_VERSION={torch}"], check=True)
    minor = torch.rpartition(".")[0]
    command, = (ROOT / "dist").glob(f"saturate_train-*+torch{minor}-*.whl")
    package = next((ROOT / "dist").glob("saturate-*-abi3-*.whl"), None)
    if not package:
        print("gpu-check: no Python 3.12 or later has headers here, so the part python will be skipped")
    return command, package


def has_nvcc():
    return pathlib.Path("/usr/local/cuda/bin/nvcc").exists() or shutil.which("nvcc") is not None


def parse():
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="PART,...", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--jobs", default="", metavar="REGEX",
                        help="only jobs whose name matches, such as 'gpt2|fp16'")
    parser.add_argument("--resume", action="store_true", help="skip what --out has")
    parser.add_argument("--minutes", type=float, default=MINUTES,
                        help=f"limit of each part ({MINUTES}); the limits of jobs change in proportion")
    parser.add_argument("--deadline", type=float, metavar="MINUTES", help="limit of the whole call")
    parser.add_argument("--build", type=pathlib.Path, help="folder of programs that are built already")
    parser.add_argument("--python", help="one with the torch of the build, and torchvision for peers (default: this Python)")
    parser.add_argument("--cifar", type=pathlib.Path, help="folder of cifar10-train.tar and cifar10-test.tar (or .xz)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results")
    parser.add_argument("--under", default="", metavar="COMMAND",
                        help="run the programs under it, such as 'compute-sanitizer --tool memcheck'")
    parser.add_argument("--stage", nargs="?", type=pathlib.Path, const=ROOT / "build-gpu-stage", metavar="FOLDER")
    parser.add_argument("--built", action="store_true",
                        help="for --stage: the command as built, not a wheel's, and no Python package")
    parser.add_argument("--wheel", type=pathlib.Path, metavar="FILE",
                        help="for --stage: an existing wheel of the command, with CUDA")
    parser.add_argument("--package", type=pathlib.Path, metavar="FILE",
                        help="for --stage: an existing wheel of the Python package, for the part python")
    parser.add_argument("--merge", nargs="+", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    arguments.only = [part for text in arguments.only or [",".join(PARTS)] for part in text.split(",")]
    if unknown := set(arguments.only) - set(PARTS):
        parser.error(f"--only {','.join(sorted(unknown))}: parts are {', '.join(PARTS)}")
    try:
        arguments.jobs = re.compile(arguments.jobs)
    except re.error as error:
        parser.error(f"--jobs {arguments.jobs}: {error}")
    names = [job.name for _, job in chosen(Jobs(None, ROOT, None, arguments.cifar, 0, False).all(), arguments.only)]
    if not any(map(arguments.jobs.search, names)):
        parser.error(f"--jobs {arguments.jobs.pattern}: no job of these parts. Jobs are {'; '.join(names)}")
    for option, file in (("--wheel", arguments.wheel), ("--package", arguments.package)):
        if file and arguments.built:
            parser.error(f"{option} and --built exclude each other")
        if file and not file.is_file():
            parser.error(f"{option} {file}: there is no such file. Without the option, --stage builds one")
    if arguments.cifar is None and STAGED and (ROOT / "cifar").is_dir():
        arguments.cifar = ROOT / "cifar"
    if arguments.cifar and not any((arguments.cifar / f"cifar10-train.tar{end}").exists() for end in ("", ".xz")):
        parser.error(f"--cifar {arguments.cifar}: there is no cifar10-train.tar")
    return arguments


def merge(arguments):
    first = json.loads(arguments.merge[0].read_text(encoding="utf-8"))
    results = Results(arguments.out, first["host"], first["commit"])
    try:
        for path in arguments.merge:
            results.take(path)
    except Mismatch as error:
        refuse(f"--merge: {error}")
    results.save()
    print(f"gpu-check: wrote {results.path} and .md")


def open_results(arguments, gpu, facts):
    host = {"gpu": gpu, "cpu": facts.get("cpu"), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}
    results = Results(arguments.out, host, facts["commit"])
    if results.path.exists():
        try:
            results.take(results.path)
        except Mismatch as error:
            print(f"gpu-check: {error}: starting again")
    results.save()
    return results


def run(arguments, build, gpu):
    """The exit code."""
    under = shlex.split(arguments.under)
    programs = programs_in(build)
    if STAGED and not link_torch(arguments.python or sys.executable):
        return 2
    facts = facts_of([*under, str(programs["saturate"]), "env"])
    if not sees_gpu(facts):
        print(f"gpu-check: nvidia-smi sees {gpu['name']}, and saturate does not (gpus: {facts.get('gpus')}). "
              f"Try `{programs['saturate']} env`, and python3 -c 'import torch; torch.cuda.init()'", file=sys.stderr)
        return 4
    results = open_results(arguments, gpu, facts)
    python = arguments.python or sys.executable
    if "peers" in arguments.only:
        results.begin("peers")
        if not python_with_torch(arguments.python):
            results.note("skipped", "peers", "no Python with torch and torchvision; give one with --python")
            arguments.only = [part for part in arguments.only if part != "peers"]
    check = Check(results, programs, arguments.minutes, arguments.deadline, under, START)
    signal.signal(signal.SIGTERM, lambda *_: (check.stop(), os._exit(143)))
    memory_mib = int(re.match(r"\d*", gpu["memory"]).group() or 0)
    jobs = Jobs(check, ROOT, python, arguments.cifar, memory_mib, arguments.resume)
    for part, job in chosen(jobs.all(), arguments.only):
        is_done = arguments.resume and job.name in results.content["done"]
        if arguments.jobs.search(job.name) and not is_done:
            with check.job(part, job.name, job.seconds):
                job.run()
    minutes = ", ".join(f"{part} {seconds / 60:.1f}" for part, seconds in check.used.items())
    print(f"gpu-check: wrote {results.path} and .md, in minutes: {minutes}; tools/performance_page.py adds them "
          "to its page")
    return 1 if results.failed() else 0


def main():
    arguments = parse()
    if arguments.merge:
        return merge(arguments)
    if arguments.stage:
        if not has_nvcc() and not (arguments.build and (arguments.built or arguments.wheel and arguments.package)):
            refuse("--stage needs nvcc; or --build with programs built with it, and --built, or --wheel and --package")
        build = (arguments.build or build_all("gpu-machine", TARGETS)).resolve()
        wheel, package = arguments.wheel, arguments.package
        if not arguments.built and not (wheel and package):
            made = build_wheels((build / "torch_version").read_text().strip())
            wheel, package = wheel or made[0], package or made[1]
        return stage(arguments.stage.resolve(), programs_in(build), ROOT, arguments.cifar, wheel, package)
    if STAGED:
        build = ROOT
    else:
        if not has_nvcc() and not arguments.build:
            print("gpu-check: no nvcc, the kernels are not compiled", flush=True)
        build = (arguments.build or build_all("cuda" if has_nvcc() else "release")).resolve()
    gpu = chosen_gpu(arguments, build)
    if gpu:
        return run(arguments, build, gpu)
    if STAGED:
        print("gpu-check: no GPU here; nothing was written")
        return 3
    passed = run_twins(build)
    print(f"gpu-check: no GPU; the CPU versions {'passed' if passed else 'FAILED'}; nothing was written")
    return 3 if passed else 5
