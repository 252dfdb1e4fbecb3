#!/usr/bin/env python3
"""Writes a model that saturate trained as a program of torch.export, for torch.export.load().

`saturate export RUN --format pt2` runs this with $SATURATE_PYTHON or python3, which must have torch, and torchvision
for its models. For a model of your own, write its weights first:

  saturate export RUN --format safetensors --out model.safetensors
  tools/export_pt2.py model.safetensors --module FILE.py:FACTORY --out model.pt2

The weights are put into the model's twin in Python (tools/model_twins.py), which is exported for any number of images.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import sys
import tempfile

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
         "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}


sys.dont_write_bytecode = True  # an installation stays as it was installed


def fail(what, where, remedy):
    """The last line, which saturate export shows as its own error."""
    sys.exit(f"{what} ({where}). {remedy}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", metavar="MODEL.safetensors", help="as `saturate export --format safetensors` writes it")
    parser.add_argument("--out", required=True, metavar="MODEL.pt2")
    parser.add_argument("--module", metavar="FILE.py:FACTORY",
                        help="FACTORY(classes, size, width) returns the torch.nn.Module, with the model's names; "
                             "size is an integer, or (height, width) of images that are not square")
    return parser.parse_args()


def import_torch():
    try:
        import torch
    except ImportError as error:
        fail(f"{sys.executable} cannot import torch: {error}", "--format pt2",
             "Set SATURATE_PYTHON to a Python that has torch")
    return torch


def read_safetensors(torch, path):
    """Tensors by name, and the file's metadata. The safetensors package is not needed for this."""
    data = bytearray(pathlib.Path(path).read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = getattr(torch, TYPES[entry["dtype"]])
        # A copy: an offset in the file need not be a multiple of the element's size.
        values = torch.frombuffer(data[begin + first:begin + last], dtype=dtype) if last > first else torch.empty(0, dtype=dtype)
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


def make_module(given, name, classes, size, width):
    if not given:
        from model_twins import make_twin

        try:
            return make_twin(name, classes, size, width)
        except LookupError as error:
            fail(str(error), "--format pt2",
                 "Export safetensors, and run tools/export_pt2.py --module FILE.py:FACTORY with your own twin")
    path, _, factory = given.rpartition(":")
    if not pathlib.Path(path).is_file():
        fail(f"there is no file {path!r}", f"--module {given}", "Write FILE.py:FACTORY")
    spec = importlib.util.spec_from_file_location("user_module", path)
    user = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(user)
    if not hasattr(user, factory):
        fail(f"{path} has no {factory}", f"--module {given}", "Name a function of the file")
    return getattr(user, factory)(classes, size, width)


def export(torch, module, size):
    """The program, for any number of images; fails unless it computes the module's logits."""
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.linspace(-2, 2, 3 * 3 * height * width).reshape(3, 3, height, width)
    program = torch.export.export(module, (images[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with torch.no_grad():
        for count in 1, 3:
            expected, found = module(images[:count]), program.module()(images[:count])
            if (found - expected).abs().max() > 1e-4 * expected.abs().max():
                fail(f"the exported program does not compute the model's logits of {count} images", "--format pt2",
                     "Use --format torchscript")
    return program


def main():
    args = arguments()
    torch = import_torch()
    tensors, metadata = read_safetensors(torch, args.weights)
    if not {"model", "classes", "image_size", "width"} <= metadata.keys():
        fail("it is not a file of saturate export --format safetensors", args.weights, "Export the run again")
    classes = int(metadata.get("outputs") or len(json.loads(metadata["classes"])))
    sides = tuple(map(int, metadata["image_size"].split("x")))  # "224", or "224x320", height first
    size = sides[0] if len(sides) == 1 else sides
    module = make_module(args.module, metadata["model"], classes, size, float(metadata["width"])).eval()
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        fail(f"the twin in Python has other weights: {' '.join(str(error).split())[:500]}", args.weights,
             "Export the run again, or make the twin like the model")
    program = export(torch, module, size)
    target = pathlib.Path(args.out).resolve()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export_pt2-") as folder:
        path = os.path.join(folder, "model.pt2")
        torch.export.save(program, path, extra_files={"saturate.json": json.dumps(metadata)})
        os.replace(path, target)


if __name__ == "__main__":
    main()
