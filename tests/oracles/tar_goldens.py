#!/usr/bin/env python3
"""Writes tests/goldens/tar/: archives made by Python's tarfile, and the members that tarfile reads.

Each NAME.tar has a NAME.tsv with one line per image member, in archive order:
    offset of the payload, size, FNV-1a 64 of the payload (hex), name
Run from anywhere: python3 tests/oracles/tar_goldens.py
"""
import bz2, gzip, io, lzma, pathlib, tarfile

OUT = pathlib.Path(__file__).resolve().parent.parent / "goldens" / "tar"
LONG = "/".join("level%02d_of_a_long_path" % i for i in range(6))  # 143 bytes
HUGE = "/".join("a_folder_name_of_some_length_%02d" % i for i in range(12))  # 383 bytes


def payload(i):
    size = [0, 1, 511, 512, 513, 700, 1500, 37][i % 8]
    return bytes((i * 31 + j * 7 + j // 251) % 256 for j in range(size))


def names(fmt):
    yield from ["root/cat/a.jpg", "root/cat/B.JPEG", "root/dog/1.png", "./root/dog/2.jpg"]
    yield "root/bird/" + "n" * 80 + ".jpg"
    yield LONG + "/cat/long.jpg"
    if fmt != tarfile.USTAR_FORMAT:
        yield HUGE + "/dog/huge.jpg"
        yield "root/cat/" + "m" * 200 + ".jpg"
        yield "root/k\u00e4fer/\u00e9\u00e8.jpg"
    yield "../../etc/dog/evil.jpg"
    yield "/abs/bird/evil.png"


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h


def write(path, fmt):
    with tarfile.open(path, "w", format=fmt) as tar:
        folder = tarfile.TarInfo("root/")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for i, name in enumerate(names(fmt)):
            info = tarfile.TarInfo(name)
            info.size = len(payload(i))
            if fmt == tarfile.PAX_FORMAT and i % 3 == 0:
                info.pax_headers = {"comment": "x" * 600, "mtime": "1700000000.25"}
            tar.addfile(info, io.BytesIO(payload(i)))
            if i % 3 == 0:  # not images
                note = tarfile.TarInfo("root/cat/note%d.txt" % i)
                note.size = 5
                tar.addfile(note, io.BytesIO(b"hello"))


def manifest(path):
    lines = []
    with tarfile.open(path) as tar:
        for m in tar:
            if m.isreg() and m.name.lower().endswith((".jpg", ".jpeg", ".png")):
                data = tar.extractfile(m).read()
                lines.append("%d\t%d\t%016x\t%s\n" % (m.offset_data, m.size, fnv(data), m.name))
    path.with_suffix(".tsv").write_text("".join(lines), encoding="utf-8")


def rewrite_size(data, at, field):
    """Replaces the size field of the header at `at` and corrects its checksum."""
    block = bytearray(data[at : at + 512])
    block[124:136] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:at] + bytes(block) + data[at + 512 :]


def base256(path):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for i in (5, 6, 7):
            info = tarfile.TarInfo("cat/%d.jpg" % i)
            info.size = len(payload(i))
            tar.addfile(info, io.BytesIO(payload(i)))
    data = raw.getvalue()
    path.write_bytes(rewrite_size(data, 0, b"\x80" + len(payload(5)).to_bytes(11, "big")))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    for name, fmt in formats.items():
        write(OUT / (name + ".tar"), fmt)
        manifest(OUT / (name + ".tar"))
    base256(OUT / "base256.tar")
    manifest(OUT / "base256.tar")

    with tarfile.open(OUT / "links.tar", "w") as tar:
        info = tarfile.TarInfo("cat/a.jpg")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"data"))
        link = tarfile.TarInfo("cat/b.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "cat/a.jpg"
        tar.addfile(link)

    plain = (OUT / "base256.tar").read_bytes()
    (OUT / "packed.tar.gz").write_bytes(gzip.compress(plain, mtime=0))
    (OUT / "packed.tar.bz2").write_bytes(bz2.compress(plain))
    (OUT / "packed.tar.xz").write_bytes(lzma.compress(plain))


if __name__ == "__main__":
    main()
