"""The package as its users see it. Needs numpy and pytest, and torch for one test, which is skipped without it."""

import gc
import os
import pathlib
import tarfile
import threading
import time

import numpy as np
import pytest

import saturate

SYNTH = "synth:size=24,count=60"
IMAGES = pathlib.Path(__file__).resolve().parents[2] / "tests/goldens/image/inputs"


def epoch(**arguments):
    loader = saturate.Loader(SYNTH, **{"batch": 16, "size": 20, "threads": 2, **arguments})
    return [(np.array(images), np.array(labels)) for images, labels in loader]


def test_an_epoch_holds_every_sample_once():
    loader = saturate.Loader(SYNTH, batch=16, size=20)
    assert len(loader) == 4 and loader.samples == 60 and len(loader.classes) == 10
    batches = list(loader)
    assert [images.shape for images, _ in batches] == [(16, 3, 20, 20)] * 3 + [(12, 3, 20, 20)]
    assert batches[0][0].dtype == np.float32 and batches[0][1].dtype == np.int64
    counts = np.bincount(np.concatenate([labels for _, labels in batches]))
    assert counts.tolist() == [6] * 10


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_images_may_have_a_height_and_a_width(layout, dtype):
    shape = (16, 3, 12, 20) if layout == "nchw" else (16, 12, 20, 3)
    for crop in "random_resized", "letterbox":
        batches = epoch(size=(12, 20), crop=crop, layout=layout, dtype=dtype)
        assert [images.shape[1:] for images, _ in batches] == [shape[1:]] * 4
    images, masks = next(iter(saturate.Loader(SYNTH + ",masks=true", batch=4, size=(12, 20), layout=layout, dtype=dtype)))
    assert np.array(images).shape[1:] == shape[1:] and np.array(masks).shape == (4, 12, 20)


def test_sizes_may_change_by_epoch():
    loader = saturate.Loader(SYNTH, batch=60, size=["0:8", "1:8x12"])
    assert [np.array(images).shape for _ in range(2) for images, _ in loader] == [(60, 3, 8, 8), (60, 3, 8, 12)]


@pytest.mark.parametrize("threads", [1, 4])
def test_batches_depend_on_seed_and_epoch_alone(threads):
    arguments = {"crop": "random_resized", "options": {"augment.hue": 0.2}}
    for (a, la), (b, lb) in zip(epoch(**arguments), epoch(threads=threads, prefetch=1, **arguments)):
        assert np.array_equal(a, b) and np.array_equal(la, lb)
    loader = saturate.Loader(SYNTH, batch=60, size=20, threads=threads)
    (first, _), = loader
    (second, _), = loader
    assert not np.array_equal(first, second)
    loader.set_epoch(0)
    (again, _), = loader
    assert np.array_equal(first, again)


def test_layouts_and_types_are_views_of_the_same_numbers():
    for train in (True, False):
        planes = epoch(train=train)
        for (a, _), (b, _) in zip(planes, epoch(train=train, layout="nhwc")):
            assert np.array_equal(a, b.transpose(0, 3, 1, 2))
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        for (a, _), (b, _) in zip(planes, epoch(train=train, dtype="uint8")):
            assert b.dtype == np.uint8
            expected = (b.transpose(0, 2, 3, 1) / 255 - mean) / std
            assert np.allclose(a.transpose(0, 2, 3, 1), expected, atol=1e-5)


def test_evaluation_is_in_order_and_says_names():
    loader = saturate.Loader(f"folder:{IMAGES.parent}", train=False, batch=4, size=16, names=True,
                             on_error="skip")
    names = [name for _, _, names in loader for name in names]
    assert names == sorted(names) and names
    assert all(pathlib.Path(name).exists() for name in names)


def test_goes_on_where_it_was():
    whole = saturate.Loader(SYNTH, batch=16, size=20, threads=2)
    expected = [labels.tolist() for _ in range(2) for _, labels in whole]
    found = []
    first = saturate.Loader(SYNTH, batch=16, size=20)
    for _, labels in first:
        found.append(labels.tolist())
        if len(found) == 2:
            break
    rest = saturate.Loader(SYNTH, batch=16, size=20, threads=4)
    rest.load_state_dict(first.state_dict())
    found += [labels.tolist() for _ in range(2) for _, labels in rest]
    assert found == expected


def test_a_batch_that_is_left_out_is_counted(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0.png").write_bytes(b"no image")
    for name in ("1.png", "2.png", "3.png"):
        (tmp_path / "a" / name).write_bytes(next(IMAGES.rglob("*.png")).read_bytes())
    arguments = {"train": False, "batch": 1, "size": 8, "on_error": "skip", "names": True}
    first = saturate.Loader(f"folder:{tmp_path}", **arguments)
    assert pathlib.Path(next(iter(first))[2][0]).name == "1.png"
    rest = saturate.Loader(f"folder:{tmp_path}", **arguments)
    rest.load_state_dict(first.state_dict())
    assert [pathlib.Path(name).name for _, _, (name,) in rest] == ["2.png", "3.png"]


def test_arrays_outlive_the_loader_and_are_not_written_again():
    loader = saturate.Loader(SYNTH, batch=16, size=20)
    kept = [images for images, _ in loader]
    copies = [images.copy() for images in kept]
    for _ in range(3):
        for _ in loader:
            pass
    del loader
    gc.collect()
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies))


def test_close_frees_the_source(tmp_path):
    path = os.path.realpath(tmp_path / "a.tar")
    with tarfile.open(path, "w") as archive:
        for i in range(8):
            archive.add(next(IMAGES.rglob("*.png")), f"class{i % 2}/{i}.png")

    def is_open():
        names = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        return any(os.readlink(name) == path for name in names if os.path.islink(name))

    loader = saturate.Loader(f"tar:{path}", batch=2, size=8, cache="ram")
    images, _ = next(iter(loader))
    copy = images.copy()
    assert is_open()
    loader.close()
    assert not is_open()
    assert np.array_equal(images, copy)
    assert loader.samples == 8 and len(loader) == 4 and loader.classes == ["class0", "class1"]
    assert loader.target is None and loader.skipped == []
    loader.close()


def test_other_python_threads_run_while_it_works():
    loader = saturate.Loader("synth:size=400,count=64", batch=64, size=224, threads=1)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    begin = time.perf_counter()
    for _ in loader:
        pass
    seconds = time.perf_counter() - begin
    stop.set()
    thread.join()
    # One batch that takes long: if the loader held Python's lock, there would be one or two ticks.
    assert len([t for t in ticks if begin < t < begin + seconds]) > 10


def test_errors_say_what_where_and_what_to_do():
    with pytest.raises(saturate.Error, match="(?s)no such.*nowhere"):
        saturate.Loader("folder:nowhere", size=8)
    with pytest.raises(saturate.Error, match="augment.size"):
        saturate.Loader(SYNTH)
    with pytest.raises(saturate.Error, match="augment.hu"):
        saturate.Loader(SYNTH, size=8, options={"augment.hu": 1})
    with pytest.raises(saturate.Error, match="dtype"):
        saturate.Loader(SYNTH, size=8, dtype="int8")
    with pytest.raises(TypeError, match="batchsize"):
        saturate.Loader(SYNTH, size=8, batchsize=3)


def test_broken_images_end_it_or_are_left_out(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/broken.jpg").write_bytes(b"no image")
    (tmp_path / "a/good.png").write_bytes(next(IMAGES.rglob("*.png")).read_bytes())
    with pytest.raises(saturate.Error, match="broken.jpg"):
        list(saturate.Loader(f"folder:{tmp_path}", batch=2, size=8))
    loader = saturate.Loader(f"folder:{tmp_path}", batch=2, size=8, on_error="skip")
    (images, _), = loader
    assert images.shape[0] == 1
    assert "broken.jpg" in loader.skipped[0][0]


def test_torch_sees_the_same_memory():
    torch = pytest.importorskip("torch")
    for dtype, expected in (("float32", torch.float32), ("bfloat16", torch.bfloat16),
                            ("float16", torch.float16), ("uint8", torch.uint8)):
        loader = saturate.Loader(SYNTH, batch=16, size=20, dtype=dtype, layout="nchw", to="torch")
        for images, labels in loader:
            assert images.dtype == expected and labels.dtype == torch.int64
            assert tuple(images.shape[1:]) == (3, 20, 20)
