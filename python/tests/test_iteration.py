"""The order of iterations: each from its first batch, one at a time, no batch lost. Needs numpy and pytest."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

import saturate
from sample_sets import Numbered

SYNTH = "synth:size=24,count=60"
BATCHES = 9


def make(**arguments):
    return saturate.Loader(SYNTH, **{"batch": 7, "size": 8, "threads": 2, **arguments})


def labels_of(batches):
    return [labels.tolist() for _, labels in batches]


def epoch(number, **arguments):
    loader = make(**arguments)
    loader.set_epoch(number)
    return labels_of(loader)


def test_a_new_iteration_begins_with_the_first_batch():
    loader = make(train=False)
    (a, la), (b, lb) = next(iter(loader)), next(iter(loader))
    assert np.array_equal(a, b) and np.array_equal(la, lb)
    assert len(list(loader)) == len(loader) == BATCHES


def test_an_epoch_that_was_left_is_over():
    # Otherwise a loop that ends each epoch after two batches would always get the same two.
    loader = make()
    for number in range(3):
        assert labels_of(itertools.islice(loader, 2)) == epoch(number)[:2]
    assert labels_of(loader) == epoch(3)


def is_refused(call):
    try:
        call()
    except saturate.Error as error:
        return "made in another process" in str(error)
    return False


def test_a_forked_process_is_refused_and_ends():
    from saturate.loader import _close_all

    loader = make(train=False)
    batches = iter(loader)
    first = next(batches)
    child = os.fork()
    if child == 0:
        is_right = False
        try:
            signal.alarm(20)  # in place of a hang
            is_right = is_refused(lambda: next(batches)) and is_refused(lambda: iter(loader))
            loader.close()
            _close_all()
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len([first, *batches]) == BATCHES


@pytest.mark.parametrize("leave", ["break", "raise"])
def test_a_loop_that_is_left_loses_nothing_of_the_next(leave):
    loader, whole = make(), []
    try:
        for batch in loader:
            if leave == "raise":
                raise RuntimeError
            break
    except RuntimeError as error:
        kept = error  # keeps the frame and its iterator alive
    assert labels_of(loader) == epoch(1)
    whole = labels_of(loader)
    assert whole == epoch(2) and len(whole) == BATCHES


def test_iterations_that_gave_nothing_are_no_epochs():
    loader = make()
    for _ in range(3):
        iter(loader)
    assert labels_of(loader) == epoch(0)
    assert loader.state_dict()["epoch"] == 1


def test_the_newer_of_two_iterations_is_whole_and_the_older_says_so():
    loader = make()
    older = iter(loader)
    first = next(older)[1].tolist()
    newer = iter(loader)
    assert first == epoch(0)[0]
    with pytest.raises(saturate.Error, match="newer one"):
        next(older)
    assert labels_of(newer) == epoch(1)
    with pytest.raises(saturate.Error, match="newer one"):
        next(older)
    assert loader.state_dict()["epoch"] == 2
    with pytest.raises(saturate.Error, match="newer one"):
        for _ in zip(loader, loader):
            pass


def test_one_that_has_ended_stays_at_its_end():
    loader = make()
    ended = iter(loader)
    assert len(list(ended)) == BATCHES
    assert list(ended) == []
    assert labels_of(loader) == epoch(1)
    assert list(ended) == [] and loader.state_dict()["epoch"] == 2


def test_only_a_loaded_state_goes_on_within_an_epoch():
    loader = make()
    begun = iter(loader)
    for _ in range(4):
        next(begun)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 4)
    assert labels_of(loader) == epoch(1)
    for other in (loader, make(threads=1, prefetch=1)):
        other.load_state_dict(state)
        assert other.state_dict() == state
        iter(other)  # returns no batch, and takes none
        assert labels_of(other) == epoch(0)[4:]
        assert labels_of(other) == epoch(1)


def test_a_state_set_meanwhile_is_the_next_iterations():
    loader = make()
    running = iter(loader)
    next(running)
    loader.set_epoch(5)
    assert len(list(running)) == BATCHES - 1
    assert loader.state_dict()["epoch"] == 5
    assert labels_of(loader) == epoch(5)


def test_a_state_loaded_meanwhile_ends_the_iteration():
    """Else a loop that rolls back would go on from where it was."""
    loader = make()
    running = iter(loader)
    states = [loader.state_dict()]
    for _ in range(3):
        next(running)
        states.append(loader.state_dict())
    loader.load_state_dict(states[1])
    with pytest.raises(saturate.Error, match=r"load_state_dict\(\).*begin a new one"):
        next(running)
    assert loader.state_dict() == states[1]
    rolled_back = iter(loader)
    assert next(rolled_back)[1].tolist() == epoch(0)[1] and loader.state_dict() == states[2]
    assert labels_of(rolled_back) == epoch(0)[2:]


@pytest.mark.parametrize("arguments, name", [
    ({"batch": 8}, r"batch \(of all ranks\) 7.*8"), ({"seed": 1}, "seed 0.*1"),
    ({"shuffle": False}, "shuffle full.*none"), ({"train": False}, "shuffle full.*none"),
    ({"shuffle": "block"}, "shuffle full.*block:")])
def test_a_state_of_another_order_is_refused(arguments, name):
    loader = make()
    next(iter(loader))
    other = make(**arguments)
    with pytest.raises(saturate.Error, match=name):
        other.load_state_dict(loader.state_dict())
    assert other.state_dict()["batch"] == 0
    with pytest.raises(saturate.Error, match="samples 60.*61"):
        saturate.Loader("synth:size=24,count=61", batch=7, size=8).load_state_dict(loader.state_dict())
    other.load_state_dict({"epoch": 1, "batch": 2})  # as older versions wrote it
    assert len(list(other)) == len(other) - 2


def test_a_transform_does_not_end_the_epoch():
    loader = make(batch_transform=lambda batch: next(iter([])))
    with pytest.raises(RuntimeError, match="batch_transform raised StopIteration"):
        next(iter(loader))


def test_a_batch_whose_conversion_failed_comes_again():
    failing = [False]

    def convert(array):
        if failing[0]:
            raise KeyboardInterrupt
        return np.from_dlpack(array)

    loader = make(to=convert)
    iterator = iter(loader)
    found = labels_of(itertools.islice(iterator, 3))
    failing[0] = True
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert loader.state_dict()["batch"] == 3
    failing[0] = False
    assert found + labels_of(iterator) == epoch(0)


def test_ctrl_c_ends_a_wait_and_loses_no_batch(alarm):
    loader = saturate.Loader("synth:size=400,count=40", batch=10, size=224, threads=1)
    expected = labels_of(loader)
    loader.set_epoch(0)
    iterator, found, interrupted = iter(loader), [], 0
    while True:
        alarm(0.003)  # usually within the wait for a batch
        try:
            labels = next(iterator)[1].tolist()
            found.append(labels)
        except KeyboardInterrupt:
            interrupted += 1
            if loader.state_dict()["batch"] > len(found):  # it came just after the batch was returned
                found.append(expected[len(found)])
        except StopIteration:
            break
        finally:
            alarm(0)
    assert found == expected and interrupted > 0


def test_a_waiting_iteration_takes_nothing_of_a_newer_one():
    class Slow(Numbered):
        def __getitem__(self, index):
            time.sleep(0.01)
            return super().__getitem__(index)

    loader = saturate.Loader(Slow(24), batch=8, size=6, threads=1, prefetch=1)
    for _ in range(5):
        older, ends = iter(loader), []

        def wait():
            try:
                ends.append(next(older)[1].tolist())
            except saturate.Error as error:
                ends.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.02)  # usually within its wait for the first batch
        newer = labels_of(loader)
        thread.join()
        number = loader.state_dict()["epoch"] - 1
        loader.set_epoch(number)
        assert newer == labels_of(loader) and len(newer) == 3
        # Or it had its batch before the newer one began, which then is the next epoch, or this one again.
        assert "newer one" in ends[0] or len(ends[0]) == 8


def test_threads_share_an_iteration():
    loader, lock, found = make(threads=3), threading.Lock(), []
    iterator = iter(loader)

    def consume():
        for _, labels in iterator:
            with lock:
                found.extend(labels.tolist())

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(sum(epoch(0), []))


def test_what_dataloaders_have():
    loader = make(drop_last=True)
    assert loader.batch_size == 7 and loader.samples == 60
    assert len(loader) == len(list(loader)) == 60 // 7
    assert iter(it := iter(loader)) is it
    assert [i for i, _ in enumerate(loader)] == list(range(8))
