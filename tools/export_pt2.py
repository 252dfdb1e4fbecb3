#!/usr/bin/env python3
"""Writes a model that saturate trained as a program of torch.export, for torch.export.load().

`saturate export RUN --format pt2` runs this with $SATURATE_PYTHON or python3, which must have torch, and torchvision
for its models. For a model of your own, write its weights first:

  saturate export RUN --format safetensors --out model.safetensors
  tools/export_pt2.py model.safetensors --module FILE.py:FACTORY --out model.pt2

The weights are put into the same model in Python (tools/model_twins.py), which is exported for any number of samples.
"""

import argparse
import json
import math
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
                             "size is an integer, (height, width), or of tensors a list, the shape of a sample")
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
    from model_twins import make_twin, make_users_module

    try:
        return make_users_module(given, classes, size, width) if given else make_twin(name, classes, size, width)
    except LookupError as error:
        fail(str(error), "--format pt2",
             "Export safetensors, and run tools/export_pt2.py --module FILE.py:FACTORY with your model in Python")


def size_of(metadata):
    """As --module's FACTORY gets it: of tensors a list."""
    if "input" in metadata:
        return json.loads(metadata["input"])
    sides = tuple(map(int, metadata["image_size"].split("x")))  # "224", or "224x320", height first
    return sides[0] if len(sides) == 1 else sides


def example_of(torch, size, metadata):
    """Three samples."""
    if isinstance(size, list):
        shape = (3, *size)
    else:
        shape = (3, 3, size, size) if isinstance(size, int) else (3, 3, *size)
    count = math.prod(shape)
    if metadata.get("input_type") == "int64":
        return (torch.arange(count) % int(metadata["outputs"])).reshape(shape)
    return torch.linspace(-2, 2, count).reshape(shape)


def export(torch, module, samples):
    """The program, for any number of samples; fails unless it computes the module's outputs."""
    program = torch.export.export(module, (samples[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with torch.no_grad():
        for count in 1, 3:
            expected, found = module(samples[:count]), program.module()(samples[:count])
            if (found - expected).abs().max() > 1e-4 * expected.abs().max():
                fail(f"the exported program does not compute the model's outputs of {count} samples", "--format pt2",
                     "Use --format torchscript")
    return program


def main():
    args = arguments()
    torch = import_torch()
    tensors, metadata = read_safetensors(torch, args.weights)
    if not {"model", "classes", "width"} <= metadata.keys() or not {"image_size", "input"} & metadata.keys():
        fail("it is not a file of saturate export --format safetensors", args.weights, "Export the run again")
    classes = int(metadata.get("outputs") or len(json.loads(metadata["classes"])))
    size = size_of(metadata)
    module = make_module(args.module, metadata["model"], classes, size, float(metadata["width"])).eval()
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        fail(f"the model in Python has other weights: {' '.join(str(error).split())[:500]}", args.weights,
             "Export the run again, or make the model in Python like the one that was trained")
    program = export(torch, module, example_of(torch, size, metadata))
    target = pathlib.Path(args.out).resolve()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export_pt2-") as folder:
        path = os.path.join(folder, "model.pt2")
        torch.export.save(program, path, extra_files={"saturate.json": json.dumps(metadata)})
        os.replace(path, target)


if __name__ == "__main__":
    main()
