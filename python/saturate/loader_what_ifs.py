"""What-ifs of a torch DataLoader: copies of it with one argument changed. The loader itself is never iterated."""

from __future__ import annotations

import contextlib
import copy
import itertools
import multiprocessing
import os
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .device_time import used_gpus
from .loader import Loader
from .patches import Copies
from .patching import Edit
from .replacing import NO_BATCH_SIZE, NO_FOLDER, is_of_torchvision, replacement_of
from .turns import Remedy, WhatIf, not_tried

REPRESENTATIVES = 256  # samples that stand for the dataset in a cache, or as many as a batch has
OF_DATALOADER = ("workers-too-few", "workers-too-many", "prefetch", "persistent-workers", "pin-memory", "decode-cache",
                 "saturate-loader", "batch-size")
FORKED_S = 60          # without a batch, after which a change that adds workers has failed
FORK = "fork"          # the only way to start workers that does not run the script's top level in them

Starts = Tuple[int, List[float], List[float]]


class Endless:
    """A sampler that begins again at its end, so that no turn contains the end of an epoch."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            is_empty = True
            for each in self._sampler:
                is_empty = False
                yield each
            if is_empty:
                return


class Few:
    """The first ones of a sampler."""

    def __init__(self, sampler: Any, number: int) -> None:
        self._sampler, self._number = sampler, number

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._number)


class AsItIs:
    """A loader that is iterated itself, since a copy of it would lack something."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Pinned(AsItIs):
    """A loader whose batches are copied to a GPU without waiting."""

    def __iter__(self) -> Iterator[Any]:
        copies = Copies(True)
        with copies.active():
            for batch in self._loader:
                yield copies.add(batch)


def copyable(loader: Any) -> Any:
    """The loader, wrapped if its class does more with batches than DataLoader does, as Accelerate's does."""
    from torch.utils.data import DataLoader

    has_own = isinstance(loader, DataLoader) and (
        type(loader).__iter__ is not DataLoader.__iter__ or makes_own_batches(loader))
    return AsItIs(loader) if has_own else loader


def makes_own_batches(loader: Any) -> bool:
    """Whether its class changes what DataLoader's iterators give, as PyTorch Geometric's does: a copy would not."""
    from torch.utils.data import DataLoader

    return isinstance(loader, DataLoader) and type(loader)._get_iterator is not DataLoader._get_iterator


def rebuilt(loader: Any, *, order: Callable[[Any], Any] = Endless, **changes: Any) -> Any:
    """A DataLoader with the same arguments apart from `changes`. `order` wraps its sampler, if it has one."""
    from torch.utils.data import DataLoader

    workers = changes.get("num_workers", loader.num_workers)
    named = {"dataset": loader.dataset, "num_workers": workers, "collate_fn": loader.collate_fn,
             "pin_memory": loader.pin_memory, "timeout": _timeout_of(loader) if workers else 0,
             "worker_init_fn": loader.worker_init_fn, "generator": loader.generator}
    named.update((name, getattr(loader, name)) for name in ("in_order", "pin_memory_device") if hasattr(loader, name))
    if workers:
        named.update(prefetch_factor=loader.prefetch_factor or 2, persistent_workers=loader.persistent_workers,
                     multiprocessing_context=loader.multiprocessing_context if loader.num_workers else FORK)
    if _is_stream(loader):
        named.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
    elif changes.get("batch_sampler", loader.batch_sampler) is not None:
        named["batch_sampler"] = order(changes.pop("batch_sampler", loader.batch_sampler))
    else:
        named.update(batch_size=None, sampler=order(loader.sampler))
    named.update(changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about more workers than cores, which is what is tried
        made = DataLoader(**named)
    made._saturate = True  # diagnose's own
    return made


def _timeout_of(loader: Any) -> float:
    """A dataset that this process has used may hang in a forked worker, where the script has none."""
    return float(loader.timeout or (0 if loader.num_workers else FORKED_S))


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _arguments(loader: Any, **values: Any) -> Remedy:
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return Remedy(f"Give the DataLoader {shown}", (f"DataLoader(..., {shown})",),
                  Edit("DataLoader", values, getattr(loader, "_saturate_line", 0)))


def _workers_of(loader: Any, number: int) -> Remedy:
    """The first workers are forked, as they are where that was measured."""
    started = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if loader.num_workers or started == FORK:
        return _arguments(loader, num_workers=number)
    remedy = _arguments(loader, num_workers=number, multiprocessing_context=FORK)
    return remedy._replace(lines=(
        *remedy.lines, '# or num_workers alone, with the training under if __name__ == "__main__":'))


def _is_stream(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def _workers(loader: Any, machine: int) -> List[WhatIf]:
    now = loader.num_workers

    def with_workers(name: str, number: int) -> WhatIf:
        what_if = WhatIf(name, _workers_of(loader, number), batches=lambda: rebuilt(loader, num_workers=number))
        if now == 0 and _is_stream(loader):
            what_if.alters = True
            what_if.remedy = Remedy("Load in processes, each of which must yield its own part of the data: "
                                    "torch.utils.data.get_worker_info() in the dataset's __iter__()",
                                    what_if.remedy.lines)
        return what_if

    if now == 0:
        return [with_workers("data-loading", number) for number in sorted({machine, 2 * machine})]
    fewer = machine if machine < now else now // 2
    more = sorted(each for each in {2 * now, 4 * now, max(4 * now, machine)} if each <= 4 * machine)
    found = [with_workers("workers-too-few", number) for number in more]
    found += [with_workers("workers-too-many", number) for number in sorted({fewer, 0} - {now}, reverse=True)]
    factor = loader.prefetch_factor or 2
    found.append(WhatIf("prefetch", _arguments(loader, prefetch_factor=4 * factor),
                        batches=lambda: rebuilt(loader, prefetch_factor=4 * factor)))
    return found


def _pinning(loader: Any, has_gpu: bool, is_blocking: bool) -> List[WhatIf]:
    """A held batch is not pinned either, so the gain with one batch held does not limit this one's."""
    if loader.pin_memory and not is_blocking:
        return []
    remedy = Remedy("Pin the batches' memory, and copy them without waiting",
                    ("DataLoader(..., pin_memory=True)", "images = images.to(device, non_blocking=True)"))
    return [WhatIf("pin-memory", remedy, has_own_limit=True, batches=lambda: Pinned(rebuilt(loader, pin_memory=True)),
                   skipped="" if has_gpu else "there is no GPU")]


def _batch_size(loader: Any) -> List[WhatIf]:
    from torch.utils.data import BatchSampler

    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler or _is_stream(loader):  # whose sampler is a dummy
        return []
    size = 2 * sampler.batch_size
    larger = BatchSampler(sampler.sampler, size, sampler.drop_last)
    factor = 2.0
    try:
        samples = len(loader.dataset)
        with contextlib.suppress(TypeError):  # a sampler without length
            samples = len(sampler.sampler)
            if not sampler.drop_last and samples > 0:  # the last batch of an epoch is smaller
                factor = len(sampler) / len(larger)
    except TypeError:
        return []
    remedy = Remedy(f"Use batches of {size}, and scale the learning rate with them",
                    (f"DataLoader(..., batch_size={size})",))
    return [WhatIf("batch-size", remedy, batches=lambda: rebuilt(loader, batch_sampler=larger), alters=True,
                   is_trade=True, has_own_limit=True, factor=factor,
                   skipped="" if samples >= size else f"an epoch has fewer than {size} samples")]


def _available_bytes() -> float:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return float("inf")


def _bytes_of(image: Any) -> int:
    size = getattr(image, "size", None)
    if isinstance(size, tuple):  # of PIL
        return int(size[0]) * int(size[1]) * len(image.getbands())
    return int(getattr(image, "nbytes", 0))


class _Decoded:
    """A dataset's loader(path) of images in memory. Workers that are not forked pickle it."""

    def __init__(self, images: Dict[str, Any]) -> None:
        self._images = images

    def __call__(self, path: str) -> Any:
        image = self._images[path]
        return image.copy() if hasattr(image, "copy") else image


def _with_decoded(loader: Any, paths: List[str]) -> Any:
    from torch.utils.data import BatchSampler, SequentialSampler

    dataset = copy.copy(loader.dataset)
    decode = loader.dataset.loader
    kept = {path: decode(path) for path in paths}
    for image in kept.values():
        if hasattr(image, "load"):
            image.load()
    dataset.loader = _Decoded(kept)
    dataset.samples = dataset.samples[:len(paths)]
    size = min(loader.batch_size or 1, len(paths))
    return rebuilt(loader, dataset=dataset, batch_sampler=BatchSampler(SequentialSampler(paths), size, True))


def _decode_cache(loader: Any, processes: int) -> List[WhatIf]:
    """For torchvision's DatasetFolder, whose loader(path) decodes."""
    dataset = loader.dataset
    if not is_of_torchvision(dataset, "DatasetFolder", "ImageFolder"):
        return [not_tried("decode-cache", NO_FOLDER)]
    if loader.batch_size is None:
        return [not_tried("decode-cache", NO_BATCH_SIZE)]
    samples, decode = dataset.samples, dataset.loader
    if not samples:
        return []
    paths = [str(path) for path, *_ in samples[:max(REPRESENTATIVES, loader.batch_size)]]
    remedy = Remedy("Keep decoded images in memory (from the second epoch on)",
                    ("from functools import lru_cache", "dataset.loader = lru_cache(None)(dataset.loader)",
                     "# and num_workers=0 or persistent_workers=True, so that the cache lives on"))
    what_if = WhatIf("decode-cache", remedy, batches=lambda: _with_decoded(loader, paths), is_trade=True)
    needed, available = processes * len(samples) * _bytes_of(decode(paths[0])), _available_bytes()
    if needed > available / 2:
        what_if.skipped = (f"the images take {needed / 1e9:.1f} GB, more than half of the {available / 1e9:.1f} GB "
                           "that are free")
    return [what_if]


def _replacement(loader: Any, has_gpu: bool) -> List[WhatIf]:
    arguments, why_not, differences = replacement_of(loader)
    if arguments is None:
        return [not_tried("saturate-loader", why_not)]

    given = dict(arguments)
    if has_gpu:  # from pinned memory, as a DataLoader may have it
        torch = sys.modules["torch"]
        used = used_gpus(torch)[0] if torch.cuda.is_available() else None
        is_current = used is None or used == torch.cuda.current_device()
        given["device"] = "cuda" if is_current else f"cuda:{used}"
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if name != "source")
    text = "; ".join(("Use saturate's loader instead", *differences))
    remedy = Remedy(text, (f"saturate.Loader({given.get('source')!r}, {shown})",))
    return [WhatIf("saturate-loader", remedy, batches=lambda: Loader._for_diagnosis(**given), is_trade=True,
                   alters=bool(differences))]


def loader_what_ifs(loader: Any, has_gpu: bool, is_blocking: bool = False,
                    is_wanted: Callable[[str], bool] = lambda _: True, machine: int = 0,
                    processes: int = 1) -> List[WhatIf]:
    """`is_blocking`: the step copies pinned batches to a GPU, and waits for that. `is_wanted`: whether to try it.
    `machine`: its cores for this process; 0: all. `processes`: that train on it."""
    from torch.utils.data import DataLoader

    if not isinstance(loader, DataLoader):
        return [not_tried(name, "the loader is no DataLoader of torch's, so its arguments are not known")
                for name in OF_DATALOADER if name != "saturate-loader" or not isinstance(loader, Loader)]
    return [*_workers(loader, machine or cores()), *_pinning(loader, has_gpu, is_blocking),
            *_decode_cache(loader, processes),
            *(_replacement(loader, has_gpu) if is_wanted("saturate-loader") else []), *_batch_size(loader)]


def have_same_data(one: Any, other: Any) -> bool:
    first, second = (each._arguments["source"] if isinstance(each, Loader) else getattr(each, "dataset", each)
                     for each in (one, other))
    return first is second or (isinstance(first, str) and isinstance(second, str) and first == second)


def length_of(loader: Any) -> Optional[int]:
    """Batches in an epoch; None: not known, as of a stream."""
    try:
        return len(loader)
    except TypeError:
        return None


def is_copied(loader: Any) -> bool:
    """Whether a copy of the loader is measured, so that an iteration in progress is not touched."""
    from torch.utils.data import DataLoader

    return isinstance(loader, (DataLoader, Loader))


def own_batches(loader: Any) -> Callable[[], Any]:
    """The loop's batches."""
    if isinstance(loader, Loader):
        return lambda: Loader._for_diagnosis(**loader._arguments)
    return (lambda: rebuilt(loader)) if is_copied(loader) else (lambda: loader)


def persistent_remedy() -> Remedy:
    """Without an edit: tune measures endless copies of a loader, whose workers are never started again."""
    return Remedy("Keep the DataLoader's workers from one epoch to the next",
                  ("DataLoader(..., persistent_workers=True)  # inferred, not measured",))


def epoch_start(loader: Any, is_persistent: bool, clock: Callable[[], float], rounds: int) -> Optional[List[float]]:
    """Seconds from the last batch of an epoch to the first one of the next, by round; the first one warms up. These
    epochs have one batch for each worker, since a loader that is left earlier first loads what it was asked for."""
    if _is_stream(loader):  # its whole epochs may be long
        return None
    made = rebuilt(loader, order=lambda sampler: Few(sampler, max(1, loader.num_workers)),
                   persistent_workers=is_persistent)
    found, begin = [], clock()
    for _ in range(rounds + 1):
        batches = iter(made)
        if next(batches, None) is None:
            return None
        found.append(clock() - begin)
        begin = clock()
        for _ in batches:
            begin = clock()
    return found[1:]


def epoch_starts(loader: Any, clock: Callable[[], float], rounds: int) -> Optional[Starts]:
    """The steps of an epoch, and the seconds of epoch_start() with workers that start and with workers that stay. None:
    there are none that could stay, or no end."""
    has_workers = is_copied(loader) and bool(getattr(loader, "num_workers", 0)) and not loader.persistent_workers
    steps = length_of(loader) if has_workers else None
    if steps is None:
        return None
    now, stays = (epoch_start(loader, is_persistent, clock, rounds) for is_persistent in (False, True))
    return (steps, now, stays) if now and stays else None
