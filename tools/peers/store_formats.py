"""The photographs of a folder in the formats of the loaders that store_peers.py compares, each written once.

    tools/peers/store_formats.py FORMAT BUCKET SHARDS SET SATURATE    writes BUCKET/SET/FORMAT from BUCKET/folder

All hold the same JPEG files with the numbers of their classes; only `shard` stores them otherwise (`saturate data pack`
cuts them into segments, without changing a pixel).
"""

import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor

FORMATS = ("tar", "shard", "mds", "litdata")


def photographs(folder):
    """(path, number of its class), in the order of torchvision's ImageFolder."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [(path, label) for label, name in enumerate(classes)
            for path in sorted((pathlib.Path(folder) / name).iterdir())]


def copy_photographs(data, folder, count):
    """`count` files from those of `data`, which are repeated under other names if they are fewer."""
    files = [path for path in sorted(pathlib.Path(data).rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    if not files:
        raise SystemExit(f"{data} has no JPEG files: name a folder with one folder for each class")
    partial = folder.with_name("folder.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for number in range(count):
        file = files[number % len(files)]
        target = partial / file.parent.name / f"{number // len(files):03}_{file.stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    partial.rename(folder)


def groups(items, shards):
    """The photographs of each shard. Copies and classes are spread over the shards."""
    return [items[number::shards] for number in range(shards)]


def write_tar(items, out, shards, _):
    def add(archive, name, data):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))

    out.mkdir()
    for number, group in enumerate(groups(items, shards)):
        with tarfile.open(out / f"{number:06}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for index, (path, label) in enumerate(group):
                add(archive, f"{number:06}{index:06}.jpg", path.read_bytes())
                add(archive, f"{number:06}{index:06}.cls", str(label).encode())


def write_shard(items, out, shards, saturate):
    """Above 100 shards only the first 100 are packed, and linked under the other names: packing starts a process."""
    out.mkdir()
    packed = groups(items, shards)[:100]

    def pack(number):
        with tempfile.TemporaryDirectory(dir=out) as folder:
            for path, _ in packed[number]:
                target = pathlib.Path(folder, path.parent.name, path.name)
                target.parent.mkdir(exist_ok=True)
                os.link(path, target)
            subprocess.run([saturate, "data", "pack", f"folder:{folder}", "--threads", "1", "--out",
                            f"shard:{out}/{number:06}.shard"], check=True, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(pack, range(len(packed))))
    for number in range(len(packed), shards):
        os.link(out / f"{number % len(packed):06}.shard", out / f"{number:06}.shard")


def write_mds(items, out, shards, _):
    """MosaicML Streaming limits a shard's bytes, not its samples: its writer is told where each ends."""
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"jpg": "bytes", "label": "int"}, size_limit=None) as writer:
        for group in groups(items, shards):
            for path, label in group:
                writer.write({"jpg": path.read_bytes(), "label": label})
            writer.flush_shard()
            writer._reset_cache()


def litdata_sample(item):
    path, label = item
    return {"jpg": pathlib.Path(path).read_bytes(), "label": label}


def write_litdata(items, out, shards, _):
    import litdata

    ordered = [(str(path), label) for group in groups(items, shards) for path, label in group]
    litdata.optimize(fn=litdata_sample, inputs=ordered, output_dir=str(out), num_workers=1,
                     chunk_size=-(-len(items) // shards),
                     start_method="fork")  # it sets the caller's too, to spawn by default


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def prepare(bucket, data, count, sets, saturate):
    """Writes what is missing; returns the formats that cannot be written, by name, with the reason."""
    bucket.mkdir(parents=True, exist_ok=True)
    if not (bucket / "folder").exists():
        copy_photographs(data, bucket / "folder", count)
    missing = {}
    for name, shards in sets.items():
        for form in FORMATS:
            if (bucket / name / form).exists() or form in missing:
                continue
            made = subprocess.run([sys.executable, __file__, form, bucket, str(shards), name, saturate],
                                  capture_output=True, text=True)
            if made.returncode:
                lines = (made.stderr or made.stdout).strip().splitlines()
                missing[form] = lines[-1] if lines else f"exit status {made.returncode}"
    return missing


def main():
    form, bucket, shards, name, saturate = sys.argv[1:]
    out = pathlib.Path(bucket, name, form)
    out.parent.mkdir(exist_ok=True)
    partial = out.with_name(f"{form}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    globals()[f"write_{form}"](photographs(pathlib.Path(bucket) / "folder"), partial, int(shards), saturate)
    partial.rename(out)


if __name__ == "__main__":
    main()
