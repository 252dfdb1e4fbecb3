"""Processes that read a dataset of the user's own, for an __getitem__ that holds Python's lock for long."""

from __future__ import annotations

import functools
import mmap
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import time
import weakref
from multiprocessing import reduction
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any, Tuple

from ._core import Error
from .sources import OwnSource, Packed, packed

# Bytes of the largest sample that travels in shared memory; a larger one goes through the pipe. Memory is used
# only as far as samples have filled it.
SHARED_BYTES = 64 << 20

# Seconds in which a read must end once the loader is closed.
GRACE = 5.0


class SharedMemory:
    """Anonymous memory that a spawned process inherits; nothing has to be unlinked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closing = weakref.finalize(self, os.close, descriptor)  # of what is dropped without close()
        self._closing.atexit = False
        self.bytes = mmap.mmap(descriptor, SHARED_BYTES)

    @classmethod
    def new(cls) -> SharedMemory:
        descriptor = os.memfd_create("saturate-samples")
        os.ftruncate(descriptor, SHARED_BYTES)
        return cls(descriptor)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self._descriptor),)

    def close(self) -> None:
        try:
            self.bytes.close()
        except BufferError:  # a sample is still being copied; the memory goes with it
            pass
        self._closing()


def _inherited(descriptor: Any) -> SharedMemory:
    return SharedMemory(descriptor.detach())


def serve(connection: Any, memory: SharedMemory, dataset: Any, target: str) -> None:
    """A process: reads the samples that it is asked for until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    while True:
        try:
            index = connection.recv()
        except EOFError:
            return
        try:
            buffer, *form, _, _ = packed(dataset[index], target)
            view = memoryview(buffer).cast("B")
            fits = view.nbytes <= SHARED_BYTES
            if fits:
                memory.bytes[:view.nbytes] = view
            reply = (view.nbytes if fits else bytes(view), *form)
        except Exception as error:  # goes to the process that trains
            connection.send(_sendable(error))
        else:
            connection.send(reply)


def _sendable(error: Exception) -> Any:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    return ExceptionWithTraceback(error, error.__traceback__)


class Worker:
    """One process, and the end of its pipe in this one."""

    def __init__(self, context: Any, dataset: Any, target: str) -> None:
        self.memory = SharedMemory.new()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.memory, dataset, target), daemon=True,
                                       name="saturate-dataset")
        try:
            self.process.start()
        except BaseException:
            self.memory.close()
            raise
        finally:
            theirs.close()

    def ask(self, index: int) -> Any:
        try:
            self.connection.send(index)
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(1)
            raise Error(f"a process that reads the dataset ended, with exit code {self.process.exitcode}; its message "
                        "is above. If it is about the main module, the script needs if __name__ == \"__main__\""
                        ) from None

    def close(self) -> None:
        self.connection.close()
        self.process.join(0.5)
        if self.process.is_alive():
            self.process.kill()  # which also ends a stopped one
            self.process.join()
        self.memory.close()


class ProcessSource(OwnSource):
    """Each read is given to a free process; so there are as many at once as processes."""

    def __init__(self, dataset: Any, processes: int, target: str) -> None:
        if type(dataset).__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
            raise TypeError(f"the dataset's class {type(dataset).__name__} is in no file, as in a notebook, so "
                            "processes cannot import it. Put it into a module, or leave processes out")
        super().__init__(dataset, target)
        context = multiprocessing.get_context("spawn")
        self._process = os.getpid()
        self._stopped = False
        self._all: list[Worker] = []
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        try:
            for _ in range(processes):
                self._all.append(Worker(context, dataset, target))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise TypeError(f"the dataset cannot be sent to processes: {error}. Make it of module-level classes and "
                            "functions, or leave processes out") from error
        for worker in self._all:
            self._free.put(worker)

    def read(self, index: int) -> Packed:
        worker = self._free.get()
        reply = None
        try:
            if self._stopped:
                raise Error("the loader is closed (saturate.Loader). Make a new one")
            reply = worker.ask(index)
        finally:
            if reply is None or isinstance(reply, BaseException) or isinstance(reply[0], bytes):
                self._free.put(worker)
        if isinstance(reply, BaseException):
            raise reply
        data, *form = reply
        if isinstance(data, bytes):
            return (data, *form, None, None)
        view = memoryview(worker.memory.bytes)[:data]
        return (view, *form, None, functools.partial(self._give_back, worker, view))

    def _give_back(self, worker: Worker, view: memoryview) -> None:
        view.release()
        self._free.put(worker)

    def stop(self) -> None:
        """Later reads fail at once. Those in progress may end; after GRACE their processes are killed."""
        if self._stopped or os.getpid() != self._process:  # a forked process must not end its parent's
            return
        self._stopped = True
        free: list[Worker] = []
        end = time.monotonic() + GRACE
        try:
            while len(free) < len(self._all):
                free.append(self._free.get(timeout=max(0.0, end - time.monotonic())))
        except queue.Empty:
            pass
        finally:  # also if Ctrl-C ends the wait
            for worker in self._all:
                if worker not in free:
                    worker.process.kill()
            for worker in free:
                self._free.put(worker)

    def close(self) -> None:
        for worker in self._all:
            worker.close()
        self._all.clear()
