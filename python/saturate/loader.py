"""The loader; its help is saturate.Loader's."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple, Union

from ._core import Error
from ._core import Loader as _Core
from ._core import begin_exit, without_queries
from .arguments import converter, flag, one_of, text_of, type_name, whole
from .iteration import Iteration, Place
from .sources import OwnSource, classes_of, open_source, text_of_source
from .world import group_world, resolved_world

# Arguments that a source of tensors does not take.
_OF_IMAGES = ("size", "crop", "padding", "flip", "mixup", "cutmix", "mean", "std", "decode")

# Threads of a loader may need Python, which must not end before them.
_open: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    begin_exit()
    for loader in list(_open):
        loader.close()


def _end(core: _Core, own: Optional[OwnSource]) -> None:
    """Ends the threads, which wait for reads of the source, and then its processes."""
    try:
        if own:
            own.stop()
    finally:  # also if Ctrl-C ends the wait
        core.close()
        if own:
            own.close()


def _position(name: str, value: Any) -> int:
    number = whole(name, value)
    if not 0 <= number < 2**32:
        raise ValueError(f"{name}={value!r}: give an integer from 0 to 2**32 - 1")
    return number


class Loader:
    """Batches of images and labels, made on C++ threads.

        loader = saturate.Loader("folder:photos/train", batch=64, size=224, crop="random_resized", to="torch")
        for epoch in range(90):
            for images, labels in loader:
                ...

    Each iteration is an epoch from its first batch. After an iteration that returned a batch, complete or not,
    the next one is the next epoch; only load_state_dict() continues within an epoch. One iteration runs at a
    time: a new one, or load_state_dict(), ends the previous one, which then raises Error.

    What to read
        source: "folder:PATH", "tar:PATH", "shard:PATH" etc. (docs/data.md), a path, or a dataset with
            __getitem__ and __len__ whose items are (image, label): the image as bytes of a JPEG or PNG, as an
            array of uint8 [height, width, 3 or 1], or as a PIL image of 8 bits; the label as an integer. torchvision's
            ImageFolder without transforms is read without Python's decoder. A dataset that refers to its Loader keeps
            it, and its threads, until close().
        target: of the items of such a dataset: "label"; "labels", a list or array [k] of numbers, which make int64
            [N, k], or float32 [N, k] if they are floats or bools; or "mask", the class of each pixel, as an array of
            uint8 [height, width], a PIL image of mode L or P, or bytes of a PNG.
        classes: names of the classes of such a dataset; by default its `classes`. Needed for masks.
        processes: processes that call its __getitem__, each with a copy of the dataset, which is pickled. Use them if
            that call computes in Python for long. 0: the loader's threads call it, several at once. A dataset that
            threads cannot share, such as one that seeks in an open file, needs processes, or threads=1. So does one
            that reads by sqlite3 or h5py, which must open these in its first __getitem__: what is open cannot be
            pickled, and sqlite3 refuses a connection of another thread.
        train: whether to augment randomly and shuffle; otherwise the centre crop, in order.

    Batches
        batch: images in a batch, of all ranks together. Instead, batch_size: images of one rank.
        size: side of square images in pixels, or (height, width). Required, except for tensors.
        dtype: "float32", "float16" or "bfloat16", normalised by mean and std; or "uint8", as decoded. Also such a
            type of numpy or torch.
        layout: "nchw" or "nhwc"; for uint8 with to="tensorflow" only "nhwc".
        to: "numpy" (the default), "torch" (the default with `device`), "jax", "tensorflow", "dlpack" (which every
            framework can import), or a function of such an array. No pixel is copied.
        device: a device of torch, such as "cuda". Batches are then copied there from pinned memory, on a separate
            stream, one batch ahead; images as bytes, which are normalised there.
        names: whether batches are (images, labels, names).
        batch_transform: a function of each whole batch; its result is returned instead.
        drop_last: whether to skip an incomplete last batch (in training).

    Augmentation, in training: crop ("none", "center", "random_resized", "pad:4", "pad_reflect:4", "letterbox"), padding
    (the border in pixels of the two that pad), flip (probability, or "alternate"), mean, std, and mixup and cutmix
    (alpha of the Beta distribution). With either of these two, labels are (labels, mixed_labels, lam), and the loss is
        lam * loss(output, labels) + (1 - lam) * loss(output, mixed_labels)
    With soft_labels=True labels are float32 [N, classes] instead, which torch's cross_entropy takes; several labels
    [N, k] are mixed as numbers.

    A source of tensors ("npy:", "npz:", "safetensors:", "csv:", "tokens:", or a "shard:" of them) has batches of all
    its fields by name, such as {"x": ..., "y": ...}, with the types of the file; `target` is the name of the one to
    predict. Arguments about images are then errors, except size, crop, padding and flip for volumes
    ("npy:scans,volume=x").

    Samples of varying length ("npz:texts.npz,lengths=n") are grouped by length, padded to the longest of the batch,
    rounded up to a multiple of 8, and come with "mask": bool [N, length], true where there is no padding.

    A source with masks has batches (images, masks): uint8 [N, height, width], the class of each pixel; 255 is ignored.

    Several processes
        rank, world: this process's part of each batch; by default torch.distributed's if it is initialised, else
            as torchrun, srun or mpirun say. If it is initialised after the loader was made, the next iteration opens
            the source again. The order is that of one process, so that a state continues at any world size.
            set_epoch() is not needed.
        uneven: "pad" repeats samples so that all ranks have as many, as DistributedSampler does; "drop" skips
            some, as it does with drop_last=True; "join": neither, so that a rank's last batch may be smaller.

    How
        threads: threads that decode; by default one for each core. num_workers is DataLoader's name for it.
        epochs: number of epochs of the run, in training. If the source is a URL, the first samples of the next epoch
            are fetched at the end of each epoch but the last. By default they are not, since any may be the last.
        prefetch: batches in flight. shuffle: "full" or True, "block", "none" or False.
        decode: "exact" or "fast". cache: "none", "ram", "ram:decoded". on_error: "fail" or "skip".
        seed: of the order and of all random choices.
        options: any other key of [data] and [augment] in a recipe, such as {"augment.hue": 0.1} or, for URLs,
            {"data.cache_dir": "cache", "data.cache_gb": 50} (docs/recipe.md).

    A batch's contents depend only on the arguments and the epoch, not on threads, processes or timing, if a
    dataset's items do. Only MixUp and CutMix depend on `rank` and `world`, since an image is mixed with one of the same
    rank's. A batch's memory is reused when all its arrays are gone. Ctrl-C ends a wait for a batch. An
    interrupt or a failed conversion loses no batch: the iteration returns the same one next. Pickling a loader
    keeps its arguments and position; a forked process cannot iterate over it. Raises saturate.Error.
    """

    _saturate = False  # whether diagnose made it; DataLoaders have the same attribute

    def __init__(self, source: Union[str, os.PathLike[str], Any], *, batch: Optional[int] = None,
                 batch_size: Optional[int] = None, size: Union[int, Sequence[int], None] = None, train: bool = True,
                 crop: Optional[str] = None, padding: Optional[int] = None, flip: Union[float, str, None] = None,
                 mixup: Optional[float] = None, cutmix: Optional[float] = None, soft_labels: bool = False,
                 mean: Optional[Sequence[float]] = None, std: Optional[Sequence[float]] = None,
                 dtype: Any = "float32", layout: str = "nchw",
                 to: Union[str, Callable[[Any], Any], None] = None, device: Any = None,
                 names: bool = False, batch_transform: Optional[Callable[[Any], Any]] = None,
                 shuffle: Union[bool, str, None] = None, drop_last: Optional[bool] = None,
                 rank: Optional[int] = None, world: Optional[int] = None, uneven: str = "pad",
                 threads: Optional[int] = None, num_workers: Optional[int] = None, processes: int = 0,
                 epochs: Optional[int] = None, prefetch: Optional[int] = None, decode: Optional[str] = None,
                 cache: Optional[str] = None, on_error: Optional[str] = None,
                 classes: Optional[Sequence[str]] = None, target: str = "label",
                 seed: Optional[int] = None, options: Optional[Dict[str, Any]] = None) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        train, soft_labels, dtype = flag("train", train), flag("soft_labels", soft_labels), type_name(dtype)
        processes = whole("processes", processes)
        if options is not None and not isinstance(options, dict):
            raise TypeError(f'options={options!r}: give a dictionary, such as {{"augment.hue": 0.1}}')
        if batch_transform is not None and not callable(batch_transform):
            raise TypeError(f"batch_transform={batch_transform!r}: give a function of a batch")
        if layout not in ("nchw", "nhwc"):
            raise ValueError(f'layout={layout!r}: use "nchw" or "nhwc"')
        if to is None:
            to = "numpy" if device is None else "torch"
        if dtype == "bfloat16" and to == "numpy":
            raise ValueError('numpy has no bfloat16: use to="torch", "dlpack" or a function')
        if device is not None and to != "torch":
            raise ValueError(f'device={device!r} needs to="torch"')
        if to == "tensorflow" and dtype == "uint8" and layout == "nchw":  # which are seen as planes by their strides
            raise ValueError('tensorflow imports uint8 images as [N, height, width, 3] only: give layout="nhwc"')
        self._convert = converter(to)
        self._rank, self._world = resolved_world(rank, world)
        batch = one_of("batch", batch, "batch_size",
                       None if batch_size is None else whole("batch_size", batch_size) * self._world)
        threads = one_of("threads", threads, "num_workers",
                         None if num_workers is None else max(1, whole("num_workers", num_workers)))
        if processes and threads != 0:  # threads that wait for processes are as good as none
            threads = (threads or len(os.sched_getaffinity(0))) + processes
        if padding is not None:
            if not str(crop).startswith("pad"):
                raise ValueError(f'padding={padding}: give crop="pad" or "pad_reflect", whose border it is')
            crop = f"{crop}:{padding}"
        keys = {"train.batch": batch, "augment.size": size, "augment.crop": crop, "augment.flip": flip,
                "augment.mixup": mixup, "augment.cutmix": cutmix, "augment.mean": mean, "augment.std": std,
                "data.shuffle": shuffle, "train.drop_last": drop_last, "distributed.uneven": uneven,
                "data.threads": threads, "data.prefetch": prefetch, "data.decode": decode, "data.cache": cache,
                "data.on_error": on_error, "seed": seed, **(options or {})}
        overrides = [f"{key}={text_of(value)}" for key, value in keys.items() if value is not None]
        self._names, self._transform = bool(names), batch_transform
        self._core, self._own, self._feed = self._opened(source, processes, classes, target, overrides, train, dtype,
                                                         layout, soft_labels, device)
        self._at = Place()                         # for state_dict() and the next iteration
        self._running: Optional[Place] = None      # the place of the one iteration that may take batches
        self._starting = threading.RLock()         # one iteration at a time
        self._process = os.getpid()                # whose threads make the batches
        _open.add(self)

    def _opened(self, source: Any, processes: int, classes: Optional[Sequence[str]], target: str, overrides: List[str],
                train: bool, dtype: str, layout: str, soft_labels: bool,
                device: Any) -> Tuple[_Core, Optional[OwnSource], Any]:
        text = text_of_source(source)
        if text is not None and (processes or classes is not None or target != "label"):
            raise TypeError("processes, classes and target are for a dataset of your own; a source that is a text has "
                            "classes, and masks or labels")
        allocate, form = None, (dtype, layout)
        if device is not None:
            from . import device as devices

            allocate = devices.allocator(device)
            if dtype in devices.TYPES:  # else _core refuses it
                form = ("uint8", "nhwc")
        names = [] if text is not None else classes_of(source, classes)
        if target == "mask" and not 2 <= len(names) <= 255:
            raise TypeError(f"a dataset with masks needs the names of its 2 to 255 classes, and {len(names)} are known "
                            "(classes). Give classes=[...]")
        epochs = self._arguments["epochs"]
        own = None if text is not None else open_source(source, processes, target)
        try:
            core = _Core(source=text or "the dataset", own=own.read if own else None, own_size=own.size if own else 0,
                         own_target=target, classes=names, overrides=overrides,
                         epochs=_position("epochs", 0 if epochs is None else epochs), train=train, dtype=form[0],
                         planar=form[1] == "nchw", names=self._names, rank=self._rank, world=self._world,
                         soft_labels=soft_labels, mixes=device is None or dtype == "uint8", allocate=allocate)
            of_volumes = ("size", "crop", "padding", "flip") if core.has_volumes else ()
            given = [name for name in _OF_IMAGES if self._arguments[name] is not None and name not in of_volumes]
            given += ["dtype"] * (dtype != "float32") + ["layout"] * (layout != "nchw")
            if core.fields and given:
                raise Error(f"{given[0]} is for images, and the source has tensors ({without_queries(text or '')}): "
                            f"leave {given[0]} out")
            feed = None if device is None else devices.DeviceFeed(device, dtype, layout, core.mean, core.std)
        except BaseException:
            if own:
                own.close()
            raise
        return core, own, feed

    def __len__(self) -> int:
        """Batches in a whole epoch; with on_error="skip", batches without a good sample are missing."""
        self._follow_group()
        return self._core.batches

    def __iter__(self) -> Iterator[Any]:
        self._require_threads()
        with self._starting:
            last, self._running = self._at, None
            self._follow_group()
            at = Place(last.epoch + 1) if last.begun else Place(last.epoch, last.batch)
            number = self._core.start_epoch(at.epoch, at.batch)
            self._at = self._running = at
            return Iteration(self, at, number)

    @classmethod
    def _for_diagnosis(cls, **arguments: Any) -> Loader:
        """A loader that is not taken for the program's own."""
        made = cls(**arguments)
        made._saturate = True
        return made

    def _require_threads(self) -> None:
        if os.getpid() != self._process:
            raise Error("the loader was made in another process, and a forked one has none of its threads "
                        "(saturate.Loader). Make it in this process, or give the DataLoader num_workers=0")

    def _follow_group(self) -> None:
        """Reads this process's part if torch.distributed was initialised after the loader was made. An iteration in
        progress goes on as it was."""
        with self._starting:
            found = group_world() if self._arguments["rank"] is None else None
            is_usable = self in _open and self._running is None and self._process == os.getpid()
            if found in (None, (self._rank, self._world)) or not is_usable:
                return
            other = Loader(**{**self._arguments, "rank": found[0], "world": found[1]})
            _open.discard(other)
            if self._at.batch and not self._at.begun and other._core.batch != self._core.batch:
                raise Error(f"the state was loaded before torch.distributed said that there are {found[1]} processes, "
                            "whose batches are larger (batch_size). Load it after init_process_group(), or give batch "
                            "instead of batch_size")
            core, own = self._core, self._own
            self._rank, self._world = found
            self._core, self._own, self._feed, other._own = other._core, other._own, other._feed, None
            _end(core, own)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads and processes, and frees what the source holds, such as connections and cached samples;
        returned batches stay valid. A process whose `__getitem__` does not return within 5 s is killed. Also the end of
        a `with` block. Nothing ends if a forked process calls it."""
        _open.discard(self)
        self._running = None
        if os.getpid() != self._process:  # a forked one, which would wait for threads that it lacks
            return
        _end(self._core, self._own)

    def __del__(self) -> None:  # dropped without close(): the end of _core waits for reads of the source
        own: Optional[OwnSource] = getattr(self, "_own", None)  # none if __init__ has failed
        if own:
            own.stop()

    def __getstate__(self) -> Dict[str, Any]:
        return {"arguments": self._arguments, "position": self.state_dict()}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(**state["arguments"])  # type: ignore[misc]
        self.load_state_dict(state["position"])

    def __repr__(self) -> str:
        source = without_queries(repr(self._arguments["source"]))
        return (f"saturate.Loader({source}, {self.samples} samples, {len(self)} batches"
                + (f", rank {self.rank} of {self.world})" if self.world > 1 else ")"))

    @property
    def rank(self) -> int:
        """This process among those that share each batch, from 0."""
        self._follow_group()
        return self._rank

    @property
    def world(self) -> int:
        """How many processes share each batch."""
        self._follow_group()
        return self._world

    @property
    def samples(self) -> int:
        """Samples in the source, like len(loader.dataset) of a DataLoader."""
        return self._core.size

    @property
    def dataset(self) -> NoReturn:
        """There is none, which hasattr() says too."""
        raise AttributeError("a saturate.Loader has no dataset: `samples` is its size, and load_state_dict() goes to a "
                             "batch, in place of Accelerate's skip_first_batches()")

    @property
    def batch_size(self) -> int:
        """Samples of this rank in a batch; the last one of an epoch may have fewer."""
        world, rank = self.world, self.rank
        return (self._core.batch + world - 1 - rank) // world

    @property
    def classes(self) -> List[str]:
        """Names of the classes; a label is an index into them."""
        return self._core.classes

    @property
    def target(self) -> Optional[str]:
        """The name of the field to predict, if the source has tensors and one of them is."""
        return next((name for name, is_target in self._core.fields if is_target), None)

    @property
    def skipped(self) -> List[Tuple[str, str]]:
        """(name, reason) of the first hundred samples skipped with on_error="skip"."""
        return self._core.skipped()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch, from its first batch. A current iteration continues."""
        self._at = Place(_position("epoch", epoch))

    def state_dict(self) -> Dict[str, Union[int, str]]:
        """The position: the next iteration of a loader that loads it continues with the next batch, which after the
        last one of an epoch is the first of the next. It is the same on all ranks, and for any number of them."""
        at = self._at
        is_over = at.begun and at.batch >= len(self)  # programs that count batches never ask for the end
        return {"epoch": at.epoch + is_over, "batch": 0 if is_over else at.batch, **self._order()}

    def load_state_dict(self, state: Mapping[str, Union[int, str]]) -> None:
        """The next iteration continues at this position. A current one ends: its next() raises Error, since its batches
        would not be those after this position. Raises Error if the state is of another number of samples, batch, seed
        or shuffle: use set_epoch(state["epoch"]) then."""
        if not isinstance(state, Mapping) or not {"epoch", "batch"} <= state.keys():
            raise Error(f"not a state of a saturate.Loader ({type(state).__name__}). Give what state_dict() returned")
        at = Place(*(_position(name, state[name]) for name in ("epoch", "batch")))
        for name, own in self._order().items():
            if state.get(name, own) != own:
                said = "batch (of all ranks)" if name == "batch_size" else name
                raise Error(f"the state is of a loader with {said} {state[name]}, but this one has {own}: "
                            f"make it with the same {said}, or start an epoch with set_epoch()")
        self._at, self._running = at, None

    def _order(self) -> Dict[str, Union[int, str]]:
        """The values that a place in an epoch depends on; "batch_size" counts all ranks."""
        self._follow_group()
        return {"samples": self._core.size, "batch_size": self._core.batch, "seed": self._core.seed,
                "shuffle": self._core.order}
