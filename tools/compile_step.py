#!/usr/bin/env python3
"""Compiles a recipe's training step ahead of time: the package that train.compiled names.

Forward and backward of the model become machine code (torch.export, then Inductor), which saturate runs on its own
parameters, without Python. docs/compiled_step.md says when that pays.

  tools/compile_step.py recipes/cifar10.toml --set train.batch=256 --out step.pt2
  build/saturate train recipes/cifar10.toml --set train.batch=256 --set train.compiled=step.pt2

Needs a C++ compiler, and a Python with saturate's torch, and torchvision for its models: this one, or --python's.
"""

import argparse
import contextlib
import copy
import dataclasses
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMAT = 2
STARTED_OVER = "SATURATE_COMPILE_STEP_UNDER"  # the --python for which this process was started
# The recipe keys that a package depends on. Batch and accumulation are covered by "part".
SETTINGS = (
    "model.name", "model.width", "model.classes", "model.dropout", "augment.size", "precision.mode",
    "train.task", "train.loss", "train.label_smoothing", "train.device",
    "train.channels_last",  # true without "channels_last" in debug.off
)
TYPES = {"bf16": "bfloat16", "fp16": "float16"}  # by precision.mode; float32 otherwise
# Processor features that -march=native may use, as named in /proc/cpuinfo.
FEATURES = re.compile(r"(s?sse|avx|amx|fma|f16c|bmi|abm|popcnt|movbe|gfni|vaes|vpcl)")


def fail(message):
    sys.exit(f"compile_step: error: {message}")


def find_saturate():
    """The command of this checkout, of the prefix or environment where this is installed, or in PATH."""
    above = ROOT.parent.parent  # a prefix, or a wheel's package in lib/python3.11/site-packages
    prefix = above.parents[3] if (above / "torch_version").exists() else above
    here = [str(place / "saturate") for place in (ROOT / "build", prefix / "bin")]
    return next(filter(os.path.exists, here), shutil.which("saturate") or here[0])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", metavar="RECIPE.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="overrides the recipe; may be repeated")
    parser.add_argument("--out", required=True, metavar="STEP.pt2")
    parser.add_argument("--processes", type=int, default=1, metavar="N",
                        help="number of processes of the run, which divide each batch (default %(default)s)")
    parser.add_argument("--module", metavar="FILE.py:FACTORY",
                        help="FACTORY(classes, size, width) returns the torch.nn.Module, with the model's "
                             "parameter names; size is an integer, (height, width), or of tensors a list, "
                             "the shape of a sample")
    parser.add_argument("--python", default=os.environ.get("SATURATE_PYTHON"),
                        help="the Python to compile with (default $SATURATE_PYTHON, or this one)")
    parser.add_argument("--double", action="store_true", help="computes in fp64, for comparison; no run accepts it")
    parser.add_argument("--saturate", default=find_saturate(), help="the command (default %(default)s)")
    return parser.parse_args()


def go_on_with(python):
    """Starts again under `python`, unless this process runs under it already."""
    # sys.executable is never a wrapper such as pyenv's shim: restarting once is enough.
    if os.environ.pop(STARTED_OVER, None) == python:
        return
    if python and os.path.realpath(python) == os.path.realpath(sys.executable) and (
            os.path.dirname(os.path.abspath(python)) == os.path.dirname(sys.executable)):
        return
    if python:
        os.environ[STARTED_OVER] = python
        try:
            os.execv(python, [python, __file__, *sys.argv[1:], f"--python={python}"])
        except OSError as error:
            fail(f"cannot run --python {python}: {error.strerror}")


def output_of_saturate(args, *more):
    try:
        shown = subprocess.run([args.saturate, *more], capture_output=True, text=True)
    except OSError as error:
        fail(f"cannot run {args.saturate}: {error.strerror}. Build it with make build, or give it with --saturate")
    if shown.returncode != 0:
        sys.exit(shown.stderr.strip() or 1)
    return shown.stdout


def import_torch(args):
    try:
        import torch
    except ImportError as error:
        fail(f"{sys.executable} cannot import torch ({error}). Give a Python that can with --python")
    found = re.search(r"^libtorch +(\S+)", output_of_saturate(args, "env"), re.MULTILINE)
    built_with = found.group(1) if found else fail(f"{args.saturate} env prints no version of libtorch. Is it saturate?")
    if minor_of(torch.__version__) != minor_of(built_with):
        fail(f"{sys.executable} has torch {torch.__version__}, but saturate is built with {built_with}. "
             f"Give a Python that has torch {minor_of(built_with)} with --python")
    return torch


def minor_of(version):
    """2.15 of 2.15.1+cpu. Within a minor release code for one version runs on the others."""
    return ".".join(version.split(".")[:2])


@dataclasses.dataclass
class Samples:
    """Shapes and types (of torch, by name) of a sample's input and target."""
    images: bool
    input: tuple
    target: tuple


def resolved_recipe(args):
    """The recipe with all its keys, and its Samples."""
    settings = [part for setting in (*args.set, "train.compiled=") for part in ("--set", setting)]
    text = output_of_saturate(args, "train", args.recipe, "--print-recipe", *settings)
    try:
        from tomllib import loads
    except ImportError:
        fail(f"{sys.executable} is older than Python 3.11. Give a later one with --python")
    recipe = loads(text)
    # "# samples: input float32 [10], target int64 []" where they are tensors.
    last = text.splitlines()[-1]
    found = re.findall(r"(?:input|target) (\w+) (\[[\d, ]*\])", last)
    if found and last.endswith("of varying length"):
        fail("the samples vary in length, and a compiled step is made for one shape. Train without train.compiled")
    if found:
        return recipe, Samples(False, *((json.loads(shape), kind) for kind, shape in found))
    size = recipe["augment"]["size"]
    if not isinstance(size, int) and isinstance(size[0], str):
        fail("augment.size changes by epoch, and a compiled step is made for one size. Set one size")
    sides = [size, size] if isinstance(size, int) else size
    labels = sides if recipe["train"]["task"] == "segment" else []
    return recipe, Samples(True, ([3, *sides], "float32"), (labels, "int64"))


def value_of(recipe, key):
    if key == "train.channels_last":
        return "channels_last" not in recipe["debug"]["off"]
    section, name = key.split(".")
    return recipe[section][name]


def size_of(recipe, samples):
    """As --module's FACTORY gets it: a list only of tensors."""
    if not samples.images:
        return samples.input[0]
    size = recipe["augment"]["size"]
    return size if isinstance(size, int) else tuple(size)


def make_module(args, recipe, size):
    classes, width = recipe["model"]["classes"], recipe["model"]["width"]
    from model_twins import make_twin, make_users_module

    try:
        if args.module:
            return make_users_module(args.module, classes, size, width)
        return make_twin(recipe["model"]["name"], classes, size, width, dropout=recipe["model"]["dropout"])
    except LookupError as error:
        fail(f"{error}. Give your model in Python with --module FILE.py:FACTORY")


def make_step(torch, module, recipe):
    """The module to export: (images, labels, factor) to (loss * factor, loss, logits)."""
    from model_twins import loss_twin

    loss_of, device = loss_twin(recipe), recipe["train"]["device"]
    reduced = TYPES.get(recipe["precision"]["mode"])

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = module

        def forward(self, images, labels, factor):
            if reduced:
                with torch.autocast(device, getattr(torch, reduced)):
                    logits = self.model(images)
            else:
                logits = self.model(images)
            if logits.dtype != torch.float64:
                logits = logits.float()
            loss = loss_of(logits, labels)
            return loss * factor, loss.detach(), logits.detach()

    return Step()


def prepare(torch, module, recipe):
    """Sets device, memory order and frozen parameters, as saturate does."""
    module.train()
    module.to(recipe["train"]["device"])
    if value_of(recipe, "train.channels_last"):
        for tensor in (*module.parameters(), *module.buffers()):  # as Model::to(), also of models that take tensors
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    for name, parameter in module.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in recipe["optimizer"]["freeze"]):
            parameter.requires_grad_(False)


def micro_batch_of(recipe, processes):
    """The micro-batch size, which must be the same for all micro-batches."""
    count = recipe["train"]["accumulate"] * processes
    if recipe["train"]["batch"] % count:
        fail(f"train.batch is not a multiple of {count} (train.accumulate times --processes), so that "
             "micro-batches would differ in size. Change train.batch")
    return recipe["train"]["batch"] // count


def example_inputs(torch, recipe, samples, micro_batch, dtype):
    device, classes = recipe["train"]["device"], recipe["model"]["classes"]
    is_channels_last = samples.images and value_of(recipe, "train.channels_last")
    order = torch.channels_last if is_channels_last else torch.contiguous_format

    def drawn(shape, kind):
        if kind == "float32":
            return torch.randn(micro_batch, *shape, device=device, dtype=dtype)
        below = 2 if recipe["train"]["task"] == "multilabel" else classes
        return torch.randint(below, (micro_batch, *shape), device=device)

    images, labels = drawn(*samples.input), drawn(*samples.target)
    return images.contiguous(memory_format=order), labels, torch.ones((), device=device, dtype=dtype)


def draws_random(node, tag):
    """Whether an operator of an exported program draws random numbers. Fused attention has the tag for its dropout,
    even if dropout is 0."""
    if tag not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments
    for place, argument in enumerate(arguments):
        if argument.name != "dropout_p":
            continue
        given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
        return given != 0.0
    return True


def export(torch, step, inputs):
    """The joint program, and the names of the parameters whose gradients it returns, in order."""
    from torch.export.experimental import _export_forward_backward
    from torch.export.graph_signature import InputKind, OutputKind
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # torch 2.11 exports the CPU's fused attention with wrong gradients: backward gets the weights of attention
    # instead of the logarithms of their sums. The formula written out is exported correctly.
    with sdpa_kernel(SDPBackend.MATH) if inputs[0].device.type == "cpu" else contextlib.nullcontext():
        joint = _export_forward_backward(torch.export.export(step, inputs), joint_loss_index=0)
    for node in joint.graph.nodes:
        if draws_random(node, torch.Tag.nondeterministic_seeded):
            fail(f"the model draws random numbers ({node.target}), for which a compiled step cannot use "
                 "the recipe's seed. Set model.dropout=0 if dropout is the reason")
    for spec in joint.graph_signature.input_specs:
        if spec.kind == InputKind.CONSTANT_TENSOR:
            fail(f"the model has a constant tensor ({spec.target}). Make it a buffer")
    names = [spec.target for spec in joint.graph_signature.output_specs
             if spec.kind == OutputKind.GRADIENT_TO_PARAMETER]
    return joint, [name.removeprefix("model.") for name in names]


def check(torch, joint, step, inputs, reduced):
    """Fails unless the joint program's gradients equal autograd's, before it is compiled."""
    from torch.export.graph_signature import InputKind, OutputKind

    twin, left = copy.deepcopy(step), iter(inputs)
    with torch.no_grad():
        for parameter in twin.parameters():  # a last layer of zeros would hide errors in all layers before it
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    tensors = {name: tensor.detach().clone()
               for name, tensor in [*twin.named_parameters(), *twin.named_buffers()]}
    given = [next(left) if spec.kind == InputKind.USER_INPUT else tensors[spec.target]
             for spec in joint.graph_signature.input_specs]
    with torch.no_grad():
        outputs = joint.graph_module(*given)
    twin(*inputs)[0].backward()
    wanted, wrong = 0.0, 0.0
    for spec, found in zip(joint.graph_signature.output_specs, outputs):
        if spec.kind == OutputKind.GRADIENT_TO_PARAMETER:
            parameter = twin.get_parameter(spec.target)
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            wanted += float(gradient.double().square().sum())
            wrong += float((gradient - found).double().square().sum())
    # Rounding alone gives about 1e-6 in fp32, and up to 0.02 in bf16 in deep networks.
    differ = (wrong / max(wanted, 1e-30)) ** 0.5
    if not differ <= (0.1 if reduced else 1e-3):
        fail(f"the gradients of torch.export differ from autograd's by {differ:.1e} of their norm. "
             "Train without train.compiled")


def compile_library(torch, joint, folder):
    """The compiled shared object, as bytes."""
    from torch.export.pt2_archive._package import PT2ArchiveReader

    path = os.path.join(folder, "compiled.pt2")
    torch._inductor.aoti_compile_and_package(joint, package_path=path, inductor_configs={
        # Otherwise small parameters and counters become literals with their present values.
        "always_keep_tensor_constants": True,
        "joint_graph_constant_folding": False,
        "cpp.dynamic_threads": True,  # the number is train.threads of the run
        "aot_inductor.package_constants_in_so": False,  # saturate passes its own
        "aot_inductor.link_libtorch": False,  # saturate has loaded it
        "aot_inductor.embed_kernel_binary": True,
    })
    archive = PT2ArchiveReader(path)
    return archive.read_bytes(next(name for name in archive.get_file_names() if name.endswith(".so")))


def describe(torch, recipe, samples, micro_batch, module, gradients, library, source):
    kinds = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half",
             torch.bfloat16: "BFloat16", torch.int64: "Long", torch.int32: "Int", torch.bool: "Bool"}

    def listed(tensors):
        return [{"name": name, "shape": list(tensor.shape), "strides": list(tensor.stride()),
                 "type": kinds[tensor.dtype]} for name, tensor in tensors]

    gpu = {}
    if recipe["train"]["device"] == "cuda":  # the machine code runs only on this architecture
        gpu["architecture"] = "sm_{}{}".format(*torch.cuda.get_device_capability())
    shapes = {} if samples.images else {
        name: {"shape": shape, "type": kinds[getattr(torch, kind)]}
        for name, (shape, kind) in (("input", samples.input), ("target", samples.target))}
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), ":")
    return {
        "format": FORMAT,
        "torch": torch.__version__.split("+")[0],
        "processor": sorted(flag for flag in flags.split(":")[1].split() if FEATURES.match(flag)),
        **gpu,
        **shapes,
        "source": source,
        "part": micro_batch,
        "settings": {key: value_of(recipe, key) for key in SETTINGS},
        "parameters": listed(module.named_parameters()),
        "buffers": listed(module.named_buffers()),
        "gradients": gradients,
        "checksum": zlib.crc32(library),
    }


def write_package(about, library, out, folder):
    from torch.export.pt2_archive._package import PT2ArchiveWriter

    path = os.path.join(folder, "step.pt2")
    with PT2ArchiveWriter(path) as archive:
        archive.write_bytes("data/aotinductor/model/step.so", library)
        archive.write_string("extra/saturate.json", json.dumps(about, indent=1))
    os.replace(path, out)


def main():
    args = arguments()
    if args.processes < 1:
        fail(f"--processes {args.processes} must be 1 or more")
    if not args.out.endswith(".pt2"):
        fail(f"--out {args.out} must end in .pt2")
    go_on_with(args.python)
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch's warnings about its own code
    torch = import_torch(args)
    recipe, samples = resolved_recipe(args)
    if recipe["precision"]["mode"].endswith(("-o2", "-o3")):
        fail(f"precision.mode {recipe['precision']['mode']} cannot be compiled. Use bf16 or fp16")
    micro_batch = micro_batch_of(recipe, args.processes)
    module = make_module(args, recipe, size_of(recipe, samples))
    if args.double:
        module.double()
    prepare(torch, module, recipe)
    step = make_step(torch, module, recipe)
    inputs = example_inputs(torch, recipe, samples, micro_batch, torch.float64 if args.double else torch.float32)
    joint, gradients = export(torch, step, inputs)
    check(torch, joint, step, inputs, recipe["precision"]["mode"] in TYPES)
    target = pathlib.Path(args.out).resolve().parent
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".compile_step-") as folder:
        library = compile_library(torch, joint, folder)
        source = args.module or f"{recipe['model']['name']} of tools/model_twins.py"
        about = describe(torch, recipe, samples, micro_batch, module, gradients, library, source)
        write_package(about, library, args.out, folder)
    print(f"{args.out}: {recipe['model']['name']}, micro-batches of {about['part']} samples, "
          f"{recipe['precision']['mode']}, {len(gradients)} gradients, {len(library) >> 10} KiB of code")


if __name__ == "__main__":
    main()
