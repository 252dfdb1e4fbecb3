"""Datasets for the tests, in a module so that processes can import them."""

import io
import os
import pathlib
import time

import numpy as np

IMAGES = pathlib.Path(__file__).resolve().parents[2] / "tests/goldens/image/inputs"
PNG = next(IMAGES.rglob("*.png"))


class Numbered:
    """Sample i is a constant image of level i, labelled i."""

    def __init__(self, size, side=6):
        self.size, self.side = size, side

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index >= self.size:
            raise IndexError(index)
        return np.full((self.side, self.side, 3), index % 256, np.uint8), index


class Noisy(Numbered):
    """Sample i is noise of its own, labelled i."""

    def __init__(self, size):
        super().__init__(size, side=24)

    def __getitem__(self, index):
        label = super().__getitem__(index)[1]
        return np.random.default_rng(label).integers(0, 256, (self.side, self.side, 3), np.uint8), label


FIELD_KINDS = ("npy", "npz", "lengths", "csv", "tokens", "volume")


def field_arguments(kind, folder):
    """Arguments of a Loader of 37 samples of tensors, which it returns in batches of 8."""
    random = np.random.default_rng(5)
    x, y = random.normal(size=(37, 5)).astype(np.float32), np.arange(37)
    volumes = random.integers(0, 100, (37, 5, 6, 7)).astype(np.uint8)
    if kind == "npy":
        np.save(folder / "x.npy", x)
    elif kind == "npz":
        np.savez(folder / "a.npz", x=x, half=x.astype(np.float16), positive=x > 0, bytes=volumes, y=y)
    elif kind == "lengths":
        np.savez(folder / "a.npz", x=random.integers(1, 9, (37, 30)), n=random.integers(1, 30, 37), y=y)
    elif kind == "csv":
        (folder / "t.csv").write_text("\n".join(["a,b,price", *(f"{a!r},{b!r},{a - b!r}" for a, b, *_ in x.tolist())]))
    elif kind == "tokens":
        np.arange(37 * 8 + 1, dtype=np.uint16).tofile(folder / "t.bin")
    else:
        np.savez(folder / "a.npz", x=volumes, y=volumes.astype(np.int32))
    rest = {"npy": "x.npy", "npz": "a.npz", "lengths": "a.npz,lengths=n", "csv": "t.csv", "tokens": "t.bin,context=8",
            "volume": "a.npz,volume=x"}[kind]
    scheme = kind if kind in ("npy", "csv", "tokens") else "npz"
    cropped = {"crop": "random", "size": 4, "flip": 0.5} if kind == "volume" else {}
    return {"source": f"{scheme}:{folder}/{rest}", "batch": 8, "threads": 2, "seed": 3, "to": "torch", **cropped}


def resumed_labels(first, second):
    """Labels of an epoch of `first`; and those of its next iteration up to the fifth batch, continued by `second`."""
    whole = [labels.tolist() for _, labels in first]
    first.set_epoch(0)
    found = []
    for _, labels in first:
        found.append(labels.tolist())
        if len(found) == 5:
            break
    second.load_state_dict(first.state_dict())
    return whole, found + [labels.tolist() for _, labels in second]


class Broken(Numbered):
    """One whose sample 3 raises."""

    def __init__(self, size, error=ValueError("no good\nsecond line")):
        super().__init__(size)
        self.error = error

    def __getitem__(self, index):
        if index == 3:
            raise self.error
        return super().__getitem__(index)


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class OddlyBroken(Numbered):
    def __getitem__(self, index):
        raise Unpicklable(1, 2)


class Deadly(Numbered):
    """One whose sample 3 ends its process."""

    def __getitem__(self, index):
        if index == 3:
            os._exit(7)
        return super().__getitem__(index)


class Hanging(Numbered):
    """One whose sample 5 does not come."""

    def __getitem__(self, index):
        if index == 5:
            time.sleep(600)
        return super().__getitem__(index)


class InDatabase(Numbered):
    """Levels of images in a database of sqlite3, opened when the first is read."""

    connection = None

    def __init__(self, path, size):
        super().__init__(size)
        self.path = path

    def __getitem__(self, index):
        import sqlite3

        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
        (level,), = self.connection.execute("SELECT level FROM levels WHERE rowid = ?", (index + 1,))
        return super().__getitem__(level)


class ProcessIds(Numbered):
    """The label is the process that read the sample."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0], os.getpid()


class Large(Numbered):
    """Images of 81 MB, more than shared memory takes."""

    def __getitem__(self, index):
        return np.full((5200, 5200, 3), index, np.uint8), index


def png_of(array):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


class Sleeping:
    """24 samples, each of which takes a known time without computing."""

    SECONDS = 0.003

    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(self.SECONDS)
        return index


class NoteWorker:
    """A program's worker_init_fn: notes each worker that starts, in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, worker):
        import uuid

        open(os.path.join(self.folder, f"{worker}-{uuid.uuid4()}"), "w").close()
