"""Writes tests/goldens/image/{effects,effect_draws,policy_magnitudes,policy_ops,mask,mix}.*:
torchvision's output for small images.

    python tests/oracles/effect_goldens.py      (torch 2.11, torchvision 0.26, Pillow, numpy)

effects.bin            uint8 [inputs, 24, 24, 3], then float32 [24, 24, 3] a line of effects.txt
effects.txt            effect input tolerance parameters...: levels 0..255 of F; tolerance 0
                       if F is exact on uint8, else F ran on floats and levels must be rounded
effect_draws.txt       quantity threshold:share...: of 1e5 draws of make_params, at or below
policy_magnitudes.txt  policy operation magnitudes...: all of each, for images of 24 pixels a side
policy_ops, mask, mix   see the functions that write them
"""

import math
import pathlib
import zlib

import numpy as np
import torch
import torch.nn.functional as nn
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from formula import uniform

OUT = pathlib.Path(__file__).resolve().parents[1] / "goldens" / "image"
SIZE = 24
GEOMETRY, COLOUR = 1e-4, 1e-5  # of values 0..1
BILINEAR = InterpolationMode.BILINEAR


def inputs():
    photo = np.asarray(Image.open(OUT / "inputs" / "quality_100.jpg").convert("RGB"))[20:20 + SIZE, 8:8 + SIZE]
    noise = np.random.default_rng(0).integers(0, 256, photo.shape, dtype=np.uint8)
    grey = np.repeat(photo[:, :, 1:2], 3, axis=2)
    flat = np.full_like(photo, 77)
    halves = np.where(np.arange(SIZE)[None, :, None] < 7, 30, 200) + np.zeros_like(photo)
    return {"photo": photo, "noise": noise, "narrow": photo // 4 + 60, "grey": grey, "flat": flat,
            "halves": halves.astype(np.uint8)}


def affine(angle, tx, ty, scale, shear_x, shear_y, cx=0.0, cy=0.0):
    centre = [cx + SIZE / 2, cy + SIZE / 2]
    return lambda x: F.affine(x, angle, [tx, ty], scale, [shear_x, shear_y], BILINEAR, center=centre)


def effects():
    """name, parameters, tolerance, function."""
    for p in [(30, 0, 0, 1, 0, 0), (-17.5, 3, -2, 1.2, 5, -8), (0, 5, -1, 1, 0, 0), (0, 0, 0, 0.7, 0, 0),
              (0, 0, 0, 1, 40, 0, -12, -12), (170, -1, 4, 1.7, -20, 3)]:
        yield "affine", p, GEOMETRY, affine(*map(float, p))
    for angle in (45.0, -100.0):  # F.rotate turns the other way
        yield "affine", (-angle, 0, 0, 1, 0, 0), GEOMETRY, lambda x, a=angle: F.rotate(x, a, BILINEAR)
    for f in (0.3, 1.7):
        yield "brightness", (f,), COLOUR, lambda x, f=f: F.adjust_brightness(x, f)
    for f in (0.0, 0.4, 1.9):
        yield "contrast", (f,), COLOUR, lambda x, f=f: F.adjust_contrast(x, f)
    for f in (0.0, 0.5, 1.8):
        yield "saturation", (f,), COLOUR, lambda x, f=f: F.adjust_saturation(x, f)
    for f in (-0.5, -0.21, 0.0, 0.07, 0.33, 0.5):
        yield "hue", (f,), COLOUR, lambda x, f=f: F.adjust_hue(x, f)
    yield "grey", (), COLOUR, lambda x: F.rgb_to_grayscale(x, 3)
    for sigma in (0.3, 0.8, 2.0, 3.9, 9.0):
        radius = min(math.ceil(3 * sigma), SIZE - 1)
        yield "blur", (sigma,), GEOMETRY, lambda x, k=2 * radius + 1, s=sigma: F.gaussian_blur(x, [k, k], [s, s])
    for box in [(3, 5, 7, 11), (0, 0, 23, 1), (20, 21, 4, 3)]:
        yield "erase", (*box, 12, 200, 77), 0, lambda x, b=box: F.erase(
            x, b[1], b[0], b[3], b[2], torch.tensor([12, 200, 77], dtype=torch.uint8)[:, None, None])
    for f in (0.0, 0.4, 1.9):
        yield "sharpness", (f,), GEOMETRY, lambda x, f=f: F.adjust_sharpness(x, f)
    for bits in (0, 2, 5, 8):
        yield "posterize", (bits,), 0, lambda x, b=bits: F.posterize(x, b)
    for threshold in (0, 100, 255):
        yield "solarize", (threshold,), 0, lambda x, t=threshold: F.solarize(x, t)
    yield "autocontrast", (), COLOUR, F.autocontrast
    yield "equalize", (), 0, F.equalize


def write_effects():
    images = inputs()
    with open(OUT / "effects.txt", "w") as text, open(OUT / "effects.bin", "wb") as data:
        data.write(np.stack(list(images.values())).tobytes())
        for name, parameters, tolerance, function in effects():
            table = name in ("autocontrast", "equalize")
            for n in range(len(images)) if table else (0, 3) if name == "hue" else (0, 1) if name == "contrast" else (0,):
                image = torch.from_numpy(list(images.values())[n].copy()).permute(2, 0, 1)
                out = function(image) if tolerance == 0 else function(image.double().float() / 255) * 255
                print(name, n, tolerance, *("%.9g" % p for p in parameters), file=text)
                data.write(out.permute(1, 2, 0).float().contiguous().numpy().tobytes())


def write_shares(out, name, values):
    values = np.asarray(values, dtype=np.float64)
    thresholds = np.unique(np.quantile(values, np.linspace(0, 1, 31), method="lower"))
    print(name, *("%.7g:%.5f" % (t, np.mean(values <= t * (1 + 1e-6 * np.sign(t)))) for t in thresholds), file=out)


def write_draws():
    torch.manual_seed(0)
    image, count = torch.empty(3, 64, 64), 100_000
    with open(OUT / "effect_draws.txt", "w") as out:
        transform = v2.RandomAffine(30, translate=(0.25, 0.25), scale=(0.7, 1.3), shear=15)
        draws = [transform.make_params([image]) for _ in range(count)]
        write_shares(out, "angle", [d["angle"] for d in draws])
        write_shares(out, "translate_x", [d["translate"][0] for d in draws])
        write_shares(out, "translate_y", [d["translate"][1] for d in draws])
        write_shares(out, "scale", [d["scale"] for d in draws])
        write_shares(out, "shear_x", [d["shear"][0] for d in draws])
        transform = v2.ColorJitter(0.4, 0.5, 1.3, 0.2)
        draws = [transform.make_params([image]) for _ in range(count)]
        for name in ("brightness", "contrast", "saturation", "hue"):
            write_shares(out, name, [d[name + "_factor"] for d in draws])
        transform = v2.RandomErasing(scale=(0.05, 0.9), ratio=(0.3, 3.3))
        draws = [transform.make_params([image]) for _ in range(count)]
        draws = [d for d in draws if d["v"] is not None]
        for name, key in (("erase_x", "j"), ("erase_y", "i"), ("erase_width", "w"), ("erase_height", "h")):
            write_shares(out, name, [d[key] for d in draws])
        for alpha in (0.2, 1.0, 3.0):
            write_shares(out, f"mixup {alpha}", [v2.MixUp(alpha=alpha, num_classes=2).make_params([])["lam"]
                                                 for _ in range(count)])
        transform = v2.CutMix(alpha=1.0, num_classes=2)
        draws = [transform.make_params([image]) for _ in range(count)]
        for i, name in enumerate(("cutmix_left", "cutmix_top", "cutmix_right", "cutmix_bottom")):
            write_shares(out, name, [d["box"][i] for d in draws])
        write_shares(out, "cutmix_lambda", [d["lam_adjusted"] for d in draws])


def write_magnitudes():
    with open(OUT / "policy_magnitudes.txt", "w") as out:
        for policy, kind in (("trivial", v2.TrivialAugmentWide), ("rand", v2.RandAugment)):
            for name, (magnitudes, signed) in kind._AUGMENTATION_SPACE.items():
                values = magnitudes(31, SIZE, SIZE)
                values = [0.0] * 31 if values is None else values.tolist()
                print(policy, name, int(signed), *("%.9g" % v for v in values), file=out)


def write_policy_ops():
    """policy_ops.txt: operation magnitude tolerance; policy_ops.bin: float32 [24, 24, 3] each, of the
    first input of effects.bin."""
    policy = v2.TrivialAugmentWide(interpolation=BILINEAR)
    image = torch.from_numpy(inputs()["photo"].copy()).permute(2, 0, 1)
    on_uint8 = ("Identity", "Posterize", "Solarize", "Equalize")
    with open(OUT / "policy_ops.txt", "w") as text, open(OUT / "policy_ops.bin", "wb") as data:
        for name, (magnitudes, signed) in policy._AUGMENTATION_SPACE.items():
            values = magnitudes(31, SIZE, SIZE)
            values = [0.0] if values is None else [float(values[i]) for i in (7, 22)]
            for magnitude in values + [-v for v in values if signed]:
                x = image if name in on_uint8 else image.float() / 255
                out = policy._apply_image_or_video_transform(x, name, magnitude, BILINEAR, policy._fill)
                out = out.float() if name in on_uint8 else out * 255
                print(name, "%.9g" % magnitude, 0 if name in on_uint8 else GEOMETRY, file=text)
                data.write(out.permute(1, 2, 0).contiguous().numpy().tobytes())


def write_masks():
    """mask.txt: width height, crop box, shift x y, pad mode, flip, the eight of affine, crc32 of the
    mask of 24 x 24. The class of a pixel is (7 x + y y) mod 20, and 99 outside."""
    cases = [(33, 40, (0, 0, 33, 40), 0, 0, "constant", 0, None),
             (60, 50, (7, 3, 33, 17), 0, 0, "constant", 1, None),
             (24, 24, (0, 0, 24, 24), 3, -2, "constant", 0, None),
             (24, 24, (0, 0, 24, 24), -4, 1, "reflect", 1, None),
             (60, 50, (7, 3, 33, 17), 0, 0, "constant", 1, (31.0, 2.0, -3.0, 1.13, 7.0, 0.0, 0.0, 0.0)),
             (24, 24, (0, 0, 24, 24), 1, 2, "constant", 0, (-12.3, 0.0, 0.0, 0.83, -4.0, 0.0, 1.0, 2.0))]
    with open(OUT / "mask.txt", "w") as out:
        for width, height, (x, y, w, h), dx, dy, mode, flip, p in cases:
            columns, rows = torch.arange(width), torch.arange(height)[:, None]
            mask = ((7 * columns + rows * rows) % 20).to(torch.uint8)[None]
            mask = F.resized_crop_mask(mask, y, x, h, w, [SIZE, SIZE])
            mask = F.crop_mask(F.pad_mask(mask, [5], fill=99, padding_mode=mode), 5 + dy, 5 + dx, SIZE, SIZE)
            mask = F.horizontal_flip_mask(mask) if flip else mask
            if p:
                mask = F.affine_mask(mask, p[0], list(p[1:3]), p[3], list(p[4:6]), fill=[99.0],
                                     center=[p[6] + SIZE / 2, p[7] + SIZE / 2])
            crc = zlib.crc32(mask[0].contiguous().numpy().tobytes())
            print(width, height, x, y, w, h, dx, dy, mode, flip, *(p or ()), f"{crc:08x}", file=out)


def formula(name, count):
    return torch.from_numpy(uniform(name, count).astype(np.float32))


def write_mixed():
    """mix.txt: kind lambda offset x y width height loss; mix.bin: float32 [5, 3, 6, 6] each. Images
    are formula("images"), labels 0 3 1 3 2 of four classes, and the loss that of the logits
    formula("logits") times 4 and the soft labels, smoothed by 0.1."""
    count, classes = 5, 4
    images, labels = formula("images", count * 3 * 36).view(count, 3, 6, 6), torch.tensor([0, 3, 1, 3, 2])
    logits = formula("logits", count * classes).view(count, classes) * 4
    cases = [("mixup", 0.3, 1, (0, 0, 0, 0)), ("mixup", 0.85, 3, (0, 0, 0, 0)),
             ("cutmix", None, 1, (1, 2, 4, 3)), ("cutmix", None, 2, (0, 0, 6, 5))]
    with open(OUT / "mix.txt", "w") as text, open(OUT / "mix.bin", "wb") as data:
        for kind, lam, offset, (x, y, width, height) in cases:
            # torchvision pairs with an offset of 1: among every offset-th sample that is any offset.
            order = torch.arange(count) * offset % count
            back = torch.argsort(order)
            if kind == "mixup":
                transform, params = v2.MixUp(num_classes=classes), {"lam": lam}
            else:
                lam = 1 - width * height / 36
                transform, params = v2.CutMix(num_classes=classes), {
                    "box": (x, y, x + width, y + height), "lam_adjusted": lam}
            mine = labels[order]
            params = {"labels": mine, "batch_size": count, **params}
            out = transform.transform(images[order], params)[back]
            soft = transform.transform(mine, params)[back]
            loss = nn.cross_entropy(logits, soft, label_smoothing=0.1)
            print(kind, "%.17g" % lam, offset, x, y, width, height, "%.9g" % loss, file=text)
            data.write(out.contiguous().numpy().tobytes())


if __name__ == "__main__":
    write_effects()
    write_draws()
    write_magnitudes()
    write_policy_ops()
    write_masks()
    write_mixed()
