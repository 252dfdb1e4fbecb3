"""Checks ONNX files, runs them in ONNX Runtime, and prints as JSON how far they are from the expected logits.

Run: python tests/oracles/run_onnx.py FOLDER

FOLDER has NAME.onnx and NAME.safetensors, with "images1" and "logits1" for one image, "images3" and "logits3" for
three; of a language model the tokens of sequences.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime


def read_safetensors(path):
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:begin])
    tensors.pop("__metadata__", None)
    types = {"F32": np.float32, "I64": np.int64}
    return {name: np.frombuffer(data[begin:][slice(*entry["data_offsets"])], types[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry in tensors.items()}


found = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape[0] == session.get_outputs()[0].shape[0] == "batch", path
    assert session.get_modelmeta().custom_metadata_map == {"model": path.stem}, path
    tensors = read_safetensors(path.with_suffix(".safetensors"))
    rows = found[path.stem] = {}
    for count in "1", "3":
        (logits,) = session.run(["logits"], {session.get_inputs()[0].name: tensors["images" + count]})
        expected = tensors["logits" + count]
        assert logits.shape == expected.shape, (path, logits.shape, expected.shape)
        assert list(expected.shape[1:]) == session.get_outputs()[0].shape[1:], path
        rows[count] = {"scale": float(abs(expected).max()), "worst": float(abs(logits - expected).max())}
json.dump(found, sys.stdout)
