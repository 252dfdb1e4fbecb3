#!/usr/bin/env python3
"""Writes tests/goldens/formats/: small data sets written by other programs, and those programs' output.

Each NAME.tsv has one line per sample, in order:
    class, width, height, channels (all 0 for an encoded sample), FNV-1a 64 of the bytes (hex), name
Needs torch, torchvision, webdataset, braceexpand, lmdb and Pillow 10.2 or newer.
Run from anywhere: python3 tests/oracles/format_goldens.py
"""
import gzip, io, json, pathlib, pickle, struct, tempfile, zlib

import braceexpand, lmdb, numpy as np, torchvision, webdataset
from PIL import Image
from torchvision.datasets import mnist

OUT = pathlib.Path(__file__).resolve().parent.parent / "goldens" / "formats"
CLASSES = ["b\u00e4r", "cat", "dog"]


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h


def write_tsv(name, rows):
    lines = ["%s\t%d\t%d\t%d\t%016x\t%s\n" % (c, w, h, ch, fnv(data), n) for c, w, h, ch, data, n in rows]
    (OUT / (name + ".tsv")).write_text("".join(lines), encoding="utf-8")


def payload(i):
    size = [0, 1, 63, 64, 65, 700, 1500, 37][i % 8]
    return bytes((i * 31 + j * 7 + j // 251) % 256 for j in range(size))


# Samples of the shard and the LMDB: label, name, raw shape or None, bytes.
def samples():
    for i in range(9):
        label, shape, data = i % 3, None, payload(i)
        if i in (2, 5):
            shape = (4, 5, 3) if i == 2 else (3, 7, 1)  # height, width, channels
            data = bytes((i + j * 11) % 256 for j in range(shape[0] * shape[1] * shape[2]))
        yield label, "%s/%d.jpg" % (CLASSES[label], i), shape, data


def write_samples_tsv(name):
    rows = []
    for label, sample, shape, data in samples():
        h, w, c = shape or (0, 0, 0)
        rows.append((CLASSES[label], w, h, c, data, sample))
    write_tsv(name, rows)


def table():
    names = [c.encode() for c in CLASSES]
    return b"".join(struct.pack("<I", len(n)) + n for n in names)


# Only from docs/shard_format.md.
def write_shard(name, version):
    def seal(block):
        block = block.ljust(60, b"\0")
        return block + struct.pack("<I", zlib.crc32(block))

    out = bytearray(seal(b"SATSHARD" + struct.pack("<I", version)).ljust(4096, b"\0"))
    records, names = b"", b""
    for label, sample, shape, data in samples():
        out += b"\0" * (-len(out) % 64)
        names += sample.encode()
        h, w, c = shape or (0, 0, 0)
        records += struct.pack("<QIIIHHIIQ", len(out), len(data), zlib.crc32(data), label,
                               2 if shape else 1, c, w, h, len(names))
        out += data
    out += b"\0" * (-len(out) % 4096)
    index = records + table() + names
    at = len(out)
    out += index
    out += seal(b"SATINDEX" + struct.pack("<QQQQII", len(out) + 64, at, len(index), 9, 3, zlib.crc32(index)))
    (OUT / (name + ".gz")).write_bytes(gzip.compress(bytes(out), mtime=0))


# A kind 3 sample, only from docs/shard_format.md and Pillow: 150 x 42 pixels in segments of 4 MCUs,
# in a frame of 160. Also the pixels, as Pillow decodes them.
def write_segmented():
    x, y = np.meshgrid(np.arange(160), np.arange(42))
    image = np.stack([x + y, 200 - x, 90 + 60 * np.sin(x * y / 90)], axis=2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=80, subsampling=0, restart_marker_blocks=4)
    jpeg = buffer.getvalue()
    scan = jpeg.index(b"\xff\xda")
    scan += 2 + struct.unpack_from(">H", jpeg, scan + 2)[0]
    lengths, begin = [], scan
    for at in range(scan, len(jpeg) - 1):
        if jpeg[at] == 0xFF and jpeg[at + 1] != 0:
            lengths.append(at - begin)
            begin = at + 2
    assert len(lengths) == 5 * 6 and begin == len(jpeg)
    payload = struct.pack("<HHI30H", 5, 6, scan, *lengths) + jpeg
    (OUT / "segmented.bin").write_bytes(payload)
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))[:, :150]
    (OUT / "segmented.rgb.gz").write_bytes(gzip.compress(pixels.tobytes(), mtime=0))


# Only from docs/lmdb_format.md, with py-lmdb.
def write_lmdb():
    with tempfile.TemporaryDirectory() as folder:
        env = lmdb.open(folder, map_size=1 << 20)
        with env.begin(write=True) as txn:
            for i, (label, name, shape, data) in enumerate(samples()):
                h, w, c = shape or (0, 0, 0)
                head = struct.pack("<IHHIIII", label, 2 if shape else 1, c, w, h, zlib.crc32(data), len(name.encode()))
                txn.put(b"%010d" % i, head + name.encode() + data)
            txn.put(b"saturate", b"SATLMDB1" + struct.pack("<IIQ", 1, 3, 9) + table())
        env.close()
        (OUT / "python.mdb.gz").write_bytes(gzip.compress(pathlib.Path(folder, "data.mdb").read_bytes(), mtime=0))
        env = lmdb.open(folder + "/foreign", map_size=1 << 20)
        with env.begin(write=True) as txn:
            txn.put(b"cat/1.jpg", b"data")
        env.close()
        (OUT / "foreign.mdb.gz").write_bytes(gzip.compress(pathlib.Path(folder, "foreign/data.mdb").read_bytes(), mtime=0))


def write_idx():
    pixels = np.array([(i * 7 + i // 28 * 3) % 256 for i in range(4 * 28 * 20)], np.uint8).reshape(4, 28, 20)
    labels = np.array([3, 0, 9, 4], np.uint8)
    images = struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes()
    marks = struct.pack(">II", 0x801, 4) + labels.tobytes()
    (OUT / "train-images-idx3-ubyte").write_bytes(images)
    (OUT / "train-labels-idx1-ubyte").write_bytes(marks)
    (OUT / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, mtime=0))
    (OUT / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(marks, mtime=0))
    seen = mnist.read_image_file(str(OUT / "train-images-idx3-ubyte"))
    said = mnist.read_label_file(str(OUT / "train-labels-idx1-ubyte"))
    write_tsv("idx", [(int(said[i]), 20, 28, 1, seen[i].numpy().tobytes(), i) for i in range(4)])


class TinyCifar10(torchvision.datasets.CIFAR10):
    train_list, test_list = [["data_batch_1", None]], [["test_batch", None]]
    _check_integrity = lambda self: True
    _load_meta = lambda self: None


class TinyCifar100(TinyCifar10):
    base_folder = "cifar-100-python"
    train_list = [["train", None]]


# torchvision reads the pickled version; the binary one is written from the same arrays.
def write_cifar():
    data = np.array([(i * 5 + i // 1024) % 256 for i in range(3 * 3072)], np.uint8).reshape(3, 3072)
    fine, coarse = [7, 2, 0], [1, 19, 4]
    with tempfile.TemporaryDirectory() as folder:
        for base, name, entry in [("cifar-10-batches-py", "data_batch_1", {"labels": fine}),
                                  ("cifar-100-python", "train", {"fine_labels": fine, "coarse_labels": coarse})]:
            path = pathlib.Path(folder, base)
            path.mkdir()
            (path / name).write_bytes(pickle.dumps({"data": data, **entry}))
        ten, hundred = TinyCifar10(folder), TinyCifar100(folder)
        rows = lambda s: [(s.targets[i], 32, 32, 3, s.data[i].tobytes(), i) for i in range(3)]
        write_tsv("cifar10", rows(ten))
        write_tsv("cifar100", rows(hundred))
    records = b"".join(bytes([fine[i]]) + data[i].tobytes() for i in range(3))
    (OUT / "cifar10.bin.gz").write_bytes(gzip.compress(records, mtime=0))
    records = b"".join(bytes([coarse[i], fine[i]]) + data[i].tobytes() for i in range(3))
    (OUT / "cifar100.bin.gz").write_bytes(gzip.compress(records, mtime=0))


def write_webdataset():
    def pack(name, items):
        with webdataset.TarWriter(str(OUT / (name + ".tar")), mtime=0, user="u", group="g") as sink:
            for item in items:
                sink.write(item)
        rows = []
        for s in webdataset.WebDataset(str(OUT / (name + ".tar")), shardshuffle=False):
            label = s["cls"].decode() if "cls" in s else str(json.loads(s["json"])["label"])
            ending = "jpg" if "jpg" in s else "png"
            rows.append((label, 0, 0, 0, s[ending], s["__key__"] + "." + ending))
        write_tsv(name, rows)
        plain = OUT / (name + ".tar")
        (OUT / (name + ".tar.gz")).write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        plain.unlink()

    numbers = [3, 0, 11, 3, 7, 11]
    pack("wds-numbers", [{"__key__": "a/%06d" % i, "jpg": payload(i + 1), "cls": n,
                          "seg.png": b"mask", "txt": "note"} for i, n in enumerate(numbers)])
    pack("wds-names", [{"__key__": "k.%d" % i if i == 9 else "key-%d" % i, "png": payload(i + 2),
                        "json": {"label": CLASSES[i % 3], "id": i}} for i in range(5)])


def write_braces():
    cases = ["d/shard-{000..003}.tar", "{8..11}", "{08..11}", "a{0..1}b{1..2}", "plain.tar", "{5..5}x"]
    (OUT / "braces.tsv").write_text("".join("%s\t%s\n" % (c, ",".join(braceexpand.braceexpand(c))) for c in cases))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    write_shard("python.shard", 2)
    write_shard("python-v1.shard", 1)
    write_samples_tsv("python.shard")
    write_segmented()
    write_lmdb()
    write_idx()
    write_cifar()
    write_webdataset()
    write_braces()


if __name__ == "__main__":
    main()
