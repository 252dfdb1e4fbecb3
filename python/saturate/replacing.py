"""saturate's loader in place of a DataLoader over torchvision's ImageFolder."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union

SCALINGS = ("ToTensor", "ToImage", "PILToTensor", "ConvertImageDtype", "ToDtype", "ToPureTensor")


def _size(size: Any) -> Union[int, Tuple[int, int]]:
    sides = [int(side) for side in size] if isinstance(size, (list, tuple)) else [int(size)]
    return sides[0] if len(set(sides)) == 1 else (sides[0], sides[1])


class _Wrapper:
    """Torchvision's reference scripts have such classes, of one Compose."""

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)  # type: ignore[attr-defined]


def _only_calls_transforms(kind: type) -> bool:
    code, wanted = getattr(kind.__call__, "__code__", None), _Wrapper.__call__.__code__
    return code is not None and (code.co_code, code.co_names) == (wanted.co_code, wanted.co_names)


def _flat(transform: Any) -> List[Any]:
    kind = type(transform)
    if kind.__name__ == "Compose" and kind.__module__.startswith("torchvision."):
        return [part for each in transform.transforms for part in _flat(each)]
    if _only_calls_transforms(kind) and hasattr(transform, "transforms"):
        return _flat(transform.transforms)
    return [] if transform is None else [transform]


def _add(part: Any, found: Dict[str, Any]) -> bool:
    """Adds the arguments of a transform; False if it has no counterpart."""
    name = type(part).__name__
    if name in SCALINGS:
        found["dtype"] = "float32"
    elif name == "RandomResizedCrop":
        found.update(size=_size(part.size), crop="random_resized",
                     options={"augment.scale": list(part.scale), "augment.ratio": list(part.ratio)})
    elif name == "RandomHorizontalFlip":
        found["flip"] = float(part.p)
    elif name == "Normalize":
        found.update(mean=[float(each) for each in part.mean], std=[float(each) for each in part.std])
    else:
        return False
    return True


def is_of_torchvision(dataset: Any, *names: str) -> bool:
    """Whether its class is one of torchvision's folders of these names, or derived from one."""
    return any(each.__module__.startswith("torchvision.") and each.__name__ in names
               for each in type(dataset).__mro__)


def replacement_of(loader: Any) -> Tuple[Optional[Dict[str, Any]], str]:
    """saturate.Loader's arguments, and why there are none; neither for a dataset of another kind."""
    dataset = loader.dataset
    if not is_of_torchvision(dataset, "ImageFolder"):
        return None, ""
    if loader.batch_size is None:
        return None, "batches are not made by batch_size"
    found: Dict[str, Any] = {"flip": 0.0, "mean": [0.0] * 3, "std": [1.0] * 3}
    for part in _flat(dataset.transform):
        if not _add(part, found):
            return None, f"saturate.Loader has no counterpart of the transform {type(part).__name__}"
    if "crop" not in found or "dtype" not in found or dataset.target_transform is not None:
        return None, "only RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize have counterparts"
    return {"source": f"folder:{dataset.root}", "batch_size": loader.batch_size, "to": "torch", **found}, ""
