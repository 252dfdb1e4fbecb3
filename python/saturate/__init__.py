"""saturate's loader: reads, decodes, crops and augments on C++ threads, without Python's lock.

    import saturate

    loader = saturate.Loader("folder:photos/train", batch=64, size=224, crop="random_resized",
                             to="torch")
    for epoch in range(90):
        for images, labels in loader:
            ...
"""

import threading

from ._core import Error, __version__
from ._core import Loader as _Loader

__all__ = ["Error", "Loader", "__version__"]

# Arguments, and the recipe keys that they set (docs/recipe.md).
_KEYS = {
    "batch": "train.batch",
    "size": "augment.size",
    "crop": "augment.crop",
    "flip": "augment.flip",
    "threads": "data.threads",
    "prefetch": "data.prefetch",
    "shuffle": "data.shuffle",
    "drop_last": "train.drop_last",
    "decode": "data.decode",
    "cache": "data.cache",
    "on_error": "data.on_error",
    "mean": "augment.mean",
    "std": "augment.std",
    "seed": "seed",
}


def _text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return str(value)


def _converter(to):
    if to == "dlpack":
        return lambda array: array
    if to == "numpy":
        import numpy

        return numpy.from_dlpack
    if to == "torch":
        import torch

        return torch.from_dlpack
    if callable(to):
        return to
    raise ValueError(f'to={to!r}: use "numpy", "torch", "dlpack" or a function of a DLPack array')


class _Place:
    """The epoch, its next batch (skipped ones count too), and whether it has returned a batch."""

    __slots__ = ("epoch", "batch", "begun")

    def __init__(self, epoch=0, batch=0):
        self.epoch, self.batch, self.begun = epoch, batch, False


class _Iteration:
    """One pass through a loader, from its place to the end of the epoch."""

    def __init__(self, loader, place):
        self._loader, self._place = loader, place
        self._found = None  # taken from the loader, but not returned yet
        self._over = False
        self._lock = threading.Lock()  # several threads may share it

    def __iter__(self):
        return self

    def __next__(self):
        with self._lock:
            return self._next()

    def _next(self):
        loader, place = self._loader, self._place
        if self._over:
            raise StopIteration
        if loader._running is not place:
            raise Error("this iteration was ended by a newer one over the same loader: "
                        "make a separate saturate.Loader for each of two concurrent iterations")
        if self._found is None:  # else its conversion failed, and it is tried again
            self._found = loader._core.next()
        if self._found is None:
            self._over = True
            place.epoch, place.batch, place.begun = place.epoch + 1, 0, False
            raise StopIteration
        images, labels, _, names, index = self._found
        batch = loader._convert(images), loader._convert(labels)
        self._found = None
        place.batch, place.begun = index + 1, True
        return (*batch, names) if loader._names else batch


class Loader:
    """Batches of images and labels. Each iteration is an epoch from its first batch. After an iteration that
    returned a batch, complete or not, the next one is the next epoch; only load_state_dict() continues within
    an epoch. One iteration runs at a time: a new one ends the previous one, which then raises Error.

    source: "folder:PATH", "tar:PATH", "shard:PATH" etc.; see docs/data.md.
    train: whether to augment randomly and shuffle; otherwise the centre crop, in order.
    dtype: "float32", "float16" or "bfloat16", normalised by mean and std; or "uint8", as decoded.
    layout: "nchw" or "nhwc".
    to: "numpy", "torch", "dlpack" (which every framework can import), or a function of such an array.
    No pixel is copied.
    names: whether batches are (images, labels, names).
    options: any other key of a recipe, such as {"augment.hue": 0.1}.
    padding: border in pixels of crop="pad" and "pad_reflect", which may also be written crop="pad:4".

    The other arguments are keys of a recipe, with its defaults (docs/recipe.md). A batch's contents depend only
    on them, the seed and the epoch, not on threads. Raises saturate.Error.

    A batch's memory is reused when all its arrays are gone. Ctrl-C ends a wait for a batch. An interrupt or a
    failed conversion loses no batch: the iteration returns the same one next.
    """

    def __init__(self, source, *, train=True, dtype="float32", layout="nchw", to="numpy",
                 names=False, options=None, **arguments):
        overrides = [f"{key}={_text(value)}" for key, value in (options or {}).items()]
        padding = arguments.pop("padding", None)
        if padding is not None and str(arguments.get("crop")).startswith("pad"):
            arguments["crop"] += f":{padding}"
        for name, value in arguments.items():
            if name not in _KEYS:
                raise TypeError(f"Loader() has no argument {name!r}; keys of a recipe go in options")
            overrides.append(f"{_KEYS[name]}={_text(value)}")
        if layout not in ("nchw", "nhwc"):
            raise ValueError(f'layout={layout!r}: use "nchw" or "nhwc"')
        if dtype == "bfloat16" and to == "numpy":
            raise ValueError('numpy has no bfloat16: use to="torch", "dlpack" or a function')
        self._convert = _converter(to)
        self._names = names
        self._core = _Loader(source, overrides, train, dtype, layout == "nchw", names)
        self._at = _Place()   # for state_dict() and the next iteration
        self._running = None  # the place of the one iteration that may take batches

    def __len__(self):
        """Batches in a whole epoch; with on_error="skip", batches without a good sample are missing."""
        return self._core.batches

    def __iter__(self):
        last, self._running = self._at, None
        at = _Place(last.epoch + 1) if last.begun else _Place(last.epoch, last.batch)
        self._core.start_epoch(at.epoch, at.batch)
        self._at = self._running = at
        return _Iteration(self, at)

    @property
    def samples(self):
        """Samples in the source, like len(loader.dataset) of a DataLoader."""
        return self._core.size

    @property
    def batch_size(self):
        """Samples in a batch; the last one of an epoch may have fewer."""
        return self._core.batch

    @property
    def classes(self):
        """Names of the classes; a label is an index into them."""
        return self._core.classes

    @property
    def skipped(self):
        """(name, reason) of the first hundred samples skipped with on_error="skip"."""
        return self._core.skipped()

    def set_epoch(self, epoch):
        """The next iteration is this epoch, from its first batch. A current iteration continues."""
        self._at = _Place(epoch)

    def state_dict(self):
        """The position: the next iteration of a loader that loads it continues with the next batch."""
        return {"epoch": self._at.epoch, "batch": self._at.batch, **self._order()}

    def load_state_dict(self, state):
        """The next iteration continues at this position; a current one is not changed. Raises Error if the
        state is of another number of samples, batch size or seed: use set_epoch(state["epoch"]) then."""
        at = _Place(state["epoch"], state["batch"])
        for name, own in self._order().items():
            if state.get(name, own) != own:
                raise Error(f"the state is of a loader with {name} {state[name]}, but this one has {own}: "
                            f"make it with the same {name}, or start an epoch with set_epoch()")
        self._at = at

    def _order(self):
        """The values that a place in an epoch depends on."""
        return {"samples": self._core.size, "batch_size": self._core.batch, "seed": self._core.seed}
