from typing import Any, Callable, Iterator, List, Optional, Tuple

from .device_time import DeviceTime

__version__: str

class Error(RuntimeError):
    exit_code: int  # of a command that ends with it

def begin_exit() -> None:
    """Python ends soon, on this thread. Others that wait in this module do not return, or only after five seconds, if
    Python has not begun to end by then."""
def launched_world() -> Tuple[int, int, str]: ...
def without_queries(text: str) -> str:
    """Without the queries of URLs, which may sign them."""

def report(inputs: List[bytes], out: bytes, writes: bool) -> Tuple[str, str]:
    """Writes a page, if it `writes`. Returns its path, and the same for printing. `out` may be empty. See
    saturate.report()."""

# A gain is (ratio, low, high): see src/advise/gain.h.
def paired_gain(before: List[float], after: List[float]) -> Tuple[float, float, float]: ...
def is_worth(gain: Tuple[float, ...], alters_training: bool) -> bool: ...
def may_be_worth(gain: Tuple[float, ...], alters_training: bool) -> bool: ...

PHASES: Tuple[str, ...]  # of metrics.jsonl

class PhaseClock:
    """Charges wall time to one phase at a time. Phases are indexes of PHASES, and nest. Belongs to the thread that made
    it; calls from other threads change nothing. `device`, if set, is notified of each phase except `host`. While it is
    not `is_detailed`, only `wait` may be entered."""

    def __init__(self, clock: Optional[Callable[[], int]] = None) -> None:
        """`clock`: nanoseconds; by default those of time.perf_counter_ns()."""
    thread: Optional[int]
    device: Optional[DeviceTime]
    longest: int  # nanoseconds outside `wait` in a step that is not measured; after one that took longer
    on_long: Optional[Callable[[], None]]  # ... this is called
    @property
    def begin(self) -> int: ...
    @property
    def now(self) -> int:
        """The end of the last step."""
    @property
    def phase(self) -> int: ...
    @property
    def is_detailed(self) -> bool: ...
    @property
    def spent(self) -> List[int]:
        """Nanoseconds by phase; the last two are those outside `wait` in steps that are not measured in detail, usual
        and long ones."""
    def enter(self, phase: int, /) -> None: ...
    def leave(self) -> None: ...
    def switch(self, before: int, phase: int, /) -> None:
        """From phase `before` to another in its place; for any thread, while the clock's own waits for it."""
    def settle(self) -> int:
        """The end of a step: the time now. A phase that an exception left open is closed."""
    def set_detailed(self, is_detailed: bool, /) -> None:
        """From now on. REQUIRES: no phase is open."""
    def is_long(self) -> bool:
        """Whether the part of this step that is not measured is."""
    def take_unknown(self) -> Tuple[int, int]:
        """The last two of `spent`, which the caller adds to phases."""

class Hook:
    """call() calls `function`, which may be exchanged while others call it; nothing if that is None. It costs less than
    a function of Python's, or than __call__()."""
    function: Optional[Callable[..., Any]]
    def call(self, *_: Any, **__: Any) -> Any: ...

class StepCounter:
    """Counts a loop's steps and samples by `clock`: the part of a Watch that runs in each step. Until step `_due_step`
    or time `_due_ns` it only counts."""

    def __init__(self, clock: PhaseClock) -> None: ...
    steps: int
    samples: int
    _loops: int            # of BatchIterators, now
    _batches: int          # of the present epoch, by a BatchIterator
    _due_step: int
    _due_ns: int
    _optimizer: Any        # the last one that made a step
    _has_stepped: bool     # an optimizer, since the last step
    _is_manual: bool       # step() was called by the program: neither batches nor optimizers count
    _is_open: bool         # until a Watch is closed
    _source: Any           # the dataset of the latest batch of _other_batch(), since a BatchIterator's
    _source_before: Any    # before that
    _counts_others: bool   # their samples
    _is_grad_enabled: Optional[Callable[[], bool]]
    def step(self, *, loss: Any = None) -> None:
        """A step has ended. Calls self._end_manual_step(now, loss) if one is due."""
    def _other_batch(self, next: Callable[[Any], Any], iteration: Any, /) -> Any:
        """next(iteration), of a loader of torch or saturate, after _end_others_step() unless it is evaluation. Calls
        self._look_at_other(has_gradients, is_usual) if it is evaluation, of a dataset that did not come last, also
        before a BatchIterator's, or the step so far was long."""
    def _end_others_step(self) -> None:
        """Ends a step if an optimizer has made one with a batch of _other_batch(), and neither step() nor a
        BatchIterator was ever used. Calls self._end_step(now) if one is due."""
    def _optimizer_stepped(self, optimizer: Any, *_: Any) -> None: ...

class BatchIterator:
    """One pass through counter._begin_pass(), an iterator.

    While it waits for a batch, the clock's phase is wait. It calls counter._look_closer() if the step so far was long.
    When the loop is done with a batch, a step ends if an optimizer has made one, or none ever has; it calls
    counter._end_step(now) if one is due."""

    def __init__(self, counter: StepCounter) -> None: ...
    def __iter__(self) -> BatchIterator: ...
    def __next__(self) -> Any: ...
    def close(self) -> None:
        """The loop ends here, as at the end of a generator."""

class Loader:
    def __init__(self, source: str, own: Optional[Callable[[int], Any]], own_size: int, own_target: str,
                 classes: List[str], overrides: List[str], epochs: int, train: bool, dtype: str, planar: bool,
                 names: bool, rank: int, world: int, soft_labels: bool, mixes: bool,
                 allocate: Optional[Callable[[int], Tuple[Any, int]]]) -> None: ...
    def start_epoch(self, epoch: int, first_batch: int, /) -> int: ...
    def next(self, number: int, /) -> Optional[Tuple[Any, Any, List[str], int,
                                                   Optional[Tuple[bool, float, int, int, int, int, int]]]]: ...
    def close(self) -> None: ...
    def skipped(self) -> List[Tuple[str, str]]: ...
    @property
    def ready(self) -> bool: ...
    @property
    def skipped_count(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def order(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def mean(self) -> List[float]: ...
    @property
    def std(self) -> List[float]: ...
    @property
    def has_masks(self) -> bool: ...
    @property
    def fields(self) -> List[Tuple[str, bool]]: ...
    @property
    def has_volumes(self) -> bool: ...
    @property
    def classes(self) -> List[str]: ...
