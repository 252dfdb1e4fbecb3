"""Writes tests/goldens/image: Pillow's and torchvision's output for small images and photographs.

    python tests/oracles/image_goldens.py      (torch 2.11, torchvision 0.26, Pillow, numpy)

inputs/            one small file of every kind, cut from photographs of ../shared
decode.txt         file width height crc32: pixels of exif_transpose(open(file)).convert("RGB")
photographs.txt    the same for the 400 photographs themselves
resize.txt, .bin   file x y width height out_width out_height: F.resized_crop, bilinear, antialias
crop.txt           file padding mode top left height width flip crc32: F.pad, F.crop, F.hflip
normalize.txt      (x / 255 - mean) / std for x = 0..255 by F.normalize in double, three a line
random_resized_crop.txt   share of 1e5 draws of make_params at or below each threshold
"""

import io
import pathlib
import struct
import zlib

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
PHOTOGRAPHS = ROOT.parent / "shared" / "data" / "imagenet-400"
OUT = ROOT / "tests" / "goldens" / "image"
INPUTS = OUT / "inputs"
MODERN = OUT / "modern"

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def photograph(index, width, height):
    """A photograph, shrunk: real colours and edges in a few kilobytes."""
    path = sorted(PHOTOGRAPHS.glob("*/*.JPEG"))[index]
    return Image.open(path).convert("RGB").resize((width, height), Image.Resampling.LANCZOS)


def jpeg(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **{"quality": 85, **options})
    return buffer.getvalue()


def exif(orientation, endian="<"):
    """An EXIF segment of one tag."""
    order = b"II*\0" if endian == "<" else b"MM\0*"
    entry = struct.pack(endian + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + order + struct.pack(endian + "IH", 8, 1) + entry + bytes(4)


def with_sampling(data, horizontal, vertical):
    """Changes the luma sampling factors. On 64 x 64 pixels the number of blocks stays the same, so
    the stream stays valid (its picture is scrambled): kinds that Pillow cannot write."""
    at = data.index(b"\xff\xc0") + 11
    return data[:at] + bytes([horizontal << 4 | vertical]) + data[at + 1 :]


def as_ycck(data):
    """Marks Adobe's CMYK file as YCCK."""
    at = data.index(b"Adobe") + 11
    assert data[at] == 0
    return data[:at] + b"\2" + data[at + 1 :]


def png(array, depth, colour, interlaced=False, extra=b""):
    """array [height, width, samples] of integers below 2 ** depth."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    def rows(part):
        for row in part.reshape(part.shape[0], -1):
            bits = "".join(format(v, f"0{depth}b") for v in row.tolist())
            bits += "0" * (-len(bits) % 8)
            yield b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")

    parts = [array[y::dy, x::dx] for x, y, dx, dy in ADAM7] if interlaced else [array]
    body = b"".join(b"".join(rows(p)) for p in parts if p.size)
    height, width = array.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(body, 9))
            + chunk(b"IEND", b"")), chunk


def write_jpegs():
    small, square = photograph(3, 97, 61), photograph(40, 64, 64)
    files = {
        "rgb_444": jpeg(small, subsampling=0),
        "rgb_422": jpeg(small, subsampling=1),
        "rgb_420": jpeg(small, subsampling=2),
        "rgb_440": with_sampling(jpeg(square, subsampling=1), 1, 2),
        "rgb_411": with_sampling(jpeg(square, subsampling=2), 4, 1),
        "one_pixel": jpeg(small.crop((0, 0, 1, 1))),
        "thin": jpeg(small.crop((0, 0, 97, 1))),
        "stored_as_rgb": jpeg(small, keep_rgb=True),
        "quality_5": jpeg(small, quality=5),
        "quality_100": jpeg(square, quality=100),
        "optimized": jpeg(small, optimize=True),
        "restart_blocks": jpeg(small, restart_marker_blocks=3),
        "restart_rows": jpeg(small, restart_marker_rows=1),
        "grey": jpeg(small.convert("L")),
        "grey_progressive": jpeg(small.convert("L"), progressive=True),
        "progressive_420": jpeg(small, progressive=True),
        "progressive_444": jpeg(small, progressive=True, subsampling=0),
        "cmyk": jpeg(small.convert("CMYK"), subsampling=0),
        "ycck": as_ycck(jpeg(small.convert("CMYK"), subsampling=0)),
        "exif_big_endian_6": jpeg(small, exif=exif(6, ">")),
        "exif_out_of_range_9": jpeg(small, exif=exif(9)),
        "xmp_8": jpeg(small, xmp=b'<x:xmpmeta><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'),
        "trailing_bytes": jpeg(small) + b"\0" * 100,
    }
    for orientation in range(1, 9):
        files[f"exif_{orientation}"] = jpeg(small, exif=exif(orientation))
    # Fill bytes between segments: libjpeg warns and continues.
    files["extraneous_bytes"] = files["rgb_420"].replace(b"\xff\xc4", b"\x01\x02\xff\xc4", 1)
    for name, data in files.items():
        (INPUTS / f"{name}.jpg").write_bytes(data)


def write_pngs():
    """Returns pixels, also for the one difference to Pillow: 16-bit grey keeps the high byte, while
    Pillow's convert("RGB") clips everything above 255 to white."""
    small = np.asarray(photograph(120, 45, 29)).astype(int)
    grey, alpha = small[:, :, 1:2], np.arange(45 * 29).reshape(29, 45, 1) % 256
    rng = np.random.default_rng(0)
    low = rng.integers(0, 256, small.shape)
    palette = np.asarray(photograph(7, 16, 16)).reshape(256, 3).astype(np.uint8)
    _, chunk = png(grey, 8, 0)
    plte = {d: chunk(b"PLTE", palette[: 2**d].tobytes()) for d in (1, 2, 4, 8)}
    files = {
        "rgb": png(small, 8, 2),
        "rgb_16": png(small * 256 + low, 16, 2),
        "rgba": png(np.concatenate([small, alpha], 2), 8, 6),
        "rgba_16": png(np.concatenate([small, alpha], 2) * 256 + 77, 16, 6),
        "rgb_transparent_colour": png(small, 8, 2, extra=chunk(b"tRNS", struct.pack(">HHH", *small[0, 0]))),
        "grey_16": png(grey * 256 + low[:, :, :1], 16, 0),
        "grey_alpha": png(np.concatenate([grey, alpha], 2), 8, 4),
        "grey_alpha_16": png(np.concatenate([grey, alpha], 2) * 256 + 200, 16, 4),
        "palette_transparent": png(grey, 8, 3, extra=plte[8] + chunk(b"tRNS", bytes(range(200)))),
        "exif_6": png(small, 8, 2, extra=chunk(b"eXIf", exif(6)[6:])),
    }
    for depth in (1, 2, 4, 8):
        files[f"grey_{depth}"] = png(grey >> 8 - depth, depth, 0)
        files[f"palette_{depth}"] = png(grey >> 8 - depth, depth, 3, extra=plte[depth])
        files[f"grey_{depth}_interlaced"] = png(grey >> 8 - depth, depth, 0, interlaced=True)
    files["rgb_interlaced"] = png(small, 8, 2, interlaced=True)
    files["rgba_16_interlaced"] = png(np.concatenate([small, alpha], 2) * 257, 16, 6, interlaced=True)
    files["palette_interlaced"] = png(grey, 8, 3, interlaced=True, extra=plte[8])
    for name, (data, _) in files.items():
        (INPUTS / f"{name}.png").write_bytes(data)
    return {"grey_16.png": np.repeat(grey, 3, 2).astype(np.uint8)}


def write_modern():
    """WebP and AVIF files, each with Pillow's upright pixels as NAME.EXT.png."""
    small = photograph(3, 97, 61)
    rgba = small.convert("RGBA")
    rgba.putalpha(Image.linear_gradient("L").resize(small.size))
    files = {"lossy.webp": (small, {"quality": 80}),
             "lossless.webp": (small, {"lossless": True}),
             "alpha.webp": (rgba, {"lossless": True, "exact": True}),
             "lossy_alpha.webp": (rgba, {"quality": 70}),
             "one_pixel.webp": (small.crop((0, 0, 1, 1)), {"lossless": True}),
             "animated.webp": (small, {"save_all": True, "append_images": [small.rotate(90)]}),
             "lossy.avif": (small, {"quality": 80}),
             "full_chroma.avif": (small, {"quality": 90, "subsampling": "4:4:4"}),
             "grey.avif": (small.convert("L"), {"quality": 90}),
             "alpha.avif": (rgba, {"quality": 90})}
    for orientation in range(2, 9):
        files[f"turned_{orientation}.avif"] = (small, {"quality": 60, "exif": exif(orientation)})
    for orientation in (3, 6):
        files[f"turned_{orientation}.webp"] = (small, {"lossless": True, "exif": exif(orientation)})
    MODERN.mkdir(parents=True, exist_ok=True)
    for name, (image, options) in files.items():
        if name.endswith(".avif"):
            options["codec"] = "aom"
        image.save(MODERN / name, **options)
        if name != "animated.webp":
            Image.fromarray(pixels(MODERN / name)).save(MODERN / f"{name}.png")


def pixels(path):
    return np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))


def crc(array):
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def write_decoded(name, root, paths, departures):
    with open(OUT / name, "w") as out:
        for path in paths:
            array = departures.get(path.name)
            array = pixels(path) if array is None else array
            print(path.relative_to(root), array.shape[1], array.shape[0], crc(array), file=out)


def tensor(name):
    return torch.from_numpy(pixels(INPUTS / name).copy()).permute(2, 0, 1)


def write_resized():
    cases = []
    for width, height in [(224, 3), (32, 32), (97, 61), (40, 90), (1, 1), (130, 61), (3, 128)]:
        cases.append(("rgb_444.jpg", 0, 0, 97, 61, width, height))
    for box in [(10, 5, 64, 40), (96, 60, 1, 1), (0, 58, 97, 3), (90, 0, 5, 61), (1, 2, 33, 33)]:
        cases.append(("rgb_444.jpg", *box, 32, 32))
        cases.append(("rgb_444.jpg", *box, 47, 13))
    cases.append(("quality_100.jpg", 0, 0, 64, 64, 48, 48))
    cases.append(("quality_100.jpg", 0, 0, 64, 64, 63, 65))
    with open(OUT / "resize.txt", "w") as text, open(OUT / "resize.bin", "wb") as data:
        for name, x, y, width, height, out_width, out_height in cases:
            image = F.resized_crop(tensor(name), y, x, height, width, [out_height, out_width],
                                   antialias=True)
            print(name, x, y, width, height, out_width, out_height, file=text)
            data.write(image.permute(1, 2, 0).contiguous().numpy().tobytes())


def write_cropped():
    square = "quality_100.jpg"  # 64 x 64
    cases = [(square, 4, mode, top, left, 64, 64, flip) for mode in ("constant", "reflect")
             for top, left, flip in [(0, 0, 0), (8, 8, 1), (0, 8, 0), (3, 5, 1), (4, 4, 1)]]
    cases += [("rgb_444.jpg", 20, mode, 1, 30, 90, 50, 0) for mode in ("constant", "reflect")]
    cases += [("rgb_444.jpg", 0, "constant", 13, 29, 31, 17, flip) for flip in (0, 1)]
    with open(OUT / "crop.txt", "w") as out:
        for name, padding, mode, top, left, height, width, flip in cases:
            image = F.crop(F.pad(tensor(name), [padding], padding_mode=mode), top, left, height, width)
            image = F.hflip(image) if flip else image
            print(name, padding, mode, top, left, height, width, flip, crc(image.permute(1, 2, 0).numpy()),
                  file=out)


def write_normalized():
    x = torch.arange(256, dtype=torch.float64).expand(3, 1, 256) / 255
    values = F.normalize(x, MEAN, STD)[:, 0].T.tolist()
    (OUT / "normalize.txt").write_text("".join("%.9f %.9f %.9f\n" % tuple(v) for v in values))


def write_random_crops():
    """Lines: width height scale ratio, a quantity, then pairs threshold:share."""
    torch.manual_seed(0)
    settings = [(500, 375, (0.08, 1.0), (3 / 4, 4 / 3)), (60, 300, (0.3, 1.0), (3 / 4, 4 / 3)),
                (32, 32, (0.5, 0.9), (0.5, 3.0))]
    with open(OUT / "random_resized_crop.txt", "w") as out:
        for width, height, scale, ratio in settings:
            transform, image = v2.RandomResizedCrop(8, scale, ratio), torch.empty(3, height, width)
            draws = [transform.make_params([image]) for _ in range(100_000)]
            top, left, h, w = (np.array([d[k] for d in draws]) for k in ("top", "left", "height", "width"))
            quantities = {"x": left, "y": top, "width": w, "height": h, "area": w * h,
                          "ratio": np.floor(1000 * w / h)}
            for name, values in quantities.items():
                thresholds = np.unique(np.quantile(values, np.linspace(0, 1, 41), method="lower"))
                pairs = " ".join(f"{int(t)}:{np.mean(values <= t):.5f}" for t in thresholds)
                print(width, height, *scale, *("%.17g" % r for r in ratio), name, pairs, file=out)


def main():
    INPUTS.mkdir(parents=True, exist_ok=True)
    for old in INPUTS.iterdir():
        old.unlink()
    write_jpegs()
    departures = write_pngs()
    write_decoded("decode.txt", INPUTS, sorted(INPUTS.iterdir()), departures)
    write_decoded("photographs.txt", PHOTOGRAPHS, sorted(PHOTOGRAPHS.glob("*/*.JPEG")), {})
    write_modern()
    write_resized()
    write_cropped()
    write_normalized()
    write_random_crops()


if __name__ == "__main__":
    main()
