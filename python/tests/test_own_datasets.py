"""Datasets of the user's own: what they may return, on threads and on processes. Needs numpy and pytest, PIL and
torchvision for some tests."""

import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import saturate
from sample_sets import (IMAGES, PNG, Broken, Deadly, Hanging, InDatabase, Large, Numbered, OddlyBroken, ProcessIds,
                         png_of)
from saturate import workers

ARGUMENTS = {"batch": 4, "size": 6, "flip": 0, "threads": 3, "dtype": "uint8"}


def numbers(loader):
    return [labels.tolist() for _, labels in loader]


@pytest.mark.parametrize("processes", [0, 2])
def test_every_sample_comes_once_with_its_pixels(processes):
    with saturate.Loader(Numbered(30), processes=processes, **ARGUMENTS) as loader:
        assert loader.samples == 30 and len(loader) == 8 and loader.classes == []
        found = []
        for images, labels in loader:
            assert all((image == label).all() for image, label in zip(images, labels))
            found += labels.tolist()
        assert sorted(found) == list(range(30)) and found != sorted(found)
        second = sum(numbers(loader), [])
    with saturate.Loader(Numbered(30), processes=2 - processes, **{**ARGUMENTS, "threads": 1}) as other:
        assert sum(numbers(other), []) == found and sum(numbers(other), []) == second


def test_a_loader_that_is_dropped_leaves_no_shared_memory():
    def shared():
        names = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return sum("saturate-samples" in os.readlink(name) for name in names if os.path.islink(name))

    before = shared()
    loader = saturate.Loader(Numbered(8), processes=2, **ARGUMENTS)
    next(iter(loader))
    assert shared() > before
    del loader
    gc.collect()
    assert shared() == before


def test_a_dataset_equals_the_source_of_its_files():
    paths = sorted(path for path in IMAGES.parent.rglob("*") if path.suffix in (".jpg", ".png"))
    arguments = {"batch": 3, "size": 24, "on_error": "skip", "crop": "random_resized", "options": {"augment.hue": 0.1}}
    source = saturate.Loader(f"folder:{IMAGES.parent}", **arguments)
    own = saturate.Loader([(path.read_bytes(), 0) for path in sorted(paths, key=str)], **arguments)
    if source.samples != own.samples:
        pytest.skip("the folder has other files too")
    expected, found = list(source), list(own)
    assert len(expected) == len(found) > 3
    for (a, _), (b, _) in zip(expected, found):
        assert np.array_equal(a, b)


def test_forms_of_images():
    array = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    grey = array[:, :, 0]
    items = [array, array[::-1][::-1], grey, grey[:, :, None], np.asfortranarray(array)]
    loader = saturate.Loader([(item, 0) for item in items], train=False, batch=8, size=6, dtype="uint8")
    (images, _), = loader
    assert all(np.array_equal(images[0], images[i]) for i in (1, 4)) and np.array_equal(images[2], images[3])
    pil = pytest.importorskip("PIL.Image")
    palette = pil.fromarray(array).convert("P")
    items = [png_of(array), bytearray(png_of(array)), memoryview(png_of(array)), pil.fromarray(array),
             pil.fromarray(grey), palette, pil.fromarray(array).convert("RGBA")]
    (others, _), = saturate.Loader([(item, 0) for item in items], train=False, batch=8, size=6, dtype="uint8")
    assert all(np.array_equal(images[0], others[i]) for i in (0, 1, 2, 3, 6))
    assert np.array_equal(images[2], others[4])
    rgb = np.asarray(palette.convert("RGB"))
    (expected, _), = saturate.Loader([(rgb, 0)], train=False, batch=1, size=6, dtype="uint8")
    assert np.array_equal(others[5], expected[0])


@pytest.mark.parametrize("item, message", [
    (3, "int instead of"), ({"image": b"", "label": 0}, "dict instead of"),
    (("a", "b", "c"), "tuple instead of"), (("text", 0), "str instead of bytes"),
    ((np.zeros((6, 6, 3), np.float32), 0), "float32"), ((np.zeros((3, 6, 6), np.uint8), 0), r"\[3, 6, 6\]"),
    ((np.zeros((80, 90), np.int16), 0), r'of int16 \[80, 90\] .*: scale images to uint8; .* files \("npz:FILE"\)'),
    ((np.zeros((0, 6, 3), np.uint8), 0), "empty"), ((PNG.read_bytes(), "cat"), "label is str"),
    ((PNG.read_bytes(), 2**70), "64 bits"), ((PNG.read_bytes(), 1.5), "label is float"), ((b"", 0), "sample 1"),
    ((b"no image", 0), "sample 1")])
@pytest.mark.parametrize("processes", [0, 1])
def test_items_that_are_none_are_named_or_skipped(item, message, processes):
    items = [(PNG.read_bytes(), 0), item]
    with saturate.Loader(items, batch=2, size=6, processes=processes) as loader:
        with pytest.raises(saturate.Error, match=message) as found:
            list(loader)
        assert "sample 1" in str(found.value) and "\n" not in str(found.value)
    with saturate.Loader(items, batch=2, size=6, on_error="skip", processes=processes) as loader:
        assert [len(labels) for _, labels in loader] == [1]
        assert loader.skipped[0][0] == "sample 1"


@pytest.mark.parametrize("dtype, mode", [(np.uint16, "I;16"), (np.int32, "I"), (np.float32, "F")])
def test_images_of_more_than_8_bits_are_refused(dtype, mode):
    """Pillow would clip them, mostly to white."""
    image = pytest.importorskip("PIL.Image").fromarray(np.full((6, 6), 1000, dtype))
    assert image.mode == mode
    with pytest.raises(saturate.Error, match=f'mode "{mode}" instead of 8 bits'):
        list(saturate.Loader([(image, 0)], size=6))


def test_tensors_are_refused_with_the_reason():
    torch = pytest.importorskip("torch")
    with pytest.raises(saturate.Error, match="must not make tensors"):
        list(saturate.Loader([(torch.zeros(3, 6, 6), 0)], size=6))


@pytest.mark.parametrize("processes", [0, 2])
def test_an_exception_is_the_cause_of_the_error(processes):
    with saturate.Loader(Broken(8), processes=processes, **ARGUMENTS) as loader:
        with pytest.raises(saturate.Error, match=r"^ValueError: no good \(sample 3\)") as found:
            list(loader)
        assert isinstance(found.value.__cause__, ValueError)
        with pytest.raises(saturate.Error):
            next(iter(loader))
            list(loader)
    with saturate.Loader(OddlyBroken(8), processes=processes, **ARGUMENTS) as loader:
        with pytest.raises(saturate.Error, match="1 and 2"):
            list(loader)
    with saturate.Loader(Broken(8, MemoryError()), **ARGUMENTS, on_error="skip") as loader:
        with pytest.raises(MemoryError):
            list(loader)


def test_an_exit_is_no_sample_to_be_skipped():
    with saturate.Loader(Broken(8, SystemExit(3)), on_error="skip", **ARGUMENTS) as loader:
        with pytest.raises(saturate.Error, match=r"^SystemExit: 3 \(sample 3\)"):
            list(loader)


@pytest.mark.parametrize("quick_reads", [0, 100])
def test_ctrl_c_ends_the_copy_of_a_stage(quick_reads, tmp_path, alarm):
    reads = itertools.count()

    class Slow(Numbered):
        def __getitem__(self, index):
            if next(reads) >= quick_reads:  # the first 100 are for the size of the copy
                time.sleep(0.05)
            return super().__getitem__(index)

    alarm(0.5)
    with pytest.raises(KeyboardInterrupt):
        saturate.Loader(Slow(100), options={"data.stage": str(tmp_path)}, **{**ARGUMENTS, "threads": 1})
    assert list(tmp_path.iterdir()) == [] and next(reads) < quick_reads + 50


def test_ctrl_c_ends_the_copy_of_a_stage_whose_process_hangs(tmp_path, alarm, monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.2)
    alarm(3)
    with pytest.raises(KeyboardInterrupt):
        saturate.Loader(Hanging(40), processes=2, options={"data.stage": str(tmp_path)}, **ARGUMENTS)


def test_a_process_that_ends_is_an_error_and_not_a_wait():
    with saturate.Loader(Deadly(8), processes=2, on_error="skip", **ARGUMENTS) as loader:
        with pytest.raises(saturate.Error, match="exit code 7"):
            list(loader)


@pytest.mark.parametrize("way", ["close", "drop"])
def test_a_process_that_hangs_ends_with_the_loader(way, monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.2)
    loader = saturate.Loader(Hanging(40), processes=2, train=False, **ARGUMENTS)
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == [0, 1, 2, 3]
    source = loader._own
    processes = [worker.process for worker in source._all]
    if way == "close":
        loader.close()
    del loader, iterator
    gc.collect()
    with pytest.raises(saturate.Error, match="closed"):
        source.read(0)
    source.close()
    assert not any(process.is_alive() for process in processes)


def test_a_database_is_opened_by_what_reads_it(tmp_path):
    sqlite3 = pytest.importorskip("sqlite3")
    path = str(tmp_path / "a.db")
    made = sqlite3.connect(path)
    made.execute("CREATE TABLE levels (level INTEGER)")
    made.executemany("INSERT INTO levels VALUES (?)", [(level,) for level in range(8)])
    made.commit()
    made.close()
    dataset = InDatabase(path, 8)
    for arguments in {"processes": 2}, {"threads": 1}:
        with saturate.Loader(dataset, train=False, **{**ARGUMENTS, **arguments}) as loader:
            assert sum(numbers(loader), []) == list(range(8))


def test_processes_read_and_large_samples_fit():
    with saturate.Loader(ProcessIds(40), processes=3, **{**ARGUMENTS, "threads": 1}) as loader:
        ids = set(sum(numbers(loader), []))
    assert os.getpid() not in ids and 1 <= len(ids) <= 3
    with saturate.Loader(Large(2), processes=1, train=False, **ARGUMENTS) as loader:
        (images, labels), = loader
        assert labels.tolist() == [0, 1] and (images[1] == 1).all()


def test_a_dataset_that_cannot_be_pickled_says_so():
    class Local(Numbered):
        pass

    with pytest.raises(TypeError, match="cannot be sent to processes"):
        saturate.Loader(Local(4), processes=1, **ARGUMENTS)


def test_a_dataset_of_a_notebook_is_refused_at_once(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(Numbered, "__module__", "__main__")
    with pytest.raises(TypeError, match="Numbered is in no file, as in a notebook"):
        saturate.Loader(Numbered(4), processes=1, **ARGUMENTS)


def test_pythons_lock_is_free_while_it_decodes():
    inside, most = [0], [0]

    class Counting(Numbered):
        def __getitem__(self, index):
            inside[0] += 1
            time.sleep(0.002)  # frees the lock
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            return super().__getitem__(index)

    list(saturate.Loader(Counting(40), **{**ARGUMENTS, "threads": 4}))
    assert most[0] > 1  # several threads are in __getitem__ at once


def test_classes_bound_the_labels():
    with saturate.Loader(Numbered(4), classes=["a", "b", "c"], **ARGUMENTS) as loader:
        assert loader.classes == ["a", "b", "c"]
        with pytest.raises(saturate.Error, match="label is 3"):
            list(loader)


def test_caches_call_the_dataset_once():
    calls = []

    class Counted(Numbered):
        def __getitem__(self, index):
            calls.append(index)
            return super().__getitem__(index)

    loader = saturate.Loader(Counted(10), cache="ram", **ARGUMENTS)
    first, second = numbers(loader), numbers(loader)
    assert sorted(calls) == list(range(10)) and first != second


def test_it_may_be_dropped_at_any_time():
    class Slow(Numbered):
        def __getitem__(self, index):
            time.sleep(0.001)
            return super().__getitem__(index)

    for _ in range(5):
        next(iter(saturate.Loader(Slow(100), **ARGUMENTS)))
    loader = saturate.Loader(Slow(100), **ARGUMENTS)
    loader.itself = loader  # a cycle, which the collector frees
    next(iter(loader))
    del loader
    gc.collect()


def test_a_cycle_collected_on_its_own_thread_ends():
    collected = threading.Event()

    class Collecting(Numbered):
        def __getitem__(self, index):
            if index == 6:
                while not dropped.wait(0.01):
                    pass
                gc.collect()
                collected.set()
            return super().__getitem__(index)

    dropped = threading.Event()
    loader = saturate.Loader(Collecting(40), train=False, **{**ARGUMENTS, "threads": 1})
    loader.itself = loader
    next(iter(loader))
    gc.disable()
    try:
        del loader
        dropped.set()
        assert collected.wait(30)
    finally:
        gc.enable()


def test_a_program_ends_while_it_reads():
    code = ("import sys, saturate; sys.path.insert(0, sys.argv[1]); from sample_sets import Numbered\n"
            "loader = saturate.Loader(Numbered(10**5), batch=4, size=6, threads=4)\n"
            "iterator = iter(loader); next(iterator); print('ends')")
    result = subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True, text=True,
                            timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "ends\n", "")


def test_a_program_ends_while_its_daemon_thread_waits():
    code = ("import sys, threading, time, saturate; sys.path.insert(0, sys.argv[1]); from sample_sets import Numbered\n"
            "class Slow(Numbered):\n"
            "    def __getitem__(self, index):\n"
            "        time.sleep(0.1)\n"
            "        return super().__getitem__(index)\n"
            "loader, begun = saturate.Loader(Slow(100), batch=4, size=6, threads=1), threading.Event()\n"
            "def run():\n"
            "    for _ in loader:\n"
            "        begun.set()\n"
            "threading.Thread(target=run, daemon=True).start()\n"
            "begun.wait(); time.sleep(0.1); print('ends')")
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True,
                                text=True, timeout=60)
        assert (result.returncode, result.stdout, result.stderr) == (0, "ends\n", "")


def test_pickling_keeps_dataset_and_position():
    loader = saturate.Loader(Numbered(30), **ARGUMENTS)
    whole = numbers(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    found = [next(iterator)[1].tolist() for _ in range(3)]
    assert found + numbers(pickle.loads(pickle.dumps(loader))) == whole


def test_torchvisions_image_folder(tmp_path):
    folder = pytest.importorskip("torchvision.datasets")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).write_bytes(PNG.read_bytes())
    dataset = folder.ImageFolder(str(tmp_path))
    dataset.loader(str(tmp_path / "a/1.png"))
    loader = saturate.Loader(dataset, train=False, batch=2, size=6, names=True)
    (images, labels, names), = loader
    (expected, _, _), = saturate.Loader(tmp_path, train=False, batch=2, size=6, names=True)
    assert np.array_equal(images, expected) and labels.tolist() == [0, 1] and loader.classes == ["a", "b"]
    assert names == [str(tmp_path / "a/1.png"), str(tmp_path / "b/2.png")]
    through_pil = folder.ImageFolder(str(tmp_path), transform=lambda image: image.rotate(180))
    (turned, _), = saturate.Loader(through_pil, train=False, batch=2, size=6)
    assert np.allclose(turned, images[:, :, ::-1, ::-1], atol=0.02)
    dataset.target_transform = lambda label: 1 - label  # set later than by the constructor
    assert numbers(saturate.Loader(dataset, train=False, batch=2, size=6)) == [[1, 0]]
    dataset.transform = through_pil.transform
    (turned, _), = saturate.Loader(dataset, train=False, batch=2, size=6)
    assert np.allclose(turned, images[:, :, ::-1, ::-1], atol=0.02)


def test_torchs_loaders_are_refused():
    data = pytest.importorskip("torch.utils.data")
    with pytest.raises(TypeError, match="source=loader.dataset"):
        saturate.Loader(data.DataLoader([1, 2]), size=6)
