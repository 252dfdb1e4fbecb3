"""The command `saturate`, run on the torch that pip has installed."""

import ctypes
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
TORCH = (FOLDER / "torch_version").read_text().strip()  # "2.15", with which the command was built


def fail(text):
    sys.stderr.write(f"saturate: error: {text}\n")
    sys.exit(2)


def torch_folder():
    """Found without importing torch, since an import takes seconds."""
    remedy = f"Run pip install 'torch=={TORCH}.*'"
    try:
        version = importlib.metadata.version("torch")
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        fail(f"torch is not installed for {sys.executable}. {remedy}")
    if not version.startswith(TORCH + "."):
        fail(f"torch is {version}, and this saturate_train is built for {TORCH}. {remedy}")
    return pathlib.Path(spec.origin).parent


def has_driver():
    """Whether NVIDIA's driver loads. find_library() also finds the toolkit's stub, which a program cannot use."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def main():
    torch = torch_folder()
    program = FOLDER / "bin" / "saturate-cuda"
    if not (program.exists() and has_driver() and (torch / "lib/libtorch_cuda.so").exists()):
        program = FOLDER / "bin" / "saturate"
    if torch.parent.resolve() != FOLDER.parent:  # in another folder of packages: the program's RUNPATH does not lead there
        folders = [torch / "lib", *torch.parent.glob("nvidia/*/lib")]
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = ":".join([str(folder) for folder in folders] + ([before] if before else []))
    os.environ.setdefault("SATURATE_PYTHON", sys.executable)  # for saturate export --format pt2
    try:
        os.execv(program, ["saturate", *sys.argv[1:]])
    except OSError as error:
        fail(f"cannot run {program}: {error.strerror}. Install the package again")
