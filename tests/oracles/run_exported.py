"""Runs files of `saturate export`: prints logits as JSON, of the program alone and of the weights in
the same model in Python (null if this Python has no safetensors).

Run: python tests/oracles/run_exported.py MODEL.pt MODEL.safetensors SIZE   (torch 2.11; app_python_test.cpp does)
"""

import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from model_twins import make_twin  # noqa: E402


def images(count, size):
    """Numbers that float32 represents exactly."""
    return (torch.arange(count * 3 * size * size) % 17).float().div(8).sub(1).reshape(count, 3, size, size)


def twin_of(path, size):
    """The model that the file's metadata name, with its tensors, all of which must be used."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    model = make_twin(about["model"], len(json.loads(about["classes"])), size, 1)
    model.load_state_dict(tensors)
    return model.eval()


def main():
    script, weights, size = sys.argv[1:]
    batch, logits = images(3, int(size)), {"safetensors": None}
    with torch.no_grad():
        logits["torchscript"] = torch.jit.load(script)(batch).tolist()
        try:
            logits["safetensors"] = twin_of(weights, int(size))(batch).tolist()
        except ImportError:
            pass
    print(json.dumps(logits))


main()
