"""The sources of a loader: a text such as "folder:PATH", a path, or an object with __getitem__ and __len__."""

from __future__ import annotations

import array
import operator
import os
import sys
from typing import Any, Callable, List, Optional, Sequence, Tuple

# The form that _core reads: (buffer, width, height, channels, target, name, done). Width 0: an encoded image.
Packed = Tuple[Any, int, int, int, Any, Optional[bytes], Optional[Callable[[], object]]]

ENCODED_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".avif")


def packed(item: Any, target: str) -> Packed:
    """The result of a dataset's __getitem__."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"__getitem__ returned {_kind(item)} instead of (image, {target})")
    image, value = item
    return (*_pixels(image), TARGETS[target](value), None, None)


def _label(label: Any) -> int:
    try:
        number = operator.index(label)
    except TypeError:
        hint = '; for several labels use target="labels", for a mask target="mask"' if hasattr(label, "__len__") else ""
        raise TypeError(f"its label is {_kind(label)} instead of an integer{hint}") from None
    if not -2**63 <= number < 2**63:
        raise ValueError(f"its label {number} does not fit 64 bits")
    return number


def _labels(labels: Any) -> Tuple[bool, bytes]:
    """(whether they are floats, their bytes): int64 if all are integers, else float32."""
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(values, (list, tuple)):  # perhaps of numpy's scalars
        values = [one.item() if getattr(one, "shape", None) == () else one for one in values]
    if not isinstance(values, (list, tuple)) or not values or not all(isinstance(one, (int, float)) for one in values):
        raise TypeError(f"its labels are {_kind(labels)} instead of a list or array [k] of numbers")
    is_float = any(isinstance(one, (bool, float)) for one in values)
    try:
        return is_float, array.array("f" if is_float else "q", values).tobytes()
    except OverflowError:
        raise ValueError("one of its labels does not fit 64 bits") from None


def _mask(mask: Any) -> Tuple[Any, int, int]:
    """(bytes, width, height); width 0: a PNG."""
    if isinstance(mask, (bytes, bytearray, memoryview)):
        return bytes(mask), 0, 0
    if _is_pil(mask):
        if mask.mode not in ("L", "P"):
            raise TypeError(f'its mask has mode "{mask.mode}" instead of "L" or "P": a class for each pixel')
        return mask.tobytes(), *mask.size
    shape, dtype = getattr(mask, "shape", None), str(getattr(mask, "dtype", ""))
    if shape is None or not hasattr(mask, "__array_interface__"):
        raise TypeError(f"its mask is {_kind(mask)} instead of an array of uint8, a PIL image, or bytes of a PNG")
    if dtype != "uint8" or len(shape) != 2 or 0 in shape:
        raise TypeError(f"its mask is an array of {dtype} {list(shape)} instead of uint8 [height, width]: the class of "
                        "each pixel, or 255")
    return mask.tobytes(), shape[1], shape[0]


# Kinds of an item's second part.
TARGETS = {"label": _label, "labels": _labels, "mask": _mask}


def _is_pil(image: Any) -> bool:
    return hasattr(image, "tobytes") and hasattr(image, "mode") and hasattr(image, "convert")


def _pixels(image: Any) -> Tuple[Any, int, int, int]:
    if isinstance(image, (bytes, bytearray, memoryview)):
        return image, 0, 0, 0
    if _is_pil(image):
        if image.mode.startswith(("I", "F")):  # which Pillow would clip to white
            raise TypeError(f'its image has mode "{image.mode}" instead of 8 bits for a channel: scale it to uint8')
        if image.mode not in ("RGB", "L"):
            image = image.convert("RGB")
        width, height = image.size
        return image.tobytes(), width, height, 1 if image.mode == "L" else 3
    shape, dtype = getattr(image, "shape", None), str(getattr(image, "dtype", ""))
    if shape is None or not hasattr(image, "__array_interface__"):
        raise TypeError(f"its image is {_kind(image)} instead of bytes, an array of uint8, or a PIL image; "
                        "a dataset's transform must not make tensors")
    if dtype != "uint8" or len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)):
        hint = "" if dtype == "uint8" else (
            ': scale images to uint8; other data, such as spectrograms or tables, are read from files ("npz:FILE")')
        raise TypeError(f"its image is an array of {dtype} {list(shape)} instead of uint8 "
                        f"[height, width, 3], [height, width, 1] or [height, width]{hint}")
    if 0 in shape:
        raise ValueError(f"its image {list(shape)} is empty")
    contiguous = image if image.flags["C_CONTIGUOUS"] else image.copy(order="C")
    return contiguous, shape[1], shape[0], shape[2] if len(shape) == 3 else 1


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


class OwnSource:
    """A dataset of the user's own, read in this process: Python's lock is held in its __getitem__ alone."""

    def __init__(self, dataset: Any, target: str) -> None:
        self.dataset = dataset
        self.target = target
        self.size = len(dataset)

    def read(self, index: int) -> Packed:
        return packed(self.dataset[index], self.target)

    def stop(self) -> None:
        """Ends reads by other processes, for which the loader's threads wait."""

    def close(self) -> None:
        pass


class ImageFolderSource(OwnSource):
    """torchvision's ImageFolder without transforms: its files, which saturate decodes to the same pixels."""

    def read(self, index: int) -> Packed:
        path, label = self.dataset.samples[index]
        if not path.lower().endswith(ENCODED_ENDINGS):
            return super().read(index)
        with open(path, "rb") as file:
            return file.read(), 0, 0, 0, label, os.fsencode(path), None


def is_image_folder(source: Any) -> bool:
    """Whether it is torchvision's, and its images are files that it decodes as they are."""
    folder = sys.modules.get("torchvision.datasets.folder")
    return (folder is not None and isinstance(source, folder.DatasetFolder)
            and type(source).__getitem__ is folder.DatasetFolder.__getitem__
            and source.loader is folder.default_loader)


def text_of_source(source: Any) -> Optional[str]:
    """A source that the recipe names; None: an object that is a dataset. Raises TypeError on any other."""
    if isinstance(source, str):
        return source
    if isinstance(source, os.PathLike):
        path = os.fsdecode(source)
        return path if os.path.isabs(path) else os.path.join(".", path)  # "a:b" is no scheme in a path
    if hasattr(source, "dataset") and hasattr(source, "batch_sampler"):
        raise TypeError("source is a DataLoader: give saturate.Loader its dataset instead (source=loader.dataset), "
                        "and batch_size and the transforms as arguments")
    is_none = isinstance(source, (bytes, bytearray, dict))  # which have both
    if is_none or not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise TypeError(f'source is {_kind(source)}: give a text such as "folder:PATH", a path, or a dataset '
                        "with __getitem__ and __len__")
    return None


def open_source(source: Any, processes: int, target: str) -> OwnSource:
    """A dataset's reader, on the loader's threads or on processes."""
    if not isinstance(target, str) or target not in TARGETS:
        raise ValueError(f'target={target!r}: use "label", "labels" or "mask"')
    if processes > 0:
        from .workers import ProcessSource

        return ProcessSource(source, processes, target)
    is_plain = (target == "label" and is_image_folder(source)
                and source.transform is None and source.target_transform is None)
    return (ImageFolderSource if is_plain else OwnSource)(source, target)


def classes_of(source: Any, classes: Optional[Sequence[str]]) -> List[str]:
    """Names of the classes; none if they are unknown, and then any label is allowed."""
    if classes is None:
        classes = getattr(source, "classes", None)
        if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
            return []
    if isinstance(classes, str) or not hasattr(classes, "__iter__"):
        raise TypeError(f"classes={classes!r}: give a list of names")
    return [str(name) for name in classes]
