"""saturate.Loader's arguments for torchvision's transforms."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

MAGNITUDES = 31  # of the policies
# In this order saturate.Loader changes an image that is cropped, by one of each line.
ORDER = (("RandomAffine", "RandomRotation"), ("TrivialAugmentWide", "RandAugment"), ("ColorJitter",),
         ("RandomGrayscale",), ("GaussianBlur",), ("Normalize",), ("RandomErasing",))
PADDED = {"constant": "pad", "reflect": "pad_reflect"}


class Counterparts:
    """Filled by add(). `why_not`: of a transform that has none; `differences`: between a transform and its counterpart,
    beyond rounding."""

    def __init__(self) -> None:
        self.arguments: Dict[str, Any] = {"flip": 0.0, "mean": [0.0] * 3, "std": [1.0] * 3}
        self.options: Dict[str, Any] = {}
        self.differences: List[str] = []
        self.why_not = ""
        self.shorter_side = 0  # that a Resize has made; 0: none, or a crop followed
        self._place = -1       # of the last one in ORDER

    def add(self, part: Any) -> None:
        name = type(part).__name__
        if name not in ADDED or not is_torchvisions(part):
            self.why_not = f"saturate.Loader has no counterpart of the transform {name}"
            return
        place = next((number for number, names in enumerate(ORDER) if name in names), None)
        is_late = self._place >= 0 if name in CROPS else place is not None and place <= self._place
        if is_late or (name == "RandomHorizontalFlip" and "augment.policy" in self.options):
            self.why_not = f"saturate.Loader applies {name} at another place among the transforms"
            return
        self._place = self._place if place is None else place
        self.why_not = ADDED[name](part, self)

    @property
    def are_complete(self) -> bool:
        return "crop" in self.arguments and "dtype" in self.arguments and not self.shorter_side


def is_torchvisions(part: Any) -> bool:
    return type(part).__module__.startswith("torchvision.")


def _unlike(part: Any) -> str:
    return f"saturate.Loader has no counterpart of these arguments of {type(part).__name__}"


def _interpolation(part: Any) -> str:
    kind = str(getattr(part.interpolation, "value", part.interpolation))
    return "bilinear" if kind == "2" else kind  # PIL's number for it


def _sides(size: Any) -> List[int]:
    return [int(side) for side in size] if isinstance(size, (list, tuple)) else [int(size)]


def _size(part: Any) -> Union[int, Tuple[int, int]]:
    sides = _sides(part.size)
    return sides[0] if len(set(sides)) == 1 else (sides[0], sides[1])


def _crop(part: Any, found: Counterparts, crop: str) -> str:
    if "crop" in found.arguments:
        return f"saturate.Loader crops once, and {type(part).__name__} does it again"
    found.arguments.update(size=_size(part), crop=crop)
    return ""


def _why_not_resized(part: Any) -> str:
    if _interpolation(part) != "bilinear":
        return f"saturate.Loader resizes by bilinear interpolation, and {type(part).__name__} by {_interpolation(part)}"
    return f"{type(part).__name__} has antialias=False" if getattr(part, "antialias", True) is False else ""


def _random_resized_crop(part: Any, found: Counterparts) -> str:
    if found.shorter_side:
        return _unlike(part)
    found.options.update({"augment.scale": list(part.scale), "augment.ratio": list(part.ratio)})
    return _crop(part, found, "random_resized") or _why_not_resized(part)


def _resize(part: Any, found: Counterparts) -> str:
    if part.max_size is not None or found.shorter_side or "crop" in found.arguments:
        return _unlike(part)
    if len(_sides(part.size)) == 2:
        return _crop(part, found, "none") or _why_not_resized(part)
    found.shorter_side, = _sides(part.size)
    return _why_not_resized(part)


def _center_crop(part: Any, found: Counterparts) -> str:
    side = _size(part)
    if not isinstance(side, int) or side > found.shorter_side:
        return _unlike(part)
    found.options["augment.eval_resize"] = found.shorter_side / side
    found.differences.append("the CenterCrop's place differs by less than a pixel")
    found.shorter_side = 0
    return _crop(part, found, "center")


def _random_crop(part: Any, found: Counterparts) -> str:
    """After a Resize to the same size: saturate.Loader pads whole images."""
    borders = set(_sides(part.padding or 0))
    is_of_whole = (found.arguments.get("crop"), found.arguments.get("size")) == ("none", _size(part))
    if not is_of_whole or len(borders) != 1 or part.padding_mode not in PADDED or part.fill != 0:
        return _unlike(part)
    if borders != {0}:
        found.arguments["crop"] = f"{PADDED[part.padding_mode]}:{borders.pop()}"
    return ""


def _flip(part: Any, found: Counterparts) -> str:
    found.arguments["flip"] = float(part.p)
    return ""


def _add_range(found: Counterparts, option: str, given: Optional[Sequence[float]], center: float = 0.0,
               least: float = -math.inf) -> bool:
    """Adds an option. Whether its range reaches as far to both sides of the centre, but not below `least`."""
    if given is None:
        return True
    reach = round(given[1] - center, 9)
    if reach > 0:
        found.options[option] = reach
    return len(given) == 2 and abs(max(least, center - reach) - given[0]) < 1e-9


def _interpolated(part: Any, found: Counterparts) -> str:
    if part.fill is not None and part.fill != 0:
        return _unlike(part)
    if _interpolation(part) != "bilinear":
        found.differences.append(f"{type(part).__name__} with bilinear interpolation")
    return ""


def _affine(part: Any, found: Counterparts) -> str:
    shifts = getattr(part, "translate", None)
    are_even = [_add_range(found, "augment.rotate", part.degrees),
                _add_range(found, "augment.translate", None if shifts is None else (-shifts[0], shifts[1])),
                _add_range(found, "augment.zoom", getattr(part, "scale", None), 1.0),
                _add_range(found, "augment.shear", getattr(part, "shear", None))]
    if not all(are_even) or part.center is not None or getattr(part, "expand", False):
        return _unlike(part)
    return _interpolated(part, found)


def _policy(part: Any, found: Counterparts) -> str:
    if part.num_magnitude_bins != MAGNITUDES:
        return _unlike(part)
    is_trivial = type(part).__name__ == "TrivialAugmentWide"
    found.options["augment.policy"] = "trivial" if is_trivial else f"rand:{part.num_ops}:{part.magnitude}"
    return _interpolated(part, found)


def _color_jitter(part: Any, found: Counterparts) -> str:
    given = [part.brightness, part.contrast, part.saturation, part.hue]
    are_even = [_add_range(found, f"augment.{name}", factor, 1.0, 0.0)
                for name, factor in zip(("brightness", "contrast", "saturation"), given)]
    if not all(are_even) or not _add_range(found, "augment.hue", part.hue):
        return _unlike(part)
    if sum(each is not None for each in given) > 1:
        found.differences.append("ColorJitter's changes are always in its arguments' order")
    return ""


def _grayscale(part: Any, found: Counterparts) -> str:
    found.options["augment.grey"] = float(part.p)
    return ""


def _blur(part: Any, found: Counterparts) -> str:
    found.options["augment.blur"] = [1.0, *(float(each) for each in part.sigma)]
    found.differences.append("GaussianBlur's kernel has three deviations each way")
    return ""


def _normalize(part: Any, found: Counterparts) -> str:
    found.arguments.update(mean=[float(each) for each in part.mean], std=[float(each) for each in part.std])
    return ""


def _erasing(part: Any, found: Counterparts) -> str:
    """With the mean, which is 0 where it comes in ORDER."""
    values = part.value if isinstance(part.value, (list, tuple)) else [part.value]
    found.options.update({"augment.erase": float(part.p), "augment.erase_scale": list(part.scale),
                          "augment.erase_ratio": list(part.ratio)})
    return "" if all(each == 0 for each in values) else _unlike(part)


def _to_tensor(_: Any, found: Counterparts) -> str:
    found.arguments["dtype"] = "float32"
    return ""


def _to_bytes(_: Any, found: Counterparts) -> str:
    found.arguments.setdefault("dtype", "uint8")  # unless another one scales it
    return ""


def _to_type(part: Any, found: Counterparts) -> str:
    kind = str(part.dtype)
    found.arguments["dtype"] = kind.replace("torch.", "")
    if kind not in ("torch.float32", "torch.float16", "torch.bfloat16"):
        return f"saturate.Loader has no batches of {kind} that are scaled to 1"
    return "" if getattr(part, "scale", True) else f"{type(part).__name__} does not scale to 1 (scale=True)"


# Functions that add a transform's counterpart, or return why there is none.
Add = Callable[[Any, Counterparts], str]
CROPS: Dict[str, Add] = {"RandomResizedCrop": _random_resized_crop, "Resize": _resize, "CenterCrop": _center_crop,
                         "RandomCrop": _random_crop}
ADDED: Dict[str, Add] = {**CROPS, "RandomHorizontalFlip": _flip, "RandomAffine": _affine, "RandomRotation": _affine,
                         "TrivialAugmentWide": _policy, "RandAugment": _policy, "ColorJitter": _color_jitter,
                         "RandomGrayscale": _grayscale, "GaussianBlur": _blur, "Normalize": _normalize,
                         "RandomErasing": _erasing, "ToTensor": _to_tensor, "PILToTensor": _to_bytes,
                         "ToImage": _to_bytes, "ConvertImageDtype": _to_type, "ToDtype": _to_type,
                         "ToPureTensor": lambda _part, _found: ""}
