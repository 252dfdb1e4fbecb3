"""saturate's loader in place of a DataLoader over torchvision's ImageFolder."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple, Union

from ._core import Error
from .loader import Loader
from .sources import ENCODED_ENDINGS, is_image_folder
from .world import found_world

TRANSFORMS = ("RandomResizedCrop", "RandomHorizontalFlip", "Normalize", "ToTensor", "PILToTensor", "ToImage",
              "ConvertImageDtype", "ToDtype", "ToPureTensor")
TO_BYTES = ("PILToTensor", "ToImage")
TO_TYPE = ("ConvertImageDtype", "ToDtype")
OTHERS = "only RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize have counterparts"


def _size(size: Any) -> Union[int, Tuple[int, int]]:
    sides = [int(side) for side in size] if isinstance(size, (list, tuple)) else [int(size)]
    return sides[0] if len(set(sides)) == 1 else (sides[0], sides[1])


class _Wrapper:
    """Torchvision's reference scripts have such classes around one Compose."""

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)  # type: ignore[attr-defined]


def _only_calls_transforms(kind: type) -> bool:
    code, wanted = getattr(kind.__call__, "__code__", None), _Wrapper.__call__.__code__
    return code is not None and (code.co_code, code.co_names) == (wanted.co_code, wanted.co_names)


def _is_torchvisions(part: Any) -> bool:
    return type(part).__module__.startswith("torchvision.")


def _flat(transform: Any) -> List[Any]:
    if type(transform).__name__ == "Compose" and _is_torchvisions(transform):
        return [part for each in transform.transforms for part in _flat(each)]
    if _only_calls_transforms(type(transform)) and hasattr(transform, "transforms"):
        return _flat(transform.transforms)
    return [] if transform is None else [transform]


def _why_not_crop(part: Any) -> str:
    interpolation = str(getattr(part.interpolation, "value", part.interpolation))
    if interpolation not in ("bilinear", "2"):  # 2 is PIL's number for it
        return f"saturate.Loader resizes by bilinear interpolation, and RandomResizedCrop by {interpolation}"
    return "RandomResizedCrop has antialias=False" if getattr(part, "antialias", True) is False else ""


def _why_not_type(part: Any) -> str:
    kind = str(part.dtype)
    if kind not in ("torch.float32", "torch.float16", "torch.bfloat16"):
        return f"saturate.Loader has no batches of {kind} that are scaled to 1"
    return "" if getattr(part, "scale", True) else f"{type(part).__name__} does not scale to 1 (scale=True)"


def _add(part: Any, found: Dict[str, Any]) -> str:
    """Adds the arguments of a transform; or why there are none."""
    name = type(part).__name__
    if name not in TRANSFORMS or not _is_torchvisions(part):
        return f"saturate.Loader has no counterpart of the transform {name}"
    if name == "ToTensor":
        found["dtype"] = "float32"
    elif name in TO_BYTES:
        found.setdefault("dtype", "uint8")  # unless another one scales it
    elif name in TO_TYPE:
        found["dtype"] = str(part.dtype).replace("torch.", "")
        return _why_not_type(part)
    elif name == "RandomResizedCrop":
        again = "crop" in found
        found.update(size=_size(part.size), crop="random_resized",
                     options={"augment.scale": list(part.scale), "augment.ratio": list(part.ratio)})
        return OTHERS if again else _why_not_crop(part)
    elif name == "RandomHorizontalFlip":
        found["flip"] = float(part.p)
    elif name == "Normalize":
        found.update(mean=[float(each) for each in part.mean], std=[float(each) for each in part.std])
    return ""


def is_of_torchvision(dataset: Any, *names: str) -> bool:
    """Whether its class is one of torchvision's folders of these names, or derived from one."""
    return any(each.__module__.startswith("torchvision.") and each.__name__ in names
               for each in type(dataset).__mro__)


def _sampling(loader: Any, found: Dict[str, Any]) -> str:
    """Adds the arguments that say which samples make a batch; or why there are none."""
    from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, default_collate

    sampler = loader.sampler
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return "batches are not made by batch_size"
    if loader.collate_fn is not default_collate:
        return "saturate.Loader has no counterpart of a collate_fn"
    if type(sampler) is DistributedSampler and (sampler.rank, sampler.num_replicas) == found_world():
        shuffles, found["uneven"] = sampler.shuffle, "drop" if sampler.drop_last else "pad"
    elif type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset):
        shuffles = True
    elif type(sampler) is SequentialSampler:
        shuffles = False
    else:
        return f"saturate.Loader has no counterpart of this {type(sampler).__name__}"
    if not shuffles:
        found["shuffle"] = False
    if loader.drop_last:
        found["drop_last"] = True
    return ""


def _has_samples_of(loader: Loader, root: str, dataset: Any) -> bool:
    """Whether it lists the same files with the same labels: as many files, each of which is one of the dataset's."""
    classes, samples = loader.classes, [(os.fspath(path), label) for path, label in dataset.samples]
    paths = {path for path, _ in samples}

    def has(path: str, label: int) -> bool:
        parts = path[len(root) + 1:].split(os.sep)
        return (label < len(classes) and parts[0] == classes[label] and path.lower().endswith(ENCODED_ENDINGS)
                and not any(part.startswith(".") for part in parts[:-1]))

    return (loader.samples == len(dataset) == len(dataset.samples) == len(paths)
            and all(has(*sample) for sample in samples))


def _folder_of(dataset: Any) -> Optional[str]:
    """The folder whose class folders have the samples, which for ImageNet is below `root`."""
    paths: List[str] = [os.fspath(path) for path, _ in dataset.samples]
    folder = os.path.commonprefix(paths).rpartition(os.sep)[0]
    for root in (folder, os.path.dirname(folder)):  # the latter if there is one class
        try:
            with Loader(f"folder:{root}", batch=1, size=8, threads=1, rank=0, world=1) as listed:
                if _has_samples_of(listed, root, dataset):
                    return root
        except Error:
            continue
    return None


def replacement_of(loader: Any) -> Tuple[Optional[Dict[str, Any]], str]:
    """saturate.Loader's arguments, and why there are none; neither for a dataset of another kind."""
    dataset = loader.dataset
    if not is_of_torchvision(dataset, "ImageFolder"):
        return None, ""
    if not is_image_folder(dataset):
        return None, "the dataset has its own way to read an image"
    found: Dict[str, Any] = {"flip": 0.0, "mean": [0.0] * 3, "std": [1.0] * 3}
    for part in _flat(dataset.transform):
        why_not = _add(part, found)
        if why_not:
            return None, why_not
    if "crop" not in found or "dtype" not in found or dataset.target_transform is not None:
        return None, OTHERS
    why_not = _sampling(loader, found)
    if why_not:
        return None, why_not
    root = _folder_of(dataset)
    if root is None:
        return None, "the dataset's samples are not those that saturate.Loader finds in their folder"
    return {"source": f"folder:{root}", "batch_size": loader.batch_size, "to": "torch", **found}, ""
