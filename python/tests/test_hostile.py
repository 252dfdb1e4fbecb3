"""Broken files, odd names and wrong arguments: each raises saturate.Error or a standard Python exception, and
never crashes the interpreter. Needs numpy and pytest."""

import os
import pathlib
import struct
import tarfile
import zlib

import numpy as np
import pytest

import saturate
from sample_sets import Numbered

SYNTH = "synth:size=24,count=60"
GOOD = next((pathlib.Path(__file__).resolve().parents[2] / "tests/goldens/image/inputs").rglob("*.png"))


def png_that_claims(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b""))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/good.png").write_bytes(GOOD.read_bytes())
    return tmp_path


BROKEN = {
    "empty.jpg": b"",
    "text.png": b"no image at all",
    "cut.png": GOOD.read_bytes()[:60],
    "header.jpg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
    "bomb.png": png_that_claims(1 << 30, 1 << 30),
    "large.png": png_that_claims(60000, 60000),
    "short.png": png_that_claims(64, 64),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(folder, name):
    (folder / "a" / name).write_bytes(BROKEN[name])
    with pytest.raises(saturate.Error, match=name):
        list(saturate.Loader(f"folder:{folder}", batch=4, size=8))


def test_broken_files_are_left_out_together(folder):
    for name, data in BROKEN.items():
        (folder / "a" / name).write_bytes(data)
    loader = saturate.Loader(f"folder:{folder}", batch=4, size=8, on_error="skip", threads=3)
    for _ in range(2):
        assert sum(len(labels) for _, labels in loader) == 1
    assert {pathlib.Path(name).name for name, _ in loader.skipped} == set(BROKEN)


def test_only_broken_files_make_an_empty_epoch(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/broken.png").write_bytes(b"no image")
    loader = saturate.Loader(f"folder:{tmp_path}", batch=4, size=8, on_error="skip")
    assert list(loader) == []


def test_names_need_not_be_utf8(tmp_path):
    root = os.fsencode(tmp_path)
    odd = os.path.join(root, b"caf\xe9")
    os.mkdir(odd)
    for name in (b"\xff.png", b"good.png"):
        pathlib.Path(os.fsdecode(os.path.join(odd, name))).write_bytes(GOOD.read_bytes())
    loader = saturate.Loader(f"folder:{tmp_path}", train=False, batch=4, size=8, names=True)
    assert loader.classes == [r"caf\xe9"]  # as in checkpoints
    (_, _, names), = loader
    assert all(os.path.exists(name) for name in names) and len(names) == 2
    pathlib.Path(os.fsdecode(os.path.join(odd, b"\xff.png"))).write_bytes(b"no image")
    with pytest.raises(saturate.Error, match=r"caf\\xe9"):
        list(loader)
    skipping = saturate.Loader(f"folder:{tmp_path}", batch=4, size=8, on_error="skip")
    list(skipping)
    assert os.fsencode(skipping.skipped[0][0]).endswith(b"caf\xe9/\xff.png")


def test_an_archive_that_is_cut_off(tmp_path):
    with tarfile.open(tmp_path / "whole.tar", "w") as archive:
        for i in range(20):
            archive.add(GOOD, f"class/{i}.png")
    whole = (tmp_path / "whole.tar").read_bytes()
    for share in (0.3, 0.5, 0.9):
        (tmp_path / "cut.tar").write_bytes(whole[:int(len(whole) * share)])
        try:
            for _ in saturate.Loader(f"tar:{tmp_path}/cut.tar", batch=4, size=8):
                pass
        except saturate.Error as error:
            assert "cut.tar" in str(error)


@pytest.mark.parametrize("arguments", [
    {"size": -1}, {"size": 10**9}, {"size": "big"}, {"size": 1.5}, {"batch": 0}, {"batch": -4}, {"batch": 2**40},
    {"threads": -1}, {"prefetch": 0}, {"crop": "none\"\nseed = 3"}, {"crop": "[none]"}, {"mean": [0.5]},
    {"mean": "abc"}, {"std": [0, 0, 0]}, {"std": [float("nan")] * 3}, {"seed": -1},
    {"cache": "device"}, {"options": {"": 1}}, {"options": {"augment": 1}}, {"options": {"a.b.c": 1}},
    {"options": {"augment.hue=1\naugment.flip": 0}}, {"mixup": -1}, {"cutmix": "much"}, {"mixup": 1, "dtype": "uint8"},
    {"rank": 2, "world": 2}, {"rank": 0}, {"rank": -1, "world": 2}, {"rank": 0, "world": 200}, {"uneven": "odd"},
    {"dtype": ""}, {"dtype": "float64"}])
def test_arguments_out_of_range(arguments):
    with pytest.raises(saturate.Error) as found:
        saturate.Loader(SYNTH, **{"size": 8, **arguments})
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("arguments", [{"to": "numpyy"}, {"batch": 2, "batch_size": 2}, {"processes": 2},
                                       {"threads": 2, "num_workers": 2}, {"dtype": "bfloat16", "to": "numpy"}])
def test_arguments_that_do_not_fit_together(arguments):
    with pytest.raises((TypeError, ValueError)):
        saturate.Loader(SYNTH, size=8, **arguments)


def other_source(arguments):
    return Numbered(8) if {"processes", "classes", "target"} & set(arguments) else SYNTH


@pytest.mark.parametrize("arguments", [
    {"dtype": 3}, {"dtype": None}, {"dtype": float}, {"dtype": np.float64}, {"train": 1}, {"train": "no"},
    {"train": None}, {"soft_labels": 1}, {"rank": 1.0, "world": 2}, {"rank": "0", "world": 2},
    {"world": "2", "rank": 0},
    {"batch_size": "4"}, {"batch_size": 4.0}, {"num_workers": "2"}, {"processes": "2"}, {"processes": 1.0},
    {"options": 3}, {"options": [("seed", 1)]}, {"batch_transform": 3}, {"target": ["mask"]}, {"classes": "ab"},
    {"classes": 3}, {"layout": "chwn"}, {"layout": None}, {"to": "cupy"}, {"to": 3}])
def test_arguments_of_the_wrong_kind_are_named(arguments):
    name, value = next(iter(arguments.items()))
    with pytest.raises((TypeError, ValueError)) as found:
        saturate.Loader(other_source(arguments), size=8, **arguments)
    shown = f'to="{value}": ' if value == "cupy" else f"{name}={value!r}: "
    assert str(found.value).startswith(shown) and "\n" not in str(found.value)


@pytest.mark.parametrize("arguments", [
    {"dtype": np.float32}, {"dtype": np.dtype("float16")}, {"dtype": np.uint8}, {"train": np.True_},
    {"rank": np.int64(0), "world": np.int64(1)}, {"size": np.array([6, 8])}, {"batch_size": np.int64(4)},
    {"mean": np.full(3, 0.5), "std": (np.float32(0.5),) * 3}, {"processes": np.int32(1)},
    {"classes": tuple("abcdefgh")}])
def test_arguments_that_are_numpys(arguments):
    with saturate.Loader(other_source(arguments), **{"size": 8, **arguments}) as loader:
        images, _ = next(iter(loader))
    assert images.dtype == arguments.get("dtype", "float32")
    assert images.shape[2:] == tuple(arguments.get("size", (8, 8)))


def test_types_that_are_torchs():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8):
        for device in (None, "cpu"):
            loader = saturate.Loader(SYNTH, size=8, dtype=dtype, to="torch", device=device)
            assert next(iter(loader))[0].dtype == dtype


@pytest.mark.parametrize("source", [None, 3, b"folder:x", object(), iter([]), {1, 2}])
def test_sources_of_the_wrong_kind(source):
    with pytest.raises(TypeError, match="source is .*: give"):
        saturate.Loader(source, size=8)


@pytest.mark.parametrize("source", ["", "folder", "nothing:here", "folder:", "synth:count=0", "synth:count=-1",
                                    "synth:size=99999999", "tar:/dev/null", "shard:/dev/zero",
                                    "folder:a\0b"])
def test_sources_that_are_none(source):
    with pytest.raises(saturate.Error):
        list(saturate.Loader(source, size=8))


def test_states_that_make_no_sense():
    loader = saturate.Loader(SYNTH, batch=16, size=8)
    for state in ({"epoch": 1}, {}, None):
        with pytest.raises(saturate.Error, match="not a state"):
            loader.load_state_dict(state)
    for state in ({"epoch": -1, "batch": 0}, {"epoch": 0, "batch": -1}, {"epoch": "one", "batch": 0},
                  {"epoch": 2**40, "batch": 0}, {"epoch": 1.0, "batch": 0}):
        with pytest.raises((TypeError, ValueError), match="(epoch|batch)=.*: give"):
            loader.load_state_dict(state)
    with pytest.raises(TypeError, match="epoch='one': give an integer"):
        loader.set_epoch("one")
    assert loader.state_dict()["epoch"] == 0
    loader.load_state_dict({"epoch": 0, "batch": 10**6})
    assert list(loader) == []  # past the end: the epoch is over
    assert len(list(loader)) == 4


def test_a_converter_that_fails_leaves_the_loader_usable():
    def fails(_):
        raise RuntimeError("no such device")

    loader = saturate.Loader(SYNTH, batch=16, size=8, to=fails)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no such device"):
            next(iter(loader))
    loader._convert = np.from_dlpack
    loader.set_epoch(0)
    assert len(list(loader)) == 4
