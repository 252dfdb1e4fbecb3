"""Writes tests/goldens/image/nonsquare.{txt,bin}: Pillow's and torchvision's output for pictures that are not square.

    python tests/oracles/nonsquare_goldens.py      (torch 2.15, torchvision 0.29, Pillow, numpy)

A line of nonsquare.txt is one case; height and width are those of the output:
effect height width name parameters...     float32 [height, width, 3] in nonsquare.bin, of image(height, width)
letterbox height width in_height in_width flip   uint8 [height, width, 3] in nonsquare.bin, ImageOps.pad of image()
mask height width in_height in_width x y w h flip affine...   crc32 last; classes and outside as in effect_goldens.py
magnitude height width operation magnitudes...     RandAugment's
"""

import zlib

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from effect_goldens import OUT

BILINEAR = InterpolationMode.BILINEAR
SHAPES = ((14, 24), (23, 9))
FILL = (124, 116, 104)  # the default augment.mean


def image(height, width):
    y, x, c = np.mgrid[:height, :width, :3]
    return ((x * (7 + c) + y * y * 3 + 31 * c + x * y) % 256).astype(np.uint8)


def effects(height, width):
    for p in [(30, 0, 0, 1, 0, 0), (-17.5, 3, -2, 1.2, 5, -8), (0, 5, -1, 1, 0, 0),
              (0, 0, 0, 1, 40, 0, -0.5 * width, -0.5 * height)]:
        centre = [width / 2 + (p[6] if len(p) > 6 else 0), height / 2 + (p[7] if len(p) > 6 else 0)]
        yield "affine", p, lambda x, p=p, c=centre: F.affine(x, float(p[0]), list(p[1:3]), float(p[3]), list(p[4:6]),
                                                             BILINEAR, center=c)
    for sigma in (0.8, 2.0):
        kernel = 2 * min(int(np.ceil(3 * sigma)), min(height, width) - 1) + 1
        yield "blur", (sigma,), lambda x, k=kernel, s=sigma: F.gaussian_blur(x, [k, k], [s, s])
    yield "sharpness", (1.9,), lambda x: F.adjust_sharpness(x, 1.9)
    yield "contrast", (0.4,), lambda x: F.adjust_contrast(x, 0.4)
    yield "erase", (2, 5, 6, 3, 12, 200, 77), lambda x: F.erase(
        x, 5, 2, 3, 6, torch.tensor([12, 200, 77]).float()[:, None, None] / 255)


def write_effects(text, data):
    for height, width in SHAPES:
        planes = torch.from_numpy(image(height, width)).permute(2, 0, 1).float() / 255
        for name, parameters, function in effects(height, width):
            print("effect", height, width, name, *("%.9g" % p for p in parameters), file=text)
            data.write((function(planes) * 255).permute(1, 2, 0).contiguous().numpy().tobytes())


def write_letterboxes(text, data):
    for (height, width), (in_height, in_width), flip in (
            ((40, 64), (64, 42), 0), ((40, 64), (30, 96), 1), ((64, 40), (32, 40), 0), ((32, 32), (77, 58), 1),
            ((48, 48), (10, 20), 0), ((40, 64), (20, 32), 1)):
        picture = Image.fromarray(image(in_height, in_width))
        fitted = ImageOps.pad(picture, (width, height), Image.Resampling.BILINEAR, color=FILL)
        assert all(side % 2 == 0 for side in np.subtract(fitted.size, ImageOps.contain(picture, fitted.size).size))
        fitted = ImageOps.mirror(fitted) if flip else fitted
        print("letterbox", height, width, in_height, in_width, flip, file=text)
        data.write(np.asarray(fitted).tobytes())


def write_masks(text):
    for (height, width), (in_height, in_width), (x, y, w, h), flip, p in (
            ((14, 24), (33, 40), (0, 0, 40, 33), 0, None), ((23, 9), (60, 50), (7, 3, 33, 17), 1, None),
            ((14, 24), (60, 50), (7, 3, 33, 17), 1, (31.0, 2.0, -3.0, 1.13, 7.0, 0.0)),
            ((23, 9), (24, 24), (1, 2, 20, 22), 0, (-12.3, 0.0, 0.0, 0.83, -4.0, 0.0))):
        columns, rows = torch.arange(in_width), torch.arange(in_height)[:, None]
        mask = ((7 * columns + rows * rows) % 20).to(torch.uint8)[None]
        mask = F.resized_crop_mask(mask, y, x, h, w, [height, width])
        mask = F.horizontal_flip_mask(mask) if flip else mask
        if p:
            mask = F.affine_mask(mask, p[0], list(p[1:3]), p[3], list(p[4:6]), fill=[99.0],
                                 center=[width / 2, height / 2])
        crc = zlib.crc32(mask[0].contiguous().numpy().tobytes())
        print("mask", height, width, in_height, in_width, x, y, w, h, flip, *(p or ()), f"{crc:08x}", file=text)


def write_magnitudes(text):
    for height, width in SHAPES:
        for name in ("TranslateX", "TranslateY", "ShearX"):
            magnitudes, _ = v2.RandAugment._AUGMENTATION_SPACE[name]
            print("magnitude", height, width, name, *("%.9g" % v for v in magnitudes(31, height, width)), file=text)


if __name__ == "__main__":
    with open(OUT / "nonsquare.txt", "w") as text, open(OUT / "nonsquare.bin", "wb") as data:
        write_effects(text, data)
        write_letterboxes(text, data)
        write_masks(text)
        write_magnitudes(text)
