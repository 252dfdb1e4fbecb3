"""saturate's loader: reads, decodes, crops and augments on C++ threads, without Python's lock.

    import saturate

    loader = saturate.Loader("folder:photos/train", batch=64, size=224, crop="random_resized",
                             to="torch")
    for epoch in range(90):
        for images, labels in loader:
            ...
"""

from ._core import Error, __version__
from ._core import Loader as _Loader

__all__ = ["Error", "Loader", "__version__"]

# Arguments that are keys of a recipe by another name (docs/recipe.md).
_KEYS = {
    "batch": "train.batch",
    "size": "augment.size",
    "crop": "augment.crop",
    "padding": "augment.padding",
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
    raise ValueError(f'to={to!r}: give "numpy", "torch", "dlpack" or a function of a DLPack array')


class Loader:
    """Batches of images and labels. Iterating over it is one epoch; the next time is the next epoch, or the
    rest of one that was left.

    source: "folder:PATH", "tar:PATH", "shard:PATH" and so on: docs/data.md.
    train: augment at random and shuffle; otherwise the centre crop, in order.
    dtype: "float32" or "bfloat16", normalised by mean and std, or "uint8", as decoded.
    layout: "nchw" or "nhwc". to: "numpy", "torch", "dlpack" (what every framework can import), or a
    function from such an array; no pixel is copied. options: any other key of a recipe, such as
    {"augment.hue": 0.1}. names: batches are (images, labels, names).

    The other arguments are those of a recipe, with its defaults (docs/recipe.md). What a batch holds
    depends on them, the seed and the epoch alone, not on threads. Raises saturate.Error.

    A batch's memory is used again once all its arrays are gone. Not for use by several threads at once.
    """

    def __init__(self, source, *, train=True, dtype="float32", layout="nchw", to="numpy",
                 names=False, options=None, **arguments):
        overrides = [f"{key}={_text(value)}" for key, value in (options or {}).items()]
        for name, value in arguments.items():
            if name not in _KEYS:
                raise TypeError(f"Loader() has no argument {name!r}; keys of a recipe go in options")
            overrides.append(f"{_KEYS[name]}={_text(value)}")
        if layout not in ("nchw", "nhwc"):
            raise ValueError(f'layout={layout!r}: give "nchw" or "nhwc"')
        if dtype == "bfloat16" and to == "numpy":
            raise ValueError('numpy has no bfloat16: give to="torch", "dlpack" or a function')
        self._convert = _converter(to)
        self._names = names
        self._loader = _Loader(source, overrides, train, dtype, layout == "nchw", names)
        self._epoch = 0  # the one that begins, or is under way
        self._batch = 0  # of it, the next one; those left out count too

    def __len__(self):
        """Batches in an epoch."""
        return self._loader.batches

    def __iter__(self):
        self._loader.start_epoch(self._epoch, self._batch)
        while (found := self._loader.next()) is not None:
            images, labels, _, names, place = found
            self._batch = place + 1
            batch = self._convert(images), self._convert(labels)
            yield (*batch, names) if self._names else batch
        self._epoch, self._batch = self._epoch + 1, 0

    @property
    def samples(self):
        """Samples in the source."""
        return self._loader.size

    @property
    def classes(self):
        """Names of the classes; a label is a position here."""
        return self._loader.classes

    @property
    def skipped(self):
        """(name, reason) of samples left out under on_error="skip", the first hundred."""
        return self._loader.skipped()

    def set_epoch(self, epoch):
        """The next iteration is this epoch, from its first batch."""
        self._epoch, self._batch = epoch, 0

    def state_dict(self):
        """Where it is: the next iteration of a loader that loads this goes on with the next batch."""
        return {"epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state):
        self._epoch, self._batch = state["epoch"], state["batch"]
