"""saturate's loader in place of a DataLoader over torchvision's ImageFolder."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ._core import Error
from .counterparts import Counterparts, is_torchvisions
from .loader import Loader
from .sources import ENCODED_ENDINGS, is_image_folder
from .world import found_world

NO_FOLDER = "the dataset is not torchvision's ImageFolder"
NO_BATCH_SIZE = "batches are not made by batch_size"


class Replacement(NamedTuple):
    """saturate.Loader's arguments, or why there are none."""

    arguments: Optional[Dict[str, Any]] = None
    why_not: str = ""
    differences: Tuple[str, ...] = ()  # of the batches, beyond rounding and the order


class _Wrapper:
    """Torchvision's reference scripts have such classes around one Compose."""

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)  # type: ignore[attr-defined]


def _only_calls_transforms(kind: type) -> bool:
    code, wanted = getattr(kind.__call__, "__code__", None), _Wrapper.__call__.__code__
    return code is not None and (code.co_code, code.co_names) == (wanted.co_code, wanted.co_names)


def _flat(transform: Any) -> List[Any]:
    if type(transform).__name__ == "Compose" and is_torchvisions(transform):
        return [part for each in transform.transforms for part in _flat(each)]
    if _only_calls_transforms(type(transform)) and hasattr(transform, "transforms"):
        return _flat(transform.transforms)
    return [] if transform is None else [transform]


def is_of_torchvision(dataset: Any, *names: str) -> bool:
    """Whether its class is one of torchvision's folders of these names, or derived from one."""
    return any(each.__module__.startswith("torchvision.") and each.__name__ in names
               for each in type(dataset).__mro__)


def _sampling(loader: Any, found: Dict[str, Any]) -> str:
    """Adds the arguments that say which samples make a batch; or why there are none."""
    from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, default_collate

    sampler = loader.sampler
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        return NO_BATCH_SIZE
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
    if type(sampler) is not DistributedSampler and found_world()[1] > 1:  # each process reads all samples
        if shuffles:
            return "each process shuffles all samples by its own random numbers"
        found["rank"], found["world"] = 0, 1
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


def replacement_of(loader: Any) -> Replacement:
    dataset = loader.dataset
    if not is_of_torchvision(dataset, "ImageFolder"):
        return Replacement(why_not=NO_FOLDER)
    if not is_image_folder(dataset):
        return Replacement(why_not="the dataset has its own way to read an image")
    if dataset.target_transform is not None:
        return Replacement(why_not="saturate.Loader has no counterpart of a target_transform")
    found = Counterparts()
    for part in _flat(dataset.transform):
        found.add(part)
        if found.why_not:
            return Replacement(why_not=found.why_not)
    if not found.are_complete:
        return Replacement(why_not="the transforms do not make tensors of one size")
    why_not = _sampling(loader, found.arguments)
    if why_not:
        return Replacement(why_not=why_not)
    root = _folder_of(dataset)
    if root is None:
        return Replacement(why_not="the dataset's samples are not those that saturate.Loader finds in their folder")
    arguments: Dict[str, Any] = {"source": f"folder:{root}", "batch_size": loader.batch_size, "to": "torch",
                                 **found.arguments}
    if found.options:
        arguments["options"] = found.options
    return Replacement(arguments, differences=tuple(found.differences))
