"""Writes tests/goldens/segmentation: models.json, unet and toy_seg in Python; masks/*.png and masks.json, masks
as Pillow writes and reads them; metrics.json, loss and IoU of synthetic logits.

Run: python tests/oracles/segmentation_goldens.py   (torch 2.11, Pillow, numpy)
"""

import json
import pathlib
import sys

import numpy
import torch
from PIL import Image

from formula import fill, symmetric

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from model_twins import make_twin  # noqa: E402

OUT = ROOT / "tests" / "goldens" / "segmentation"
CLASSES, SIZE, WIDTH = 3, 16, 0.125
IGNORED = 255


def short(values):
    """Floats with nine digits, which identify each float32."""
    if isinstance(values, list):
        return [short(value) for value in values]
    return float(f"{values:.9g}")


def labels(count, classes, size):
    """(x + 2 y + n) mod classes, and a column and a row that are ignored."""
    n, y, x = torch.meshgrid(torch.arange(count), torch.arange(size), torch.arange(size), indexing="ij")
    found = (x + 2 * y + n) % classes
    found[:, :, 3] = IGNORED
    found[:, 5, :] = IGNORED
    return found


def model_golden(name):
    def make():
        return make_twin(name, CLASSES, SIZE, WIDTH)

    torch.manual_seed(0)
    initial = {key: short([tensor.flatten()[0].item(), tensor.flatten()[:64].double().sum().item()])
               for key, tensor in make().named_parameters()}
    model = make()
    for key, tensor in model.state_dict().items():
        fill(key, tensor)
    images = symmetric("input", (2, 3, SIZE, SIZE), 2)
    with torch.no_grad():
        logits = short(model.eval()(images).flatten().tolist())
    model.train()
    loss = torch.nn.functional.cross_entropy(model(images), labels(2, CLASSES, SIZE), ignore_index=IGNORED)
    loss.backward()
    return {
        "state_dict": [[key, list(tensor.shape)] for key, tensor in model.state_dict().items()],
        "initial": initial,
        "logits": logits,
        "loss": short(loss.item()),
        "gradients": {key: short(tensor.grad.double().norm().item())
                      for key, tensor in model.named_parameters()},
    }


def write_masks():
    folder = OUT / "masks"
    folder.mkdir(parents=True, exist_ok=True)
    y, x = numpy.mgrid[0:5, 0:9]
    numbers = ((3 * x + 5 * y) % 16).astype(numpy.uint8)
    palette = [(i * 37) % 256 for i in range(48)]
    pictures = {"grey": (Image.fromarray(numbers * 16), {}),
                "one_bit": (Image.fromarray(numbers % 2 * 255).convert("1"), {})}
    for bits in (2, 4, 8):
        picture = Image.fromarray((numbers.astype(int) % (1 << bits)).astype(numpy.uint8), "P")
        picture.putpalette(palette)
        pictures[f"palette_{bits}_bits"] = (picture, {"bits": bits})
    golden = {}
    for name, (picture, options) in pictures.items():
        picture.save(folder / f"{name}.png", **options)
        with Image.open(folder / f"{name}.png") as found:
            golden[name] = numpy.asarray(found).astype(int).flatten().tolist()
    Image.fromarray(numpy.stack([numbers] * 3, 2)).save(folder / "colours.png")
    Image.fromarray(numbers.astype(numpy.uint16)).save(folder / "sixteen_bits.png")
    (OUT / "masks.json").write_text(json.dumps(golden) + "\n")


def metrics_golden():
    count, classes, size = 3, 4, 8
    logits = symmetric("logits", (count, classes, size, size), 2)
    target = labels(count, classes - 1, size)  # the last class is never labelled
    golden = {"loss": short(torch.nn.functional.cross_entropy(logits, target, ignore_index=IGNORED).item()),
              "smoothed": short(torch.nn.functional.cross_entropy(
                  logits, target, ignore_index=IGNORED, label_smoothing=0.1).item())}
    found = logits.argmax(1).numpy()[target.numpy() != IGNORED]
    truth = target.numpy()[target.numpy() != IGNORED]
    golden["accuracy"] = float((found == truth).mean())
    either = [numpy.sum((found == c) | (truth == c)) for c in range(classes)]
    both = [numpy.sum((found == c) & (truth == c)) for c in range(classes)]
    golden["mean_iou"] = float(numpy.mean([b / e for b, e in zip(both, either) if e > 0]))
    return golden


OUT.mkdir(parents=True, exist_ok=True)
(OUT / "models.json").write_text(json.dumps({name: model_golden(name) for name in ("unet", "toy_seg")}) + "\n")
(OUT / "metrics.json").write_text(json.dumps(metrics_golden()) + "\n")
write_masks()
